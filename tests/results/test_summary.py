import math
from array import array
from dataclasses import replace

import pytest
from default_jobs import job_of

from epochmeter.results.summary import (
    collect_flags,
    collect_notes,
    no_total_note,
    reaches_target,
    step_percentiles,
    summarize,
    target_metrics,
    total_metrics,
    variance_warning,
)

SECOND = 1_000_000_000
JOB = job_of(warmup_epochs=1)
NO_STEPS = array("f")


def epoch(number, *, energy_window_s=10.0, steps=1, **metrics):
    """A training window; its counters were read `energy_window_s` apart."""
    metrics = {"e2e_s": 10.0, "steps": steps, **metrics}
    energy = {"opened_ns": 0, "closed_ns": round(energy_window_s * SECOND), "joules": {}}
    named = {f"epoch/{name}": value for name, value in metrics.items()}
    return {"window": "epoch", "epoch": number, "metrics": named, "energy": energy}


def val(number, **metrics):
    named = {f"val/{name}": value for name, value in {"e2e_s": 1.0, **metrics}.items()}
    energy = {"opened_ns": 0, "closed_ns": SECOND, "joules": {}}
    return {"window": "val", "epoch": number, "metrics": named, "energy": energy}


def steps(*seconds):
    """A row for each step that took so long: an eighth of it a gap, a quarter copying, the rest computing."""
    return array("f", [part for s in seconds for part in (s / 8, 99.0, s / 4, s * 5 / 8)])


def test_warm_up_epochs_are_left_out_of_the_steady_values_and_not_of_the_totals():
    found = summarize([epoch(0, e2e_s=100.0), epoch(1, e2e_s=4.0), epoch(2, e2e_s=6.0)], NO_STEPS, JOB)
    assert found["steady/e2e_s"] == 5.0
    assert found["total/e2e_s"] == 110.0
    assert found["total/epochs"] == 3


def test_an_epoch_that_a_run_was_resumed_with_is_warm_up_with_its_steps():
    windows = [epoch(number, e2e_s=seconds, steps=1) for number, seconds in enumerate([100.0, 4.0, 50.0, 6.0])]
    windows[2]["warmup"] = True
    found = summarize(windows, steps(100.0, 4.0, 50.0, 6.0), JOB)
    assert found["steady/e2e_s"] == 5.0
    assert found["steady/step_p99_s"] == 6.0
    assert (found["total/e2e_s"], found["total/epochs"]) == (160.0, 4)


def test_the_largest_over_ranks_is_no_part_of_the_steady_means():
    slowest = epoch(1, compute_s=4.0)
    slowest["metrics"]["rank_max/compute_s"] = 6.0
    assert summarize([epoch(0), slowest], NO_STEPS, JOB)["steady/compute_s"] == 4.0


def test_without_warm_up_every_epoch_counts():
    windows = [epoch(0, e2e_s=100.0), epoch(1, e2e_s=4.0)]
    assert summarize(windows, NO_STEPS, replace(JOB, warmup_epochs=0))["steady/e2e_s"] == 52.0


def test_a_run_that_is_all_warm_up_has_totals_and_nothing_steady():
    found = summarize([epoch(0, energy_j=7.0)], steps(1.0), JOB)
    assert found == {"total/e2e_s": 10.0, "total/epochs": 1, "total/energy_j": 7.0, "total/edp_js": 70.0}


def test_a_rate_is_a_ratio_of_sums_and_no_mean_of_ratios():
    windows = [
        epoch(0),
        epoch(1, samples=100, e2e_s=1.0, samples_per_s=100.0),
        epoch(2, samples=100, e2e_s=4.0, samples_per_s=25.0),
    ]
    assert summarize(windows, NO_STEPS, JOB)["steady/samples_per_s"] == 200 / 5


def test_energy_a_sample_is_a_ratio_of_sums():
    windows = [
        epoch(0),
        epoch(1, samples=100, energy_j=10.0, energy_per_sample_j=0.1),
        epoch(2, samples=300, energy_j=90.0, energy_per_sample_j=0.3),
    ]
    assert summarize(windows, NO_STEPS, JOB)["steady/energy_per_sample_j"] == 100 / 400


