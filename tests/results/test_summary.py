"""Steady values, standard deviations and totals of scripted windows."""

import math
from array import array
from dataclasses import replace

import pytest
from default_jobs import job_of

from epochmeter.results.summary import (
    ENERGIES,
    collect_flags,
    no_total_note,
    reaches_target,
    step_percentiles,
    summarize,
    target_metrics,
    total_metrics,
    total_uncertainty_j,
    variance_warning,
)

SECOND_NS = 1_000_000_000
JOB = job_of(warmup_epochs=1)
NO_STEPS = array("f")


def window(kind, number, energy_window_s, metrics, keys):
    term = {name: metrics[name] for name in ENERGIES if name in metrics}
    energy = {"opened_ns": 0, "closed_ns": round(energy_window_s * SECOND_NS), "joules": {}, "term": term}
    named = {f"{kind}/{name}": value for name, value in metrics.items()}
    return {"window": kind, "epoch": number, "metrics": named, "energy": energy, **keys}


def epoch(number, *, energy_window_s=10.0, keys=None, **metrics):
    """A training window whose counters were read `energy_window_s` apart; `keys` are those of its line."""
    return window("epoch", number, energy_window_s, {"e2e_s": 10.0, "steps": 1, **metrics}, keys or {})


def val(number, **metrics):
    return window("val", number, 1.0, {"e2e_s": 1.0, **metrics}, {})


def with_term(line, energy_j, seconds, uncertainty_j=2.0, **more):
    """The window with its energy as a term of the total, by a counter that is updated every 0.1 s."""
    term = {"energy_j": energy_j, "energy_uncertainty_j": uncertainty_j, "period_s": 0.1, "shortest_s": 1.0, **more}
    return {**line, "energy": {"opened_ns": 0, "closed_ns": round(seconds * SECOND_NS), "joules": {}, "term": term}}


def steps(*seconds):
    """Rows of steps with these durations: an eighth of it a gap, a quarter copy, the rest compute."""
    return array("f", [part for s in seconds for part in (s / 8, 99.0, s / 4, s * 5 / 8)])


def without_energy(metrics):
    return not [name for name in metrics if "energy" in name or "power" in name or "edp" in name]


def test_totals_include_training_and_evaluation_and_no_windows_that_a_script_has_named():
    named = window("load_data", 0, 50.0, {"e2e_s": 50.0, "energy_j": 9.0}, {})
    windows = [epoch(0, energy_j=20.0), val(0, energy_j=1.0), epoch(1, energy_j=30.0), val(1, energy_j=2.0)]
    assert total_metrics(windows) == {"e2e_s": 22.0, "epochs": 2, "energy_j": 53.0, "edp_js": 53.0 * 22.0}
    assert summarize([named, *windows, named], NO_STEPS, JOB) == summarize(windows, NO_STEPS, JOB)
    estimated = [epoch(0, estimated_energy_j=20.0), val(0, estimated_energy_j=1.0)]
    assert total_metrics(estimated) == {"e2e_s": 11.0, "epochs": 1, "estimated_energy_j": 21.0}


def test_warm_up_epochs_are_excluded_from_steady_values_only():
    windows = [epoch(0, e2e_s=100.0), epoch(1, e2e_s=4.0), epoch(2, e2e_s=6.0)]
    metrics = summarize(windows, NO_STEPS, JOB)
    assert (metrics["steady/e2e_s"], metrics["total/e2e_s"], metrics["total/epochs"]) == (5.0, 110.0, 3)
    assert summarize(windows, NO_STEPS, replace(JOB, warmup_epochs=0))["steady/e2e_s"] == 110 / 3
    for key in ("warmup", "paused"):  # after a resumption
        resumed = [*windows[:2], epoch(2, e2e_s=50.0, keys={key: True}), epoch(3, e2e_s=6.0)]
        metrics = summarize(resumed, steps(100.0, 4.0, 50.0, 6.0), JOB)
        assert (metrics["steady/e2e_s"], metrics["steady/step_p99_s"]) == (5.0, 6.0)
        assert (metrics["total/e2e_s"], metrics["total/epochs"]) == (160.0, 4)


