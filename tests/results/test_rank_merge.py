"""Merging the measurements of scripted ranks."""

import pytest

from epochmeter.results.rank_merge import merge_ranks
from epochmeter.shared.protocol import RankWindow


def rank(opened_ns=100, closed_ns=200, weight=4, loss_sum=2.0, correct=3, bad=(), paused=False, **parts):
    parts = {"e2e_s": 1.0, "samples": 4, **parts}
    return RankWindow(opened_ns, closed_ns, 0, parts, list(bad), paused, weight, loss_sum, correct)


def test_a_single_rank_is_unchanged():
    single = rank(data_stall_s=0.1 + 0.2)
    merged = merge_ranks([single])
    assert merged.parts == single.parts
    assert (merged.loss, merged.accuracy, merged.rank_max) == (0.5, 0.75, {})


def test_times_are_means_over_ranks_and_rank_max_has_the_largest():
    merged = merge_ranks([rank(data_stall_s=1.0), rank(data_stall_s=3.0)])
    assert merged.parts["data_stall_s"] == 2.0
    assert merged.rank_max["data_stall_s"] == 3.0


def test_counts_are_summed_and_peaks_are_the_largest():
    merged = merge_ranks(
        [rank(skipped_samples=1, gpu_memory_peak_bytes=5), rank(skipped_samples=2, gpu_memory_peak_bytes=9)]
    )
    assert (merged.parts["samples"], merged.parts["skipped_samples"]) == (8, 3)
    assert merged.parts["gpu_memory_peak_bytes"] == 9
    assert "samples" not in merged.rank_max


def test_loss_and_accuracy_are_means_over_all_samples():
    merged = merge_ranks([rank(weight=9, loss_sum=9.0, correct=9), rank(weight=1, loss_sum=11.0, correct=0)])
    assert (merged.loss, merged.accuracy) == (2.0, 0.9)


@pytest.mark.parametrize("correct", [None, 3])
def test_without_the_accuracy_of_a_rank_there_is_none(correct):
    assert merge_ranks([rank(correct=None), rank(correct=correct)]).accuracy is None


def test_values_equal_on_all_ranks_stay():
    merged = merge_ranks([rank(steps=3, learning_rate=0.1)] * 3)
    assert (merged.parts["steps"], merged.parts["learning_rate"]) == (3, 0.1)


def test_the_window_opens_with_the_first_rank_and_closes_with_the_last():
    merged = merge_ranks([rank(opened_ns=100, closed_ns=230), rank(opened_ns=110, closed_ns=200)])
    assert (merged.opened_ns, merged.closed_ns) == (100, 230)


@pytest.mark.parametrize("paused", [(False, False), (False, True), (True, False)])
def test_a_pause_of_any_rank_pauses_the_window(paused):
    assert merge_ranks([rank(paused=flag) for flag in paused]).paused is any(paused)


@pytest.mark.parametrize(("ranks", "named"), [(1, 3), (2, 5)])
def test_a_few_bad_samples_are_named(ranks, named):
    assert len(merge_ranks([rank(bad=["a", "b", "c"])] * ranks).bad) == named


def test_steps_stay_an_integer():
    merged = merge_ranks([rank(steps=6), rank(steps=6)])
    assert merged.parts["steps"] == 6
    assert isinstance(merged.parts["steps"], int)
    assert merged.rank_max.keys() == {"e2e_s"}
