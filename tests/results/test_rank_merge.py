"""What ranks measured, put together: by scripted ranks."""

import pytest

from epochmeter.results.rank_merge import merged


def rank(opened_ns=100, closed_ns=200, weight=4, loss_sum=2.0, right=3, bad=(), paused=False, **parts):
    return {
        "opened_ns": opened_ns,
        "closed_ns": closed_ns,
        "weight": weight,
        "loss_sum": loss_sum,
        "right": right,
        "bad": list(bad),
        "paused": paused,
        "parts": {"e2e_s": 1.0, "samples": 4, **parts},
    }


def test_a_single_rank_is_told_as_it_is():
    alone = rank(fetch_stall_s=0.1 + 0.2)
    found = merged([alone])
    assert found["parts"] == alone["parts"]
    assert (found["loss"], found["accuracy"], found["rank_max"]) == (0.5, 0.75, {})


def test_times_are_means_over_ranks_and_the_largest_stands_beside_them():
    found = merged([rank(fetch_stall_s=1.0), rank(fetch_stall_s=3.0)])
    assert found["parts"]["fetch_stall_s"] == 2.0
    assert found["rank_max"]["fetch_stall_s"] == 3.0


def test_what_is_counted_adds_up_and_a_peak_is_the_largest():
    found = merged([rank(skipped_samples=1, gpu_memory_peak_bytes=5), rank(skipped_samples=2, gpu_memory_peak_bytes=9)])
    assert (found["parts"]["samples"], found["parts"]["skipped_samples"]) == (8, 3)
    assert found["parts"]["gpu_memory_peak_bytes"] == 9
    assert "samples" not in found["rank_max"]


def test_loss_and_accuracy_are_over_all_samples_whatever_each_rank_had():
    found = merged([rank(weight=9, loss_sum=9.0, right=9), rank(weight=1, loss_sum=11.0, right=0)])
    assert (found["loss"], found["accuracy"]) == (2.0, 0.9)


def test_a_task_that_knows_no_right_and_wrong_has_no_accuracy():
    assert merged([rank(right=None), rank(right=None)])["accuracy"] is None


def test_what_all_have_in_common_is_that_of_each():
    found = merged([rank(steps=3, learning_rate=0.1)] * 3)
    assert (found["parts"]["steps"], found["parts"]["learning_rate"]) == (3, 0.1)


def test_the_window_opens_with_the_first_and_closes_with_the_last():
    found = merged([rank(opened_ns=100, closed_ns=230), rank(opened_ns=110, closed_ns=200)])
    assert (found["opened_ns"], found["closed_ns"]) == (100, 230)


@pytest.mark.parametrize("paused", [(False, False), (False, True), (True, False)])
def test_a_pause_of_any_rank_is_one_of_the_window(paused):
    assert merged([rank(paused=each) for each in paused])["paused"] is any(paused)


@pytest.mark.parametrize(("ranks", "named"), [(1, 3), (2, 5)])
def test_a_few_bad_samples_are_named(ranks, named):
    assert len(merged([rank(bad=["a", "b", "c"])] * ranks)["bad"]) == named


def test_steps_are_taken_together_and_are_no_mean():
    found = merged([rank(steps=6), rank(steps=6)])
    assert found["parts"]["steps"] == 6
    assert isinstance(found["parts"]["steps"], int)
    assert found["rank_max"].keys() == {"e2e_s"}
