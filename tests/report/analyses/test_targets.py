"""Time and energy to a target: the Pareto front, ties, and configurations that are not ranked."""

from dataclasses import replace
from functools import partial

import pytest
import sweeps
from golden import assert_golden
from sweeps import trained

from epochmeter.report.analyses.targets import analyze

reaching = partial(sweeps.reaching, target_accuracy=0.65)
LUCKY = [reaching(n, 10.0 if n == 0 else None, 90.0 if n == 0 else None, seed=n) for n in range(5)]
STEADY = [reaching(5 + n, 60.0 + n, 500.0, batch=128, seed=n, epochs_to_target=3.0 + n) for n in range(2)]
NEAR = [reaching(3 * b + n, 60.0 + b + 4 * n, 500.0 + b + 40 * n, batch=8 + b, seed=n)
        for b in range(5) for n in range(3)]  # fmt: skip
FAR = [reaching(15 + n, 600.0 + 4 * n, 480.0 + 40 * n, batch=99, seed=n) for n in range(3)]
LOSS = {"target_accuracy": None, "target_loss": 0.5}
GOALS = [{}, {"target_accuracy": 0.7}, LOSS, {**LOSS, "evaluate": False}, {"dataset": {"name": "mnist"}}]


def two(energies_j, covers="GPUs used", time_s=100.0):
    """Two configurations; the second one takes 60 s, and its energy has the scope `covers`."""
    first, second = (reaching(n, at_s, energy_j, batch=64 << n)
                     for n, (at_s, energy_j) in enumerate(zip((time_s, 60.0), energies_j, strict=True)))  # fmt: skip
    return [first, replace(second, energy_covers=covers)]


ENERGIES = {
    "slower": two((900.0, 800.0)), "missed": two((None, 800.0), time_s=None), "no joule": two((0.0, 800.0)),
    "no meter": two((None, None), None), "energy of one": two((900.0, None), None),
    "other scopes": two((900.0, 900.0), "module"),
    "energy per epoch only": [reaching(0, 100.0, steady={"energy_j": 50.0})],
}  # fmt: skip
DATASETS = [replace(run, job={**run.job, "dataset": {"name": name}}) for name, own in ENERGIES.items() for run in own]


@pytest.mark.parametrize(
    ("case", "runs"),
    [
        ("", [*NEAR, *FAR]),
        ("several", [*(reaching(number, 1.0, **goal) for number, goal in enumerate(GOALS)), trained(9, 100.0)]),
        ("energies", DATASETS),
        ("partly_reached", [*LUCKY, *STEADY]),
        ("never_always_reached", LUCKY),
        ("not_reached", [reaching(0, None), reaching(1, None, batch=128)]),
        ("single_runs_without_energy", [reaching(0, 100.0), reaching(1, 60.0, batch=128)]),
    ],
)
def test_text(case, runs):
    assert_golden("targets", analyze(runs), case)
    assert analyze([trained(0, 100.0)]) == []
