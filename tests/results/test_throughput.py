"""Throughput between two steps of a run, compared with results by hand."""

from array import array

import pytest
from default_jobs import job_of

from epochmeter.results.throughput import check_length, measure_throughput


def epoch(number, steps, samples, skipped=None, **keys):
    metrics = {"epoch/steps": steps, "epoch/samples": samples}
    if skipped is not None:
        metrics["epoch/skipped_samples"] = skipped
    return {"window": "epoch", "epoch": number, "metrics": metrics, **keys}


def val(number):
    return {"window": "val", "epoch": number, "metrics": {"val/e2e_s": 100.0}}


def rows(*seconds):
    """Rows of steps with these durations: half of it a gap, a quarter copy, a quarter compute."""
    return array("f", [part for s in seconds for part in (s / 2, 99.0, s / 4, s / 4)])


def job(start, stop, **keys):
    return job_of(throughput={"start": start, "stop": stop}, **{"batch": 10, "epochs": 2, **keys})


TWO_EPOCHS = [epoch(0, 3, 25), val(0), epoch(1, 3, 25), val(1)]


def test_throughput_is_a_ratio_of_sums_over_all_epochs_without_evaluation():
    metrics, _ = measure_throughput([epoch(0, 4, 40)], rows(8.0, 1.0, 3.0, 8.0), job(1, 3))
    expected = {"samples_per_s": 20 / 4, "samples": 20, "steps": 2, "e2e_s": 4.0, "step_mean_s": 2.0}
    assert metrics == {f"throughput/{name}": value for name, value in expected.items()}  # the steps' mean rate is 6.7
    metrics, _ = measure_throughput(TWO_EPOCHS, rows(9.0, 1.0, 1.0, 2.0, 9.0, 9.0), job(1, 4))
    assert (metrics["throughput/samples"], metrics["throughput/e2e_s"]) == (10 + 5 + 10, 4.0)


def test_samples_of_steps():
    for window, samples in (
        (epoch(0, 3, 25), {(0, 1): 10, (2, 3): 5, (0, 2): 20, (1, 3): 15, (0, 3): 25}),
        (epoch(0, 3, 50, ranks=2), {(0, 2): 40, (2, 3): 10, (0, 3): 50}),
        (epoch(0, 3, 25, skipped=0), {(1, 3): 15}),
        (epoch(0, 3, 23, skipped=2), {(0, 3): 23, (1, 3): None, (0, 2): None}),
    ):
        for (start, stop), count in samples.items():
            metrics, _ = measure_throughput([window], rows(1.0, 1.0, 1.0), job(start, stop))
            assert metrics.get("throughput/samples") == count


def test_unknown_throughput_has_a_reason():
    cases = [
        ([epoch(0, 3, 23, skipped=2), epoch(1, 3, 25)], 1, 3, "bad samples were skipped"),
        (TWO_EPOCHS[:2], 1, 4, "ended after 3 steps"),
    ]
    for windows, start, stop, part in cases:
        metrics, reason = measure_throughput(windows, rows(*[1.0] * 6), job(start, stop))
        assert (metrics, part in reason) == ({}, True)
    assert measure_throughput(TWO_EPOCHS, rows(*[1.0] * 6), job(None, None)) == ({}, "")


def test_run_with_too_few_steps_or_none_is_an_error_with_the_largest_values():
    for count, ranks, keys, stop, error in (
        (109, 1, {"drop_last": True}, 20, r"set throughput\.stop=20 or less"),
        (119, 2, {"drop_last": True}, 12, r"set throughput\.stop=12 or less"),  # the last is filled up to 60
        (1000, 1, {}, 200, r"set throughput\.stop=200 or less, or epochs=3 or more"),
        (1000, 2, {}, 100, r"(?s)per rank \(2 ranks\).*throughput\.stop=100 or less"),
    ):
        check_length(job(0, stop, **keys), count, ranks)
        with pytest.raises(ValueError, match=error):
            check_length(job(0, stop + 1, **keys), count, ranks)
    check_length(job(0, None, batch=51), 50, 1)
    with pytest.raises(ValueError, match="set batch=50 or less, or drop_last=false"):
        check_length(job(None, None, batch=51, drop_last=True), 50, 1)
    with pytest.raises(ValueError, match=r"25 training samples per rank \(2 ranks\)"):
        check_length(job(None, None, batch=26, drop_last=True), 50, 2)
