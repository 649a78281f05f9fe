"""What-if: predictions against an exact simulation of torch's DataLoader, and against answers worked by hand."""

import itertools
import random

import pytest
from pipeline import Took, truth
from sweeps import rows, script_rows

from epochmeter.report.analyses.stalls import analyze
from epochmeter.report.analyses.what_if import Pipeline, epoch_s, fraction_without_stall, predictions, saturated_s

STEPS, PREFETCH = 40, 2
MIXED = {
    "both cost, 1 worker": (0.080, 0.080, 0.020, 1),
    "fetch costs more, 2 workers": (0.120, 0.040, 0.030, 2),
    "prep costs more, 4 workers": (0.040, 0.120, 0.030, 4),
    "near balance, 1 worker": (0.030, 0.030, 0.040, 1),
    "compute hides both, 1 worker": (0.020, 0.020, 0.100, 1),
    "no workers": (0.060, 0.020, 0.020, 0),
}
"""Seconds per batch to fetch and to preprocess, and per step to compute; DataLoader workers."""
CHANGES = [{"faster": 2.0}, {"faster": 10.0}, {"cached": 0.5}, {"cached": 1.0}, *({"workers": n} for n in (1, 2, 4))]


def one(found):
    (analysis,) = analyze(found)
    return analysis


def pipeline(**changed):
    """1000 batches, 2 workers of 4 ms per batch: 2 s of loading, 1 s of training."""
    known = {"steps": 1000.0, "device_s": 1.0, "cold_s": 2.0, "fetch_s": 0.002, "prep_s": 0.002, "workers": 2}
    return Pipeline(**{**known, **changed})


def simulated(fetch_s, prep_s, compute_s, workers, variation=0.0):
    """An epoch of batches that vary by so much (coefficient of variation), as torch's loader runs it."""
    drawn = random.Random(5)
    took = [Took(*(seconds * drawn.gauss(1, variation) for seconds in (fetch_s, prep_s))) for _ in range(STEPS)]
    return truth(took, [compute_s] * STEPS, workers, PREFETCH)


def stall_runs(fetch_s, prep_s, compute_s, workers, variation):
    """The rows of a stall experiment on that job, with the timers of its workers."""
    cold, warm = (simulated(seconds, prep_s, compute_s, workers, variation) for seconds in (fetch_s, 0.0))
    timed = {"synthetic": None, "cached": warm, "storage": cold}
    found = rows([STEPS * compute_s], [warm.e2e_s], [cold.e2e_s], steady={"steps": float(STEPS)}, cores=None,
                 job_keys={"workers": workers})  # fmt: skip
    for row in found:
        if known := timed[row.keys["data_source"]]:
            row.metrics["steady/loader_read_s"] = known.read_s
            row.metrics["steady/loader_preprocess_s"] = known.preprocess_s
    return found


def script_runs(load_s, compute_s, workers, *, persistent=True, start_s=0.0, cpu=(0.0, 0.0)):
    """The rows of a stall experiment on a script, whose workers take `start_s` to start in each epoch."""
    real = simulated(0.0, load_s, compute_s, workers or 0)
    steady = {
        "replay": {"steps": float(STEPS), "cpu_utilization": cpu[0]},
        "unchanged": {"steps": float(STEPS), "cpu_utilization": cpu[1], "loader_start_s": load_s + start_s},
    }
    return script_rows(
        replay=[STEPS * compute_s], unchanged=[real.e2e_s + start_s], workers=workers, persistent=persistent,
        steady=steady,
    )  # fmt: skip


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_predictions_for_a_script_follow_from_its_two_times(workers, persistent):
    start_s = 0.1 if workers and not persistent else 0.0
    model = one(script_runs(0.08, 0.02, workers, persistent=persistent, start_s=start_s)).pipeline
    for count in (1, 2, 4):
        starts_s = start_s * count / max(1, workers)
        real_s = simulated(0.0, 0.08, 0.02, count).e2e_s + starts_s
        assert epoch_s(model, workers=count) == pytest.approx(real_s, rel=0.01), count


def test_loading_of_a_script_is_limited_by_the_processor_time_that_it_was_measured_to_need():
    waits, works = (one(script_runs(0.08, 0.02, 1, cpu=cpu)).pipeline for cpu in ((0.0, 0.0), (0.0, 0.9)))  # of 8 cores
    assert epoch_s(waits, workers=8) < 0.4 * epoch_s(works, workers=8)


def test_script_whose_workers_are_not_known_has_no_predictions():
    assert one(script_runs(0.08, 0.02, None)).predictions == []


def test_interval_of_a_prediction_is_that_of_the_predictions_of_each_round():
    found = rows([1.0, 1.1], [5.0, 5.2], [5.0, 5.2], steady={"steps": 100.0}, job_keys={"workers": 1})
    change = next(change for change in one(found).predictions if change.change == "prepared")
    assert change.epoch_s == pytest.approx(1.05)
    assert change.interval_s.high - change.interval_s.low == pytest.approx(2 * 12.706 * 0.05, rel=0.01)
    once = rows([1.0], [5.0], [5.0], steady={"steps": 100.0}, job_keys={"workers": 1})
    assert not any(change.interval_s for change in one(once).predictions)


