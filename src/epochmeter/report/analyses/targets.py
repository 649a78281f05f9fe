"""Time and energy to a quality target, and the Pareto front of both.

As in J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training, NSDI
2023. A run that missed its target has neither time nor energy to it; it is counted and excluded. The mean of the other
runs would be too low, as the slow ones are missing: only configurations that reached the target in all runs are ranked.
"""

from __future__ import annotations

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
from epochmeter.report.runs.costs import ENERGY_TO_TARGET as ENERGY
from epochmeter.report.runs.costs import TIME_TO_TARGET as TIME
from epochmeter.report.runs.costs import comparable, costs_to_target, pareto_front
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import Estimate

EPOCHS = "total/epochs_to_target"


@dataclass(frozen=True)
class TargetResult:
    """A configuration with a target.

    Attributes:
        reached: Numbers of the runs that reached the target; epochs, time and energy are means over these runs.
    """

    title: str
    numbers: Sequence[int]
    reached: Sequence[int]
    epochs: float | None
    time_s: Estimate | None
    energy_j: Estimate | None
    on_front: bool

    @property
    def always(self) -> bool:
        """Whether all runs reached the target."""
        return len(self.reached) == len(self.numbers)


@dataclass(frozen=True)
class Targets:
    """All configurations of a sweep with one target on one dataset.

    Attributes:
        dataset: Name of the dataset.
        points: Those that always reached the target first, by time.
        choices: The fastest and the least energy of those that always reached the target.
        no_energy: Why some configurations, or all, are not on the front.
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
        """All numbers, as the JSON file has them."""
        return {
            "target": self.target._asdict(),
            "dataset": self.dataset,
            "points": [asdict(point) for point in self.points],
            **{choice.name: choice.cost.title for choice in self.choices},
            "covers": self.covers,
            "no_energy": self.no_energy and asdict(self.no_energy),
        }


def analyze(runs: Sequence[Run]) -> list[Targets]:
    """Analyze each target and dataset of the runs."""
    groups: dict[tuple[QualityTarget, str], list[Run]] = {}
    for run in runs:
        if target := quality_target(run.job):
            groups.setdefault((target, run.job["dataset"]["name"]), []).append(run)
    return [_analyze(*key, group_repeats(group)) for key, group in groups.items()]


def _analyze(target: QualityTarget, dataset: str, configurations: Sequence[Configuration]) -> Targets:
    ranked = {cost.configuration: cost for cost in costs_to_target(configurations)}
    scopes = comparable([*ranked.values()])
    front = pareto_front([*ranked.values()]) if len(scopes) == 1 else set()
    points: list[TargetResult] = []
    reached_runs: list[Run] = []
    for configuration in configurations:
        reached = Configuration([run for run in configuration.runs if TIME in run.metrics])
        reached_runs += reached.runs
        cost = ranked.get(configuration)
        time_s, energy_j = (cost.time, cost.energy) if cost else (_mean(reached, TIME), _mean(reached, ENERGY))
        epochs, on_front = reached.mean(EPOCHS), configuration in front
        title, numbers = configuration.title, configuration.numbers
        points.append(TargetResult(title, numbers, reached.numbers, epochs, time_s, energy_j, on_front))
    choices = find_best(configurations)[:2] if ranked else []
    ratios: tuple[Estimate | None, Estimate | None] = (None, None)
    if len(scopes) == 1 and choices[0].configuration is not choices[-1].configuration:
        fastest, least = choices[0].configuration, choices[-1].configuration
        times, energies = ({key: values(cost) for key, cost in ranked.items()} for values in (TIMES, JOULES))
        ratios = Ratios(times).between(least, fastest), Ratios(energies).between(fastest, least)
    return Targets(
        target,
        dataset,
        points=sorted(points, key=lambda point: (not point.always, point.time_s.value if point.time_s else math.inf)),
        choices=choices,
        covers=[*scopes],
        no_energy=no_energy([Configuration(reached_runs)], ENERGY),
        time_ratio=ratios[0],
        energy_ratio=ratios[1],
    )


def _mean(configuration: Configuration, metric: str) -> Estimate | None:
    value = configuration.mean(metric)
    return None if value is None else Estimate(value)
