"""Steady values, standard deviations and totals of scripted windows."""

import math
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from default_jobs import job_of
from golden import assert_text, json_line

from epochmeter.results.summary import (
    collect_flags,
    energy_warning,
    idle_metrics,
    mean_energy_note,
    missed_target_note,
    no_total_note,
    reaches_target,
    step_percentiles,
    summarize,
    summarize_trainings,
    variance_warning,
)

SECOND_NS = 1_000_000_000
JOB = job_of(warmup_epochs=1)
NO_STEPS = array("f")


def window(kind, number, energy_window_s, metrics, keys):
    term = {name: metrics[name] for name in metrics if name.endswith(("energy_j", "uncertainty_j"))}
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


def short_windows():
    """At 200 W: epochs of 1.5 s, and evaluations of 30 ms, in which the counter often does not advance."""
    windows = []
    for number, counted_j in enumerate((0.0, 20.0, 0.0)):
        windows.append(with_term(epoch(number, e2e_s=1.5, energy_j=300.0), 300.0, 1.5, 20.0, net_energy_j=270.0))
        short = val(number, e2e_s=0.03, accuracy=0.9)
        windows.append(with_term(short, counted_j, 0.03, 0.0, net_energy_j=counted_j))
    return windows


NAMED = window("load_data", 0, 50.0, {"e2e_s": 50.0, "energy_j": 9.0}, {})
BOTH = [epoch(0, energy_j=20.0), val(0, energy_j=1.0), epoch(1, energy_j=30.0), val(1, energy_j=2.0)]
THREE = [epoch(0, e2e_s=100.0), epoch(1, e2e_s=4.0), epoch(2, e2e_s=6.0)]
PART = epoch(2, e2e_s=1.0, energy_j=1.0, train_loss=0.1, keys={"partial": True})
RATES = [
    epoch(0, energy_j=1000.0, energy_window_s=1.0),
    epoch(1, samples=100, e2e_s=1.0, samples_per_s=100.0, read_iops=10.0, energy_j=10.0, energy_window_s=2.0,
          compute_s=2, gpu_memory_peak_bytes=6),
    epoch(2, samples=300, e2e_s=4.0, samples_per_s=75.0, read_iops=20.0, energy_j=90.0, energy_window_s=3.0,
          compute_s=4, gpu_memory_peak_bytes=5),
]  # fmt: skip
RATES[1]["metrics"]["rank_max/compute_s"] = 6.0
TIMES = [epoch(0, e2e_s=99.0), *(epoch(1, e2e_s=e2e_s) for e2e_s in (2.0, 4.0, 9.0))]
EVALUATED = [line for number, accuracy in enumerate((0.5, 0.9, 0.95)) for line in (
    epoch(number, train_accuracy=1.0, energy_j=20.0), val(number, accuracy=accuracy, energy_j=1.0))]  # fmt: skip