def test_mean_power_is_all_energy_over_all_energy_windows():
    windows = [
        epoch(0, energy_j=1000.0, energy_window_s=1.0),
        epoch(1, energy_j=30.0, energy_window_s=2.0, power_mean_w=15.0),
        epoch(2, energy_j=90.0, energy_window_s=3.0, power_mean_w=30.0),
    ]
    assert summarize(windows, NO_STEPS, JOB)["steady/power_mean_w"] == pytest.approx(120 / 5)


def test_times_and_energies_and_counts_are_means():
    windows = [epoch(0), *(epoch(n, compute_s=n, energy_gpu0_j=10 * n, samples=7) for n in (1, 2, 6))]
    found = summarize(windows, NO_STEPS, JOB)
    assert (found["steady/compute_s"], found["steady/energy_gpu0_j"], found["steady/samples"]) == (3, 30, 7)


def test_a_peak_is_the_largest_peak():
    windows = [epoch(n, gpu_memory_peak_bytes=peak) for n, peak in enumerate((900, 500, 700))]
    assert summarize(windows, NO_STEPS, JOB)["steady/gpu_memory_peak_bytes"] == 700


def test_percentiles_are_pooled_over_the_steps_of_all_measured_epochs():
    windows = [epoch(0, steps=2), epoch(1, steps=2, step_p50_s=1.0), epoch(2, steps=3, step_p50_s=8.0)]
    rows = steps(50.0, 60.0, 1.0, 1.0, 8.0, 8.0, 8.0)
    found = summarize(windows, rows, JOB)
    assert [found[f"steady/step_p{share}_s"] for share in (50, 95, 99)] == [8.0, 8.0, 8.0]
    assert found["std/step_p50_s"] == pytest.approx(7 / math.sqrt(2))


def test_a_percentile_is_the_nearest_step_that_there_was():
    found = step_percentiles(steps(*range(200, 0, -1)))
    assert found == {"step_p50_s": 100.0, "step_p95_s": 190.0, "step_p99_s": 198.0}


def test_a_step_lasts_from_the_one_before_to_its_own_end_host_waits_aside():
    assert step_percentiles(steps(2.0))["step_p50_s"] == 2.0


def test_where_there_is_no_step_there_are_no_percentiles():
    assert step_percentiles(NO_STEPS) == {}


def test_spread_is_the_standard_deviation_with_n_minus_1():
    found = summarize([epoch(0, e2e_s=99.0), *(epoch(1, e2e_s=e2e_s) for e2e_s in (2.0, 4.0, 9.0))], NO_STEPS, JOB)
    assert found["std/e2e_s"] == pytest.approx(math.sqrt((9 + 1 + 16) / 2))


def test_an_epoch_in_which_the_run_was_paused_is_in_no_steady_value():
    windows = [epoch(0), epoch(1, e2e_s=4.0), {**epoch(2, e2e_s=60.0), "paused": True}]
    assert summarize(windows, NO_STEPS, JOB)["steady/e2e_s"] == 4.0


def test_one_epoch_has_no_spread():
    found = summarize([epoch(0), epoch(1)], NO_STEPS, JOB)
    assert "steady/e2e_s" in found
    assert not [name for name in found if name.startswith("std/")]


def test_rates_and_percentiles_have_a_spread_over_epochs_as_well():
    windows = [epoch(0), epoch(1, samples_per_s=10.0), epoch(2, samples_per_s=14.0)]
    assert summarize(windows, NO_STEPS, JOB)["std/samples_per_s"] == pytest.approx(math.sqrt(8))


def test_energy_that_nothing_metered_stays_absent():
    found = summarize([epoch(n, samples=10) for n in range(3)] + [val(2)], NO_STEPS, JOB)
    assert not [name for name in found if "energy" in name or "power" in name or "edp" in name]


def test_energy_that_one_epoch_lacks_is_absent_from_steady_values_and_totals():
    windows = [epoch(0, energy_j=5.0), epoch(1, energy_j=5.0, samples=1), epoch(2, samples=1)]
    found = summarize(windows, NO_STEPS, JOB)
    assert not [name for name in found if "energy" in name or "power" in name or "edp" in name]


def test_energy_that_the_warm_up_lacks_is_steady_and_has_no_total():
    found = summarize([epoch(0), epoch(1, energy_j=5.0)], NO_STEPS, JOB)
    assert found["steady/energy_j"] == 5.0
    assert "total/energy_j" not in found


