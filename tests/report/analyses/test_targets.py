"""Time and energy to a target: the Pareto front, ties, and configurations that are not ranked."""

from dataclasses import replace
from functools import partial

import pytest
import sweeps
from golden import assert_golden
from sweeps import trained

from epochmeter.report.analyses.targets import analyze
from epochmeter.report.runs.configuration import NoEnergy

reaching = partial(sweeps.reaching, target_accuracy=0.65)


def one(runs):
    (result,) = analyze(runs)
    return result


def on_front(result):
    return [point.title for point in result.points if point.on_front]


LUCKY = [reaching(n, 10.0 if n == 0 else None, 90.0 if n == 0 else None, seed=n) for n in range(5)]
STEADY = [reaching(5 + n, 60.0 + n, 500.0, batch=128, seed=n, epochs_to_target=3.0 + n) for n in range(2)]
NEAR = [reaching(3 * b + n, 60.0 + b + 4 * n, 500.0 + b + 40 * n, batch=8 + b, seed=n)
        for b in range(5) for n in range(3)]  # fmt: skip
FAR = [reaching(15 + n, 600.0 + 4 * n, 480.0 + 40 * n, batch=99, seed=n) for n in range(3)]


def test_front_and_ratios_need_comparable_energy_and_two_best():
    for time_s, energy_j in ((60.0, 900.0), (None, None), (100.0, 0.0)):  # slower, missed, unmeasured
        result = one([reaching(0, time_s, energy_j), reaching(1, 60.0, 800.0, batch=128)])
        assert [*(choice.cost.title for choice in result.choices), *on_front(result)] == ["batch 128"] * 3
        assert (result.time_ratio, result.energy_ratio, result.no_energy) == (None, None, None)
        assert (result.points[1].time_s is None) == (time_s is None)
    cases = [
        ((None, None), "GPUs used", [], NoEnergy(2, 2, "no meter here")),
        ((900.0, None), "GPUs used", ["batch 64"], NoEnergy(1, 2, "no meter here")),
        ((900.0, 900.0), "module", [], NoEnergy(0, 2, None, ("GPUs used", "module"))),
    ]
    for energies_j, covers, front, reason in cases:
        first, second = reaching(0, 100.0, energies_j[0]), reaching(1, 60.0, energies_j[1], batch=128)
        result = one([first, replace(second, energy_covers=covers)])
        assert (on_front(result), result.choices[0].cost.title) == (front, "batch 128")
        assert (result.no_energy, result.energy_ratio) == (reason, None)
    assert one([reaching(0, 100.0, steady={"energy_j": 50.0})]).no_energy == NoEnergy(1, 1), "energy per epoch only"


def test_each_target_and_dataset_is_analyzed_separately():
    loss = {"target_accuracy": None, "target_loss": 0.5}
    goals = [{}, {"target_accuracy": 0.7}, loss, {**loss, "evaluate": False}, {"dataset": {"name": "mnist"}}]
    runs = [reaching(number, 1.0, **goal) for number, goal in enumerate(goals)]
    results = analyze([*runs, trained(9, 100.0)])
    assert [(result.dataset, *result.target) for result in results] == [
        ("jpeg", 0.65, None, False), ("jpeg", 0.7, None, False), ("jpeg", None, 0.5, False),
        ("jpeg", None, 0.5, True), ("mnist", 0.65, None, False),
    ]  # fmt: skip
    assert_golden("targets", results[3:], "several")
    assert analyze([trained(0, 100.0)]) == []


@pytest.mark.parametrize(
    ("case", "runs"),
    [
        ("", [*NEAR, *FAR]),
        ("partly_reached", [*LUCKY, *STEADY]),
        ("never_always_reached", LUCKY),
        ("not_reached", [reaching(0, None), reaching(1, None, batch=128)]),
        ("single_runs_without_energy", [reaching(0, 100.0), reaching(1, 60.0, batch=128)]),
    ],
)
def test_text(case, runs):
    assert_golden("targets", analyze(runs), case)
