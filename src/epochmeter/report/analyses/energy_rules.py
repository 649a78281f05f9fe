"""The energy of an epoch by the rules of the edge tutorial, next to the measured energy.

The tutorial adds readings of the power, which its text takes about once per second, and multiplies each by 1 s. Its
sample code takes a reading per step instead, and multiplies these by 1 s as well, however long a step takes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.run import Run
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.shared.record import POWER, is_steady
from epochmeter.shared.record_files import open_file
from epochmeter.shared.units import NANOSECOND

SECOND_NS = round(1 / NANOSECOND)
EXPERIMENTS = "edge/"
TOTAL, METERED = "total_w", "sampled"
INTERVAL_S = 1.0  # between readings, as the tutorial assumes
MAX_BYTES = 2**26  # of a file of power samples, which is read as a whole
MAX_RUNS = 20


@dataclass(frozen=True)
class RuleEnergy:
    """Energy of a run's mean steady epoch, in joules.

    Attributes:
        title: Of its configuration.
        energy_j: As measured: all samples are integrated, from border to border.
        per_second_j: Sum of one reading per second, each times 1 s; None without a reading in each epoch.
        per_step_j: The same with one reading per step: mean power times steps times 1 s.
        step_s: Mean time per step, which this rule takes for 1 s.
    """

    title: str
    number: int
    energy_j: float
    per_second_j: float | None
    per_step_j: float
    step_s: float


@dataclass(frozen=True)
class EnergyRules:
    """The first runs, and the number of others."""

    runs: Sequence[RuleEnergy]
    others: int


def analyze(runs: Sequence[Run]) -> EnergyRules | None:
    """Compute the energies of runs of the edge study, and of boards; None without any that has measured energy."""
    titled = [(configuration.title, run) for configuration in group_repeats(runs) for run in configuration.runs]
    chosen = [(title, run) for title, run in titled if _is_of_study(run)]
    energies = [energy for title, run in chosen[:MAX_RUNS] if (energy := _energy(title, run))]
    return EnergyRules(energies, max(0, len(chosen) - MAX_RUNS)) if energies else None


def _is_of_study(run: Run) -> bool:
    is_board = run.energy_source == METERED and "board" in run.platform
    return is_board or (run.experiment or "").startswith(EXPERIMENTS)


def _energy(title: str, run: Run) -> RuleEnergy | None:
    names = ("energy_j", "power_mean_w", "steps", "e2e_s")
    energy_j, mean_w, steps, e2e_s = (run.steady(name) for name in names)
    if energy_j is None or mean_w is None or not steps or e2e_s is None:
        return None
    per_second_j = _sum_per_second(run) if run.energy_source == METERED else None
    return RuleEnergy(title, run.number, energy_j, per_second_j, mean_w * steps * INTERVAL_S, e2e_s / steps)


def _sum_per_second(run: Run) -> float | None:
    """Return the sum of one reading per second in a steady epoch, times 1 s: the mean over these epochs.

    None without readable samples, and if an epoch has no reading, as a short one may: its sum would be 0.
    """
    if run.folder is None:
        return None
    try:
        epochs = [window for window in RunFolder(run.folder).all_windows if window["window"] == "epoch"]
        readings = list(_readings(run.folder / POWER))
    except READ_ERRORS:
        return None
    spans = [(epoch["opened_ns"], epoch["closed_ns"]) for epoch in epochs
             if is_steady(epoch) and "epoch/energy_j" in epoch["metrics"]]  # fmt: skip
    of_epochs = [[watts for at_ns, watts in readings if first <= at_ns < last] for first, last in spans]
    if not of_epochs or not all(of_epochs):
        return None
    return math.fsum(chain(*of_epochs)) * INTERVAL_S / len(of_epochs)


def _readings(path: Path) -> Iterator[tuple[int, float]]:
    """Yield the first sample of the total power in each second; ValueError if the clock started again in between."""
    begun_ns, second, last_ns = -1, -1, 0
    with open_file(path, MAX_BYTES) as file:
        place = file.readline().decode().rstrip("\n").split(",").index(TOTAL)
        for line in file:
            if not line.endswith(b"\n"):  # it is being written
                break
            cells = line.decode().rstrip("\n").split(",")
            if (at_ns := int(cells[0])) < last_ns:
                raise ValueError("the samples are of several boots")
            begun_ns, last_ns = at_ns if begun_ns < 0 else begun_ns, at_ns
            if len(cells) > place and cells[place] and (of_sample := (at_ns - begun_ns) // SECOND_NS) > second:
                second = of_sample
                yield at_ns, float(cells[place])