def test_totals_are_over_training_and_evaluation():
    windows = [epoch(0, energy_j=20.0), val(0, energy_j=1.0), epoch(1, energy_j=30.0), val(1, energy_j=2.0)]
    assert total_metrics(windows) == {"e2e_s": 22.0, "epochs": 2, "energy_j": 53.0, "edp_js": 53.0 * 22.0}


def test_an_evaluation_without_energy_leaves_the_total_absent():
    assert total_metrics([epoch(0, energy_j=20.0), val(0)]) == {"e2e_s": 11.0, "epochs": 1}


def metered(window, energy_j, seconds, uncertainty_j=2.0, **more):
    """The window with its energy as a term of the total, by a counter that renews its value every 0.1 s."""
    term = {"energy_j": energy_j, "energy_uncertainty_j": uncertainty_j, "period_s": 0.1, "shortest_s": 1.0, **more}
    return {**window, "energy": {"opened_ns": 0, "closed_ns": round(seconds * SECOND), "joules": {}, "term": term}}


def test_a_total_holds_the_energy_of_windows_too_short_to_have_one_of_their_own():
    """At 200 W: epochs of 1.5 s, and evaluations of 30 ms, in which the counter often stands still."""
    windows = []
    for number, counted_j in enumerate((0.0, 20.0, 0.0)):
        windows.append(metered(epoch(number, e2e_s=1.5, energy_j=300.0), 300.0, 1.5, 20.0, net_energy_j=270.0))
        windows.append(metered(val(number, e2e_s=0.03, accuracy=0.9), counted_j, 0.03, 0.0, net_energy_j=counted_j))
    found = summarize(windows, NO_STEPS, replace(JOB, target_accuracy=0.9))
    assert found["total/energy_j"] == 920.0
    assert found["total/net_energy_j"] == 830.0
    assert found["total/edp_js"] == pytest.approx(920.0 * 3 * 1.53)
    assert found["total/energy_to_target_j"] == 300.0
    assert found["total/time_to_target_s"] == 1.53
    mean_w = 920 / (3 * 1.53)
    assert found["total/energy_uncertainty_j"] == pytest.approx(3 * max(20.0, mean_w * 0.1) + 3 * mean_w * 0.1)
    assert no_total_note(windows) == []


@pytest.mark.parametrize(
    ("windows", "reason"),
    [
        ([metered(epoch(0), 20.0, 0.4), metered(epoch(1), 0.0, 0.5)],
         "no total energy: the run lasted 0.9 s, and the energy meter needs 1 s"),
        ([metered(epoch(0), 0.0, 0.9), metered(epoch(1), 0.0, 0.9)],
         "no total energy: the energy counter did not advance"),
        ([metered(epoch(0), 20.0, 4.0), epoch(1), val(1)],
         "no total energy: it was not measured in epoch 2 and 1 more windows"),
    ],
)  # fmt: skip
def test_a_total_that_cannot_be_resolved_is_absent_with_the_reason(windows, reason):
    assert total_metrics(windows).keys() == {"e2e_s", "epochs"}
    assert no_total_note(windows) == [reason]


def test_a_run_without_a_meter_lacks_no_total():
    assert no_total_note([epoch(0), val(0)]) == no_total_note([]) == []


def test_the_total_of_a_resumed_run_is_that_of_all_attempts():
    """The second attempt's counter began anew; what lies between the attempts is in no window."""
    first = [metered(epoch(0), 30.0, 3.0), metered(val(0), 1.0, 0.1)]
    second = [metered(epoch(1), 40.0, 3.0), metered(val(1), 0.0, 0.1)]
    assert total_metrics(first + second)["energy_j"] == 71.0


def test_an_estimate_is_added_up_apart_and_makes_no_energy_delay_product():
    windows = [epoch(0, estimated_energy_j=20.0), val(0, estimated_energy_j=1.0)]
    assert total_metrics(windows) == {"e2e_s": 11.0, "epochs": 1, "estimated_energy_j": 21.0}


def test_the_target_is_reached_by_the_first_evaluation_that_does():
    windows = [
        epoch(0, train_accuracy=1.0, energy_j=20.0),
        val(0, accuracy=0.5, energy_j=1.0),
        epoch(1, train_accuracy=1.0, energy_j=20.0),
        val(1, accuracy=0.9, energy_j=1.0),
        epoch(2, train_accuracy=1.0, energy_j=20.0),
        val(2, accuracy=0.95, energy_j=1.0),
    ]
    assert target_metrics(windows, 0.9, None, evaluate=True) == {
        "time_to_target_s": 22.0,
        "epochs_to_target": 2,
        "energy_to_target_j": 42.0,
    }