@pytest.mark.parametrize("variation", [0.0, 0.2])
@pytest.mark.parametrize("job", MIXED.values(), ids=MIXED)
def test_predictions_are_within_5_percent_of_the_simulated_change(job, variation):
    fetch_s, prep_s, compute_s, workers = job
    model = one(stall_runs(*job, variation)).pipeline
    for change in CHANGES:
        left = (1 - change.get("cached", 0.0)) / change.get("faster", 1.0)
        real = simulated(fetch_s * left, prep_s, compute_s, change.get("workers", workers), variation)
        assert epoch_s(model, **change) == pytest.approx(real.e2e_s, rel=0.05), change


def test_the_time_per_epoch_is_exact_where_all_batches_take_the_same():
    for load_s, compute_s, workers in itertools.product((0.01, 0.04, 0.16), (0.01, 0.04, 0.16), (0, 1, 2, 4, 8)):
        model = Pipeline(STEPS, STEPS * compute_s, 1.0, load_s / 2, load_s / 2, workers)
        assert epoch_s(model) == pytest.approx(simulated(load_s / 2, load_s / 2, compute_s, workers).e2e_s)


def test_preprocessing_is_limited_by_the_cores_and_reading_is_not():
    """1000 batches of 8 ms by 4 workers on 2 cores."""
    assert epoch_s(pipeline(fetch_s=0.0, prep_s=0.008, workers=4, cores=2)) == pytest.approx(4.0, rel=0.01)
    assert epoch_s(pipeline(fetch_s=0.008, prep_s=0.0, workers=4, cores=2)) == pytest.approx(2.0, rel=0.01)


RANKS = {"job_keys": {"strategy": {"name": "ddp", "ranks": 2}}, "devices": 2}
"""Two ranks on one host, with four workers each."""


def test_the_workers_timers_are_summed_over_all_ranks():
    # Hidden by training: 1000 batches per rank took its workers 4 s, 4 ms each.
    for devices in (2, 4):
        steady = {"steps": 1000.0, "loader_read_s": 1.0 * devices, "loader_preprocess_s": 3.0 * devices}
        found = one(rows([9.0], [9.0], [9.0], **{**RANKS, "devices": devices}, steady=steady))
        assert (found.pipeline.prep_s, found.pipeline.exact) == (pytest.approx(0.004), True)


def test_more_workers_are_predicted_with_the_time_on_saturated_storage():
    # 1000 batches of 2 ms reading and 2 ms preprocessing, one after the other: reading alone takes 2 s of 4 s.
    assert saturated_s(pipeline(workers=1, cold_s=4.0)) == pytest.approx(2.0)
    # Four workers that only read may have saturated it.
    assert saturated_s(pipeline(fetch_s=0.008, prep_s=0.0, workers=4, cold_s=2.0)) == pytest.approx(2.0)
    found = {each.value: each for each in predictions(pipeline(cold_s=2.0), storage=False)}
    assert (found[1].saturated_s, found[2].saturated_s) == (None, None)
    # Two readers that read half of the time: each finds the other one reading in half of its reads.
    assert found[4].epoch_s == pytest.approx(1.0, rel=0.01)
    assert found[4].saturated_s == found[4].worst_s == pytest.approx(2.0 / 1.5)


def test_the_fraction_without_fetch_stall():
    # Two workers have 2 ms per batch: with 1 ms of preprocessing, 1 of 3 ms may be fetched.
    assert fraction_without_stall(pipeline(fetch_s=0.003, prep_s=0.001)) == pytest.approx(2 / 3)
    assert fraction_without_stall(pipeline(fetch_s=0.001, prep_s=0.001)) == 0
    assert fraction_without_stall(pipeline(fetch_s=0.0)) == 0
    assert fraction_without_stall(pipeline(prep_s=0.004)) == 1, "prep-bound: each read is waited for"
    assert fraction_without_stall(pipeline(workers=0)) == 1, "nothing overlaps"


def test_the_start_of_workers_in_each_epoch_is_included():
    # 100 batches of 10 ms by one worker after a start of 0.5 s, which two of them take twice.
    steady = {"steps": 100.0, "loader_start_s": 0.51, "loader_read_s": 0.5, "loader_preprocess_s": 0.5}
    known = {"job_keys": {"workers": 1, "persistent_workers": False}, "steady": steady, "cores": 2}
    found = one(rows([0.1], [1.501], [1.501], **known))
    assert found.pipeline.start_s == pytest.approx(0.5)
    epochs_s = {each.value: each.epoch_s for each in found.predictions if each.change == "workers"}
    assert epochs_s == pytest.approx({1: 1.501, 2: 1.502}, abs=1e-3)