STEPPED = [epoch(0, steps=2), epoch(1, steps=2, step_p50_s=1.0), epoch(2, steps=3, step_p50_s=8.0)]
CASES = {
    "training and evaluation": {"windows": BOTH},
    "windows that a script has named": {"windows": [NAMED, *BOTH, NAMED]},
    "estimated": {"windows": [epoch(0, estimated_energy_j=20.0), val(0, estimated_energy_j=1.0)]},
    "a warm-up": {"windows": THREE},
    "no warm-up": {"windows": THREE, "warmup_epochs": 0},
    # An epoch that was resumed or paused is not steady.
    **{key: {"windows": [*THREE[:2], epoch(2, e2e_s=50.0, keys={key: True}), epoch(3, e2e_s=6.0)],
             "steps": steps(100.0, 4.0, 50.0, 6.0)} for key in ("warmup", "paused")},
    "partial epoch": {"windows": [epoch(0, e2e_s=9.0), epoch(1, e2e_s=5.0, energy_j=3.0), PART],
                      "steps": steps(9.0, 2.0, 1.0), "target_loss": 0.5},
    "partial epoch alone": {"windows": [PART], "steps": steps(1.0), "warmup_epochs": 0},
    # Rates are ratios of sums: 400 / 5 samples/s, (10 + 80) / 5 reads/s, 100 / 400 J per sample, 100 / 5 W.
    "rates": {"windows": RATES},
    "deviation": {"windows": TIMES},  # sqrt((9 + 1 + 16) / 2)
    "one steady epoch": {"windows": TIMES[:2]},
    "percentiles of steady epochs": {"windows": STEPPED, "steps": steps(50.0, 60.0, 1.0, 1.0, 8.0, 8.0, 8.0)},
    "no meter": {"windows": [*(epoch(n, samples=10) for n in range(3)), val(2)]},
    # The first steady epoch has 1 W, so the mean of 15 s is 15 J, with 4 samples; there is no other gap.
    "an epoch without energy": {"windows": [epoch(0, energy_j=9.0), epoch(1, energy_j=10.0, samples=2, gap=1.0, x=1.0,
                                                                          power_samples=7, power_capped_fraction=0.5,
                                                                          co2e_g=4.0),
                                            epoch(2, e2e_s=20.0, samples=6, x=3.0)]},
    "an epoch without an estimate": {"windows": [epoch(0, estimated_energy_j=9.0), epoch(1, estimated_energy_j=10.0),
                                                 epoch(2)]},
    "energy in few epochs": {"windows": [epoch(0), epoch(1, energy_j=5.0), epoch(2), epoch(3)]},
    "a warm-up without energy": {"windows": [epoch(0), epoch(1, energy_j=5.0)]},
    "an evaluation without energy": {"windows": [epoch(0, energy_j=20.0), val(0)]},
    # 920 J in 3 x 1.53 s. Uncertainties: 3 x max(20 J, mean power x 0.1 s), and 3 x mean power x 0.1 s.
    "windows too short for their own energy": {"windows": short_windows(), "target_accuracy": 0.9},
    # Three windows of 100 J in 2 s: the uncertainties of the energy, 3 x 10 J, and of the idle power, 2 W x 6 s.
    "net energy": {"windows": [with_term(epoch(n), 100.0, 2.0, 10.0, net_energy_j=40.0, idle_uncertainty_j=4.0)
                               for n in range(3)]},
    "net energy, if the idle power is not certain": {
        "windows": [with_term(epoch(0), 100.0, 2.0, 10.0, net_energy_j=40.0)]},
    "too short in total": {"windows": [with_term(epoch(0), 20.0, 0.4), with_term(epoch(1), 0.0, 0.5)]},
    "counter that did not advance": {"windows": [with_term(epoch(n), 0.0, 0.9) for n in range(2)]},
    "two windows without energy": {"windows": [with_term(epoch(0), 20.0, 4.0), epoch(1), val(1)]},
    "target": {"windows": EVALUATED, "target_accuracy": 0.9},
    "target with an estimate": {"windows": [epoch(0, estimated_energy_j=20.0),
                                            val(0, accuracy=0.95, estimated_energy_j=1.0)], "target_accuracy": 0.9},
    "target that is not reached": {"windows": EVALUATED, "target_accuracy": 0.99},
    "target while training": {"windows": [epoch(0, train_loss=2.0), epoch(1, train_loss=0.5)], "target_loss": 0.5,
                              "evaluate": False},
}  # fmt: skip


def test_summaries_have_the_metrics_and_the_note_on_energy_of_the_golden_file():
    lines = []
    for name, case in CASES.items():
        changed = {key: value for key, value in case.items() if key not in ("windows", "steps")}
        job = replace(JOB, **changed)
        metrics = summarize(case["windows"], case.get("steps", NO_STEPS), job)
        notes = [*mean_energy_note(case["windows"], job.warmup_epochs), *no_total_note(case["windows"])]
        lines += [name, f"    {json_line(metrics)}", *(f"    {note}" for note in notes)]
    assert_text(Path(__file__).parent / "golden" / "summaries.txt", "\n".join([*lines, ""]))