def test_without_evaluations_the_epochs_own_figures_decide():
    windows = [epoch(0, train_loss=2.0), epoch(1, train_loss=0.5)]
    assert target_metrics(windows, None, 0.5, evaluate=False) == {"time_to_target_s": 20.0, "epochs_to_target": 2}


def test_where_evaluations_decide_training_alone_reaches_nothing():
    assert target_metrics([epoch(0, train_accuracy=1.0)], 0.9, None, evaluate=True) == {}


def test_a_target_that_is_not_reached_is_absent():
    found = summarize([epoch(0), val(0, accuracy=0.5)], NO_STEPS, replace(JOB, target_accuracy=0.9))
    assert not [name for name in found if "target" in name]


def test_the_way_to_the_target_stands_in_the_summary_as_a_total():
    found = summarize([epoch(0), val(0, accuracy=0.9)], NO_STEPS, replace(JOB, target_accuracy=0.9))
    assert found["total/time_to_target_s"] == 11.0
    assert found["total/epochs_to_target"] == 1


@pytest.mark.parametrize(
    ("accuracy", "loss", "is_reached"),
    [(None, None, False), (0.8, None, True), (0.81, None, False), (None, 0.3, True), (None, 0.29, False),
     (0.8, 0.3, True), (0.8, 0.29, False), (0.81, 0.3, False)],
)  # fmt: skip
def test_every_target_that_is_set_must_be_reached(accuracy, loss, is_reached):
    assert reaches_target(val(0, accuracy=0.8, loss=0.3), accuracy, loss) is is_reached


def test_a_loss_that_is_no_number_reaches_nothing():
    assert not reaches_target(val(0, loss=math.nan), None, 0.3)


def test_an_epoch_that_was_ended_in_part_is_in_the_totals_of_time_alone():
    part = {**epoch(2, e2e_s=1.0, energy_j=1.0, train_loss=0.1), "partial": True}
    windows = [epoch(0, e2e_s=9.0), epoch(1, e2e_s=5.0, energy_j=3.0), part]
    found = summarize(windows, steps(9.0, 2.0, 1.0), replace(JOB, target_loss=0.5))
    assert found["steady/e2e_s"] == 5.0
    assert found["steady/step_p99_s"] == 2.0
    assert found["total/e2e_s"] == 15.0
    assert found["total/epochs"] == 2
    assert "total/epochs_to_target" not in found


def test_a_run_of_a_part_alone_has_nothing_steady():
    found = summarize([{**epoch(0), "partial": True}], steps(1.0), replace(JOB, warmup_epochs=0))
    assert not [name for name in found if not name.startswith("total/")]
    assert found["total/epochs"] == 0


def test_a_run_is_told_of_by_the_windows_that_there_are():
    hot, lost = {"throttled": "hot in epoch 0"}, {"throttled": "hot in epoch 2", "energy_lost": "no VDD_IN"}
    windows = [{**epoch(0), "notes": ["a", "b"], "flags": hot}, epoch(1), {**epoch(2), "notes": ["c"], "flags": lost}]
    assert collect_notes(windows) == ["a", "b", "c"]
    assert collect_flags(windows) == {"throttled": "hot in epoch 0", "energy_lost": "no VDD_IN"}
    assert (collect_notes(windows[:2]), collect_flags(windows[:2])) == (["a", "b"], hot)
    assert (collect_notes([]), collect_flags([])) == ([], {})


@pytest.mark.parametrize(
    ("mean_s", "spread_s", "said"),
    [
        (4.07, 3.6, ["warning: epoch times vary by 88 % (4.07 s, std 3.6 s). Check for other load or "
                     "thermal throttling."]),
        (100.0, 10.0, []),  # no more than an idle machine's
        (0.1, 0.05, []),  # a blink
    ],
)  # fmt: skip
def test_epochs_that_differ_by_more_than_an_idle_machines_do_are_told(mean_s, spread_s, said):
    assert variance_warning({"steady/e2e_s": mean_s, "std/e2e_s": spread_s}) == said


def test_one_epoch_differs_from_none():
    assert variance_warning({"steady/e2e_s": 4.0}) == variance_warning({}) == []
