"""Time and energy to a quality target, and the Pareto front of both.

As in J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training, NSDI
2023. A run that missed its target has neither time nor energy to it; it is counted and excluded. The mean of the other
runs would be too low, as the slow ones are missing: only configurations that reached the target in all runs are ranked.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from epochmeter.report.analyses.best import JOULES, TIMES, Best, Doubt, find_best, find_doubts
from epochmeter.report.analyses.ratios import Ratios, is_adjusted
from epochmeter.report.runs.configuration import (
    Configuration,
    NoEnergy,
    QualityTarget,
    group_repeats,
    no_energy,
    quality_target,
)
from epochmeter.report.runs.costs import (
    ENERGY_TO_TARGET,
    TIME_TO_TARGET,
    comparable,
    costs_to_target,
    pareto_front,
    positive_values,
)
from epochmeter.report.runs.run import Run, grouped
from epochmeter.report.statistics import Estimate, geometric_mean


@dataclass(frozen=True)
class TargetResult:
    """A configuration with a target; means are over the runs that reached it."""

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
        doubts: Why they are not established.
        time_ratio: Time of the one with the least energy, as a multiple of the fastest's; None if it is the fastest.
        energy_ratio: Energy of the fastest, as a multiple of the least.
        is_ranked_above: Whether the answer of the same report has the best configurations.
    """

    target: QualityTarget
    dataset: str
    points: Sequence[TargetResult]
    choices: Sequence[Best]
    doubts: Sequence[Doubt]
    covers: Sequence[str]
    no_energy: NoEnergy | None
    time_ratio: Estimate | None
    energy_ratio: Estimate | None
    is_ranked_above: bool = False

    @property
    def adjusts_ratios(self) -> bool:
        """Whether a ratio differs from the quotient of the two times or energies of the table."""
        fastest, least = (self.choices[end].cost for end in (0, -1))
        return is_adjusted(self.time_ratio, least.time_s, fastest.time_s) or is_adjusted(
            self.energy_ratio, fastest.energy_j, least.energy_j
        )

    @property
    def values(self) -> dict[str, object]:
        points, missing = [asdict(point) for point in self.points], self.no_energy and asdict(self.no_energy)
        choices: dict[str, object] = {choice.name: choice.cost.title for choice in self.choices}
        return {
            "target": self.target._asdict(),
            "dataset": self.dataset,
            "points": points,
            **choices,
            "doubts": [doubt._asdict() for doubt in self.doubts],
            "covers": self.covers,
            "no_energy": missing,
        }


def analyze(runs: Sequence[Run]) -> list[Targets]:
    """Analyze each target and dataset of the runs."""
    groups = grouped(runs, lambda run: (quality_target(run.job), run.value("dataset") or ""))
    return [
        _analyze(target, dataset, group_repeats(of_target)) for (target, dataset), of_target in groups.items() if target
    ]


def _analyze(target: QualityTarget, dataset: str, configurations: Sequence[Configuration]) -> Targets:
    costs = costs_to_target(configurations)
    choices, scopes = find_best(costs)[:2], comparable(costs)
    ranked = {cost.configuration: cost for cost in (*costs, *(choice.cost for choice in choices))}
    front = pareto_front(costs) if len(scopes) == 1 else set()
    points, runs = list[TargetResult](), list[Run]()
    for configuration in configurations:
        reached = Configuration([run for run in configuration.runs if TIME_TO_TARGET in run.metrics])
        every = [positive_values(reached, name) for name in (TIME_TO_TARGET, ENERGY_TO_TARGET)]
        time_s, energy_j = (Estimate(geometric_mean(values)) if values else None for values in every)
        if cost := ranked.get(configuration):
            time_s, energy_j = cost.time, cost.energy
        epochs = reached.mean("total/epochs_to_target")
        points.append(
            TargetResult(
                configuration.title,
                configuration.numbers,
                reached.numbers,
                epochs,
                time_s,
                energy_j,
                configuration in front,
            )
        )
        runs += reached.runs
    time_ratio = energy_ratio = None
    if len(scopes) == 1 and choices[0].configuration is not choices[-1].configuration:
        fastest, least = choices[0].configuration, choices[-1].configuration
        time_ratio = Ratios({key: TIMES(cost) for key, cost in ranked.items()}).between(least, fastest)
        energy_ratio = Ratios({key: JOULES(cost) for key, cost in ranked.items()}).between(fastest, least)
    points.sort(key=lambda point: (point.reached != point.numbers, point.time_s.value if point.time_s else math.inf))
    missing = no_energy([Configuration(runs)], ENERGY_TO_TARGET)
    return Targets(target, dataset, points, choices, find_doubts(costs), [*scopes], missing, time_ratio, energy_ratio)