def test_losses_and_accuracies_are_those_of_the_last_epoch():
    """A mean over epochs would be of no model."""
    windows = [epoch(number, train_loss=1.0 / (1 + number), train_accuracy=number / 4) for number in range(4)]
    metrics = summarize(windows, NO_STEPS, JOB)
    assert (metrics["steady/train_loss"], metrics["steady/train_accuracy"]) == (0.25, 0.75)
    assert not {"std/train_loss", "std/train_accuracy"} & metrics.keys()


@pytest.mark.parametrize("unmetered", [(), (1,), (2,), (1, 4)])
def test_mean_energy_at_constant_power_is_in_proportion_to_the_mean_time(unmetered):
    """Two runs at 7.24 W, of which the second takes 0.695 times the time: it needs 0.695 times the energy."""

    def energies(scale, unmetered):
        epochs = []
        for number, e2e_s in enumerate((30.0, 8.0, 10.0, 14.0, 12.0)):
            seconds = scale * e2e_s
            joules = {"energy_j": 7.24 * seconds, "energy_cpu0_j": 5.0 * seconds, "cost": 0.01 * seconds,
                      "energy_uncertainty_j": 0.1 * seconds}  # fmt: skip
            known = {} if number in unmetered else joules
            epochs.append(epoch(number, e2e_s=seconds, samples=e2e_s, energy_window_s=seconds, **known))
        metrics = summarize(epochs, NO_STEPS, JOB)
        assert metrics.get("steady/energy_epochs") == (4 - len(unmetered) if unmetered else None)
        assert metrics["steady/power_mean_w"] == pytest.approx(7.24)
        return {name.partition("/")[2]: value for name, value in metrics.items() if name.startswith("steady/")}

    before, after = energies(1.0, ()), energies(0.695, unmetered)
    assert after["e2e_s"] == pytest.approx(0.695 * before["e2e_s"])
    for name in ("energy_j", "energy_cpu0_j", "cost", "energy_uncertainty_j", "energy_per_sample_j"):
        assert after[name] == pytest.approx(0.695 * before[name]), name


def test_uncertainty_of_net_energy_includes_the_change_of_the_idle_power():
    """Of 600 J, 400 J are those of 50 W at idle. An idle power of 53 W afterwards, 6 % more, would be 24 J more."""
    metrics = {"total/energy_j": 600.0, "total/net_energy_j": 200.0, "total/net_energy_uncertainty_j": 7.0}
    before, after = ({"power_w": power_w, "uncertainty_w": 0.5} for power_w in (50.0, 53.0))
    powers = {"total/idle_power_w": 50.0, "total/idle_power_uncertainty_w": 0.5}
    assert idle_metrics(metrics, {"before": before}) == powers
    powers |= {"total/idle_power_after_w": 53.0, "total/idle_power_after_uncertainty_w": 0.5}
    known = idle_metrics(metrics, {"before": before, "after": after})
    assert known == powers | {"total/net_energy_uncertainty_j": pytest.approx(25.0)}
    assert idle_metrics({}, {"before": before, "after": after}) == powers
    assert idle_metrics(metrics, {}) == {}


def test_percentiles_are_by_nearest_rank_without_host_wait():
    percentiles = step_percentiles(steps(*range(200, 0, -1)))
    assert percentiles == {"step_p50_s": 100.0, "step_p95_s": 190.0, "step_p99_s": 198.0}
    assert step_percentiles(NO_STEPS) == {}


def test_every_configured_target_must_be_reached():
    reached = {(None, None): False, (0.8, None): True, (None, 0.3): True, (0.8, 0.29): False, (0.81, 0.3): False}
    for (accuracy, loss), is_reached in reached.items():
        job = replace(JOB, target_accuracy=accuracy, target_loss=loss)
        assert reaches_target(val(0, accuracy=0.8, loss=0.3), job) is is_reached
        assert not reaches_target(val(0, loss=math.nan), job)
        assert not reaches_target({**val(0, accuracy=0.8, loss=0.3), "partial": True}, job)
        assert not reaches_target(epoch(0, train_accuracy=1.0, train_loss=0.1), job)


