"""Samples a second between two steps of a run, against runs that can be worked out by hand."""

from array import array

import pytest
from default_jobs import job_of

from epochmeter.results.throughput import check_length, measure_throughput, step_samples, steps_per_epoch


def epoch(number, steps, samples, **more):
    """A training window; `skipped` samples are left out of those seen."""
    metrics = {"epoch/steps": steps, "epoch/samples": samples}
    if "skipped" in more:
        metrics["epoch/skipped_samples"] = more.pop("skipped")
    return {"window": "epoch", "epoch": number, "metrics": metrics, **more}


def val(number):
    return {"window": "val", "epoch": number, "metrics": {"val/e2e_s": 100.0}}


def rows(*seconds):
    """A step for each that took so long: a half of it a gap, a quarter copying, a quarter computing."""
    return array("f", [part for s in seconds for part in (s / 2, 99.0, s / 4, s / 4)])


def job(start, stop, **other):
    return job_of(throughput={"start": start, "stop": stop}, **{"batch": 10, "epochs": 2, **other})


TWO_EPOCHS = [epoch(0, 3, 25), val(0), epoch(1, 3, 25), val(1)]


def test_throughput_is_samples_over_time():
    found = measure_throughput([epoch(0, 4, 40)], rows(8.0, 1.0, 3.0, 8.0), job(1, 3)).metrics
    assert found == {
        "throughput/samples_per_s": 20 / 4,
        "throughput/samples": 20,
        "throughput/steps": 2,
        "throughput/e2e_s": 4.0,
        "throughput/step_mean_s": 2.0,
    }


def test_throughput_is_a_ratio_of_sums():
    steps = rows(1.0, 4.0)  # the mean of 10 and 2.5 a second is 6.25
    assert measure_throughput([epoch(0, 2, 20)], steps, job(0, 2)).metrics["throughput/samples_per_s"] == 4.0


def test_steps_count_over_all_epochs_with_smaller_last_batches_and_without_evaluation():
    steps = rows(9.0, 1.0, 1.0, 2.0, 9.0, 9.0)
    found = measure_throughput(TWO_EPOCHS, steps, job(1, 4)).metrics
    assert found["throughput/samples"] == 10 + 5 + 10
    assert found["throughput/e2e_s"] == 4.0


@pytest.mark.parametrize(
    ("first", "last", "samples"), [(0, 1, 10), (1, 2, 10), (2, 3, 5), (0, 2, 20), (1, 3, 15), (0, 3, 25)]
)
def test_each_step_has_its_samples(first, last, samples):
    assert step_samples(epoch(0, 3, 25), 10, first, last) == samples


def test_samples_are_those_of_all_ranks():
    of_two = epoch(0, 3, 50, ranks=2)
    assert step_samples(of_two, 10, 0, 2) == 40
    assert step_samples(of_two, 10, 2, 3) == 10
    found = measure_throughput([of_two], rows(1.0, 1.0, 1.0), job(0, 2)).metrics
    assert found["throughput/samples_per_s"] == 20.0


def test_skipped_samples_are_unknown_per_step_but_known_per_epoch():
    steps, windows = rows(*[1.0] * 6), [epoch(0, 3, 23, skipped=2), epoch(1, 3, 25)]
    assert measure_throughput(windows, steps, job(0, 3)).metrics["throughput/samples"] == 23
    assert measure_throughput(windows, steps, job(0, 4)).metrics["throughput/samples"] == 33
    found = measure_throughput(windows, steps, job(1, 3))
    assert found.metrics == {}
    assert found.reason == "bad samples were skipped in epoch 0, in an unknown step."


def test_steps_are_known_if_no_sample_was_skipped():
    assert step_samples(epoch(0, 3, 25, skipped=0), 10, 1, 3) == 15


def test_run_that_ended_early_has_a_reason():
    found = measure_throughput(TWO_EPOCHS[:2], rows(1.0, 1.0, 1.0), job(1, 4))
    assert found.metrics == {}
    assert found.reason == "the run ended after 3 steps, before throughput.stop=4."


def test_no_steps_configured_gives_no_throughput():
    assert measure_throughput(TWO_EPOCHS, rows(*[1.0] * 6), job(None, None)) == ({}, "")


@pytest.mark.parametrize(
    ("count", "batch", "ranks", "drop_last", "steps"),
    [
        (100, 10, 1, False, 10),
        (101, 10, 1, False, 11),
        (109, 10, 1, True, 10),
        (9, 10, 1, False, 1),
        (9, 10, 1, True, 0),
        (100, 10, 2, False, 5),
        (101, 10, 2, False, 6),
        (100, 10, 3, False, 4),
        (99, 10, 3, True, 3),
        (119, 10, 2, True, 6),  # each rank is filled up to 60
    ],
)
def test_steps_of_an_epoch(count, batch, ranks, drop_last, steps):
    assert steps_per_epoch(count, batch, ranks, drop_last) == steps


@pytest.mark.parametrize(("stop", "ranks"), [(200, 1), (100, 2), (None, 1)])
def test_run_with_enough_steps_is_accepted(stop, ranks):
    check_length(job(0, stop), 1000, ranks)


def test_run_with_too_few_steps_is_rejected():
    with pytest.raises(ValueError, match="beyond") as refused:
        check_length(job(0, 201), 1000, 1)
    assert str(refused.value) == (
        "throughput.stop=201 is beyond the run's end: its 2 epochs of 1000 samples have 100 steps each with batch=10"
        ", 200 in all. Set throughput.stop=200 or less, or epochs=3 or more."
    )
    with pytest.raises(ValueError, match="have 50 steps each with batch=10 for each of 2 ranks, 100 in all"):
        check_length(job(0, 101), 1000, 2)


def test_run_without_a_step_is_rejected():
    with pytest.raises(ValueError, match="no step") as refused:
        check_length(job(None, None, batch=51, drop_last=True), 50, 1)
    assert str(refused.value) == (
        "batch=51 exceeds the 50 training samples, and drop_last=true drops smaller batches: an epoch has no step. "
        "Set batch=50 or less, or drop_last=false."
    )
    with pytest.raises(ValueError, match="the 25 training samples for each of 2 ranks"):
        check_length(job(None, None, batch=26, drop_last=True), 50, 2)
    check_length(job(None, None, batch=51), 50, 1)