def test_partial_epoch_is_in_total_time_only():
    part = epoch(2, e2e_s=1.0, energy_j=1.0, train_loss=0.1, keys={"partial": True})
    windows = [epoch(0, e2e_s=9.0), epoch(1, e2e_s=5.0, energy_j=3.0), part]
    metrics = summarize(windows, steps(9.0, 2.0, 1.0), replace(JOB, target_loss=0.5))
    assert (metrics["steady/e2e_s"], metrics["steady/step_p99_s"]) == (5.0, 2.0)
    assert (metrics["total/e2e_s"], metrics["total/epochs"]) == (15.0, 2)
    assert "total/epochs_to_target" not in metrics
    alone = summarize([part], steps(1.0), replace(JOB, warmup_epochs=0))
    assert alone == {"total/e2e_s": 1.0, "total/epochs": 0, "total/energy_j": 1.0, "total/edp_js": 1.0}


def test_steady_values_are_means_maxima_and_ratios_of_sums():
    windows = [
        epoch(0, energy_j=1000.0, energy_window_s=1.0),
        epoch(1, samples=100, e2e_s=1.0, samples_per_s=100.0, read_iops=10.0, energy_j=10.0, energy_window_s=2.0,
              compute_s=2, gpu_memory_peak_bytes=6),
        epoch(2, samples=300, e2e_s=4.0, samples_per_s=75.0, read_iops=20.0, energy_j=90.0, energy_window_s=3.0,
              compute_s=4, gpu_memory_peak_bytes=5),
    ]  # fmt: skip
    windows[1]["metrics"]["rank_max/compute_s"] = 6.0
    metrics = summarize(windows, NO_STEPS, JOB)
    expected = {"samples_per_s": 400 / 5, "read_iops": (10 + 80) / 5, "energy_per_sample_j": 100 / 400,
                "power_mean_w": 100 / 5, "compute_s": 3, "gpu_memory_peak_bytes": 6}  # fmt: skip
    assert {name: metrics[f"steady/{name}"] for name in expected} == pytest.approx(expected)
    assert metrics["std/samples_per_s"] == pytest.approx(25 / math.sqrt(2))
    windows = [epoch(0, e2e_s=99.0), *(epoch(1, e2e_s=e2e_s) for e2e_s in (2.0, 4.0, 9.0))]
    assert summarize(windows, NO_STEPS, JOB)["std/e2e_s"] == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    metrics = summarize(windows[:2], NO_STEPS, JOB)
    assert ("steady/e2e_s" in metrics, any(name.startswith("std/") for name in metrics)) == (True, False)


def test_percentiles_are_by_nearest_rank_of_the_steps_of_all_steady_epochs_without_host_wait():
    percentiles = step_percentiles(steps(*range(200, 0, -1)))
    assert percentiles == {"step_p50_s": 100.0, "step_p95_s": 190.0, "step_p99_s": 198.0}
    assert step_percentiles(NO_STEPS) == {}
    windows = [epoch(0, steps=2), epoch(1, steps=2, step_p50_s=1.0), epoch(2, steps=3, step_p50_s=8.0)]
    metrics = summarize(windows, steps(50.0, 60.0, 1.0, 1.0, 8.0, 8.0, 8.0), JOB)
    assert [metrics[f"steady/step_p{percent}_s"] for percent in (50, 95, 99)] == [8.0, 8.0, 8.0]
    assert metrics["std/step_p50_s"] == pytest.approx(7 / math.sqrt(2))


def test_unmeasured_energy_is_absent():
    assert without_energy(summarize([epoch(n, samples=10) for n in range(3)] + [val(2)], NO_STEPS, JOB))
    one_lacks = [epoch(0, energy_j=5.0), epoch(1, energy_j=5.0, samples=1), epoch(2, samples=1)]
    assert without_energy(summarize(one_lacks, NO_STEPS, JOB))
    warm_up_lacks = summarize([epoch(0), epoch(1, energy_j=5.0)], NO_STEPS, JOB)
    assert (warm_up_lacks["steady/energy_j"], "total/energy_j" in warm_up_lacks) == (5.0, False)
    assert total_metrics([epoch(0, energy_j=20.0), val(0)]) == {"e2e_s": 11.0, "epochs": 1}