def test_missed_target_is_noted_with_the_best_values():
    windows = [epoch(0, train_accuracy=1.0, train_loss=0.1), val(0, accuracy=0.7, loss=0.3)]
    windows += [val(1, accuracy=0.75, loss=math.nan), val(2, accuracy=0.6, loss=0.29)]
    for targets, best in (
        ({"target_accuracy": 0.8}, "(accuracy 80.0 %): highest accuracy 75.0 %"),
        ({"target_loss": 0.2}, "(loss 0.2): lowest loss 0.29"),
        (
            {"target_accuracy": 0.7, "target_loss": 0.2},
            "(accuracy 70.0 %, loss 0.2): highest accuracy 75.0 %, lowest loss 0.29",
        ),
    ):
        notes = missed_target_note(windows, replace(JOB, **targets))
        assert notes == [f"target not reached in 3 epochs {best}"]
    one = missed_target_note(windows[:2], replace(JOB, target_accuracy=0.8))
    assert one == ["target not reached in 1 epoch (accuracy 80.0 %): highest accuracy 70.0 %"]
    for job in (JOB, replace(JOB, target_accuracy=0.7)):
        assert missed_target_note(windows, job) == []


def test_flags_have_their_first_text_and_large_variation_of_epoch_times_is_a_warning():
    hot, lost = {"throttled": "hot in epoch 0"}, {"throttled": "hot in epoch 2", "energy_lost": "no VDD_IN"}
    windows = [epoch(0, keys={"flags": hot}), epoch(1), epoch(2, keys={"flags": lost})]
    assert collect_flags(windows) == {"throttled": "hot in epoch 0", "energy_lost": "no VDD_IN"}
    (warning,) = variance_warning({"steady/e2e_s": 4.07, "std/e2e_s": 3.6})
    assert "88 %" in warning
    (warning,) = variance_warning({"steady/e2e_s": 0.8, "std/e2e_s": 0.2, "steady/steps": 36.7, "std/steps": 5.8})
    assert "(36.7, std 5.8)" in warning
    for mean_s, std_s in ((100.0, 10.0), (0.1, 0.05)):  # as on an idle machine; very short epochs
        assert variance_warning({"steady/e2e_s": mean_s, "std/e2e_s": std_s}) == []


def test_contradictory_energies_are_a_warning_with_the_first_ones():
    texts = ["", "epoch 2: gpu0_sampled measured 9 J", "", "epoch 4: more"]
    windows = [epoch(n, keys={"flags": {"energy_disagrees": text}} if text else {}) for n, text in enumerate(texts)]
    (warning,) = energy_warning(windows)
    assert warning.startswith("warning: energies disagree. epoch 2: gpu0_sampled measured 9 J, and 1 more windows.")
    assert energy_warning(windows[:1]) == []


def test_means_of_several_trainings_are_those_of_each_and_totals_are_sums_over_all():
    times = ((0, 0, 9.0), (1, 0, 2.0), (2, 0, 4.0), (3, 1, 8.0), (4, 1, 1.0))
    windows = [
        epoch(number, e2e_s=e2e_s, energy_j=10 * e2e_s, keys={"training": training, "warmup": number == 3})
        for number, training, e2e_s in times
    ]
    windows.insert(3, {**val(2), "training": 0})
    rows = steps(9.0, 2.0, 4.0, 8.0, 1.0)
    metrics = summarize(windows, rows, JOB)
    assert {name.partition("/")[0] for name in metrics} == {"total"}
    assert (metrics["total/epochs"], metrics["total/e2e_s"]) == (5, 25.0)
    first, second = summarize_trainings(windows, rows, JOB)
    assert first == summarize(windows[:4], rows[:12], JOB)
    assert (first["steady/e2e_s"], first["steady/step_p99_s"], first["total/e2e_s"]) == (3.0, 4.0, 16.0)
    assert (second["steady/e2e_s"], second["steady/step_p99_s"], second["total/epochs"]) == (1.0, 1.0, 2)
    assert summarize(windows[:4], rows[:12], JOB) == summarize_trainings(windows[:4], rows[:12], JOB)[0]
