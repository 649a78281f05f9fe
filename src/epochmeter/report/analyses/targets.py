"""Time and energy to a quality target, and the Pareto front of both.

As in J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training, NSDI
2023. A run that missed its target has neither time nor energy to it; it is counted and excluded. The mean of the other
runs would be too low, as the slow ones are missing: only configurations that reached the target in all runs are ranked.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from epochmeter.report.analyses.best import JOULES, TIMES, Best, find_best
from epochmeter.report.analyses.ratios import Ratios
from epochmeter.report.runs.configuration import (
    Configuration,
    NoEnergy,
    QualityTarget,
    group_repeats,
    no_energy,
    quality_target,
)
from epochmeter.report.runs.costs import ENERGY_TO_TARGET, TIME_TO_TARGET, comparable, costs_to_target, pareto_front
from epochmeter.report.runs.run import Run, grouped
from epochmeter.report.statistics import Estimate


@dataclass(frozen=True)
class TargetResult:
    """A configuration with a target; epochs, time and energy are means over the runs that reached it."""

    title: str
    numbers: Sequence[int]
    reached: Sequence[int]
    epochs: float | None
    time_s: Estimate | None
    energy_j: Estimate | None
    on_front: bool


@dataclass(frozen=True)
class Targets:
    """All configurations of a sweep with one target on one dataset.

    Attributes:
        choices: The fastest and the least energy of those that always reached the target.
        time_ratio: Time of the one with the least energy, as a multiple of the fastest's; None if it is the fastest.
        energy_ratio: Energy of the fastest, as a multiple of the least.
        is_ranked_above: Whether the answer of the same report has the best configurations.
    """

    target: QualityTarget
    dataset: str
    points: Sequence[TargetResult]
    choices: Sequence[Best]
    covers: Sequence[str]
    no_energy: NoEnergy | None
    time_ratio: Estimate | None
    energy_ratio: Estimate | None
    is_ranked_above: bool = False

    @property
    def values(self) -> dict[str, object]:
        points, missing = [asdict(point) for point in self.points], self.no_energy and asdict(self.no_energy)
        choices: dict[str, object] = {choice.name: choice.cost.title for choice in self.choices}
        return {"target": self.target._asdict(), "dataset": self.dataset, "points": points, **choices,
                "covers": self.covers, "no_energy": missing}  # fmt: skip


def analyze(runs: Sequence[Run]) -> list[Targets]:
    """Analyze each target and dataset of the runs."""
    groups = grouped(runs, lambda run: (quality_target(run.job), run.job["dataset"]["name"]))
    return [_analyze(target, dataset, group_repeats(own)) for (target, dataset), own in groups.items() if target]


def _analyze(target: QualityTarget, dataset: str, configurations: Sequence[Configuration]) -> Targets:
    costs = costs_to_target(configurations)
    choices, scopes = find_best(costs)[:2], comparable(costs)
    ranked = {cost.configuration: cost for cost in (*costs, *(choice.cost for choice in choices))}
    front = pareto_front(costs) if len(scopes) == 1 else set()
    points, runs = list[TargetResult](), list[Run]()
    for entry in configurations:
        reached = Configuration([run for run in entry.runs if TIME_TO_TARGET in run.metrics])
        means = [reached.mean(name) for name in (TIME_TO_TARGET, ENERGY_TO_TARGET)]
        time_s, energy_j = (None if value is None else Estimate(value) for value in means)
        if cost := ranked.get(entry):
            time_s, energy_j = cost.time, cost.energy
        epochs = reached.mean("total/epochs_to_target")
        points.append(
            TargetResult(entry.title, entry.numbers, reached.numbers, epochs, time_s, energy_j, entry in front)
        )
        runs += reached.runs
    time_ratio = energy_ratio = None
    if len(scopes) == 1 and choices[0].configuration is not choices[-1].configuration:
        fastest, least = choices[0].configuration, choices[-1].configuration
        time_ratio = Ratios({key: TIMES(cost) for key, cost in ranked.items()}).between(least, fastest)
        energy_ratio = Ratios({key: JOULES(cost) for key, cost in ranked.items()}).between(fastest, least)
    points.sort(key=lambda point: (point.reached != point.numbers, point.time_s.value if point.time_s else math.inf))
    missing = no_energy([Configuration(runs)], ENERGY_TO_TARGET)
    return Targets(target, dataset, points, choices, [*scopes], missing, time_ratio, energy_ratio)