def test_total_includes_windows_too_short_for_their_own_energy():
    """At 200 W: epochs of 1.5 s, and evaluations of 30 ms, in which the counter often does not advance."""
    windows = []
    for number, counted_j in enumerate((0.0, 20.0, 0.0)):
        windows.append(with_term(epoch(number, e2e_s=1.5, energy_j=300.0), 300.0, 1.5, 20.0, net_energy_j=270.0))
        short = val(number, e2e_s=0.03, accuracy=0.9)
        windows.append(with_term(short, counted_j, 0.03, 0.0, net_energy_j=counted_j))
    metrics = summarize(windows, NO_STEPS, replace(JOB, target_accuracy=0.9))
    assert (metrics["total/energy_j"], metrics["total/net_energy_j"]) == (920.0, 830.0)
    assert metrics["total/edp_js"] == pytest.approx(920.0 * 3 * 1.53)
    assert (metrics["total/energy_to_target_j"], metrics["total/time_to_target_s"]) == (300.0, 1.53)
    mean_w = 920 / (3 * 1.53)
    assert metrics["total/energy_uncertainty_j"] == pytest.approx(3 * max(20.0, mean_w * 0.1) + 3 * mean_w * 0.1)
    assert no_total_note(windows) == []


def test_unresolved_total_is_absent_with_the_reason():
    reasons = {
        "0.9 s, and the energy meter needs 1 s": [with_term(epoch(0), 20.0, 0.4), with_term(epoch(1), 0.0, 0.5)],
        "the energy counter did not advance": [with_term(epoch(0), 0.0, 0.9), with_term(epoch(1), 0.0, 0.9)],
        "not measured in epoch 2 and 1 more windows": [with_term(epoch(0), 20.0, 4.0), epoch(1), val(1)],
    }
    for part, windows in reasons.items():
        assert total_metrics(windows).keys() == {"e2e_s", "epochs"}
        (note,) = no_total_note(windows)
        assert part in note
    assert no_total_note([epoch(0), val(0)]) == [], "without a meter"


def test_target_is_reached_by_the_first_evaluation():
    windows = []
    for number, accuracy in enumerate((0.5, 0.9, 0.95)):
        windows += [epoch(number, train_accuracy=1.0, energy_j=20.0), val(number, accuracy=accuracy, energy_j=1.0)]
    expected = {"time_to_target_s": 22.0, "epochs_to_target": 2, "energy_to_target_j": 42.0}
    assert target_metrics(windows, replace(JOB, target_accuracy=0.9)) == expected
    assert target_metrics(windows, replace(JOB, target_accuracy=0.99)) == {}
    trained = [epoch(0, train_loss=2.0), epoch(1, train_loss=0.5)]
    job = replace(JOB, target_loss=0.5, evaluate=False)
    assert target_metrics(trained, job) == {"time_to_target_s": 20.0, "epochs_to_target": 2}
    metrics = summarize(windows, NO_STEPS, replace(JOB, target_accuracy=0.9))
    assert metrics.items() >= {f"total/{name}": value for name, value in expected.items()}.items()


def test_every_configured_target_must_be_reached():
    reached = {(None, None): False, (0.8, None): True, (None, 0.3): True, (0.8, 0.29): False, (0.81, 0.3): False}
    for (accuracy, loss), is_reached in reached.items():
        job = replace(JOB, target_accuracy=accuracy, target_loss=loss)
        assert reaches_target(val(0, accuracy=0.8, loss=0.3), job) is is_reached
        assert not reaches_target(val(0, loss=math.nan), job)
        assert not reaches_target({**val(0, accuracy=0.8, loss=0.3), "partial": True}, job)
        assert not reaches_target(epoch(0, train_accuracy=1.0, train_loss=0.1), job)


def test_flags_have_their_first_text_and_large_variation_of_epoch_times_is_a_warning():
    hot, lost = {"throttled": "hot in epoch 0"}, {"throttled": "hot in epoch 2", "energy_lost": "no VDD_IN"}
    windows = [epoch(0, keys={"flags": hot}), epoch(1), epoch(2, keys={"flags": lost})]
    assert collect_flags(windows) == {"throttled": "hot in epoch 0", "energy_lost": "no VDD_IN"}
    (warning,) = variance_warning({"steady/e2e_s": 4.07, "std/e2e_s": 3.6})
    assert "88 %" in warning
    for mean_s, std_s in ((100.0, 10.0), (0.1, 0.05)):  # as on an idle machine; very short epochs
        assert variance_warning({"steady/e2e_s": mean_s, "std/e2e_s": std_s}) == []


def test_unsampled_power_is_independent_between_windows_and_other_uncertainties_are_not():
    terms = [{"energy_uncertainty_j": 5.0, "unsampled_j": 3.0, "period_s": 0.1}] * 2
    assert total_uncertainty_j(terms, mean_w=1.0) == pytest.approx(math.hypot(4 + 4, 3, 3))
    assert total_uncertainty_j(terms, mean_w=60.0) == pytest.approx(math.hypot(6 + 6, 3, 3))
