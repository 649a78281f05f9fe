"""Time and energy to a quality target, and the Pareto front of both.

As in J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training, NSDI
2023. A run that missed its target has neither time nor energy to it; it is counted and excluded. The mean of the other
runs would be too low, as the slow ones are missing: only configurations that reached the target in all runs are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from epochmeter.report.pages import Page
from epochmeter.report.runs.configuration import Configuration, group_repeats, quality_target, ratio_of, titles
from epochmeter.report.runs.costs import ENERGY_TO_TARGET as ENERGY
from epochmeter.report.runs.costs import TIME_TO_TARGET as TIME
from epochmeter.report.runs.costs import positive_values
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import Estimate, indistinguishable_from_best, positive_means
from epochmeter.results.pareto import is_pareto_front

EPOCHS = "total/epochs_to_target"
TOO_SHORT = "a window up to the target, such as an evaluation, was too short for the meter"
"""Why there is no energy to the target although there is energy per epoch."""


@dataclass(frozen=True)
class TargetResult:
    """A configuration with a target.

    Attributes:
        reached: Numbers of the runs that reached the target.
        epochs: Mean number of epochs of those runs.
        time_s: Mean time of those runs.
        energy_j: Mean energy of those runs.
    """

    title: str
    numbers: Sequence[int]
    reached: Sequence[int]
    epochs: float | None
    time_s: Estimate | None
    energy_j: Estimate | None
    on_front: bool = False

    @property
    def always(self) -> bool:
        """Whether all runs reached the target."""
        return len(self.reached) == len(self.numbers)


@dataclass(frozen=True)
class Targets:
    """All configurations of a sweep with one target on one dataset.

    Attributes:
        points: Those that always reached the target first, by time.
        covers: What the energy includes; None if no energies can be compared.
        no_energy: Why some configurations, or all, are not on the front.
        fastest: Title of the fastest of those that always reached the target.
        least: Title of the one with the least energy among them.
        not_significantly_slower: Titles of those that are not significantly slower than the fastest.
        not_significantly_more_energy: Titles of those that do not need significantly more than the least energy.
        time_ratio: Time of the one with the least energy, as a multiple of the fastest's.
        energy_ratio: Energy of the fastest, as a multiple of the least.
    """

    title: str
    points: Sequence[TargetResult]
    covers: str | None
    no_energy: str | None
    fastest: str | None
    least: str | None
    not_significantly_slower: Sequence[str]
    not_significantly_more_energy: Sequence[str]
    time_ratio: Estimate | None
    energy_ratio: Estimate | None

    def point(self, title: str) -> TargetResult:
        """Return the configuration with a title."""
        return next(point for point in self.points if point.title == title)


def analyze(runs: Sequence[Run]) -> list[Targets]:
    """Analyze each target and dataset of the runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if goal := quality_target(run.job):
            groups.setdefault(f"{run.job['dataset']['name']}, {goal}", []).append(run)
    return [_analyze(title, group_repeats(group)) for title, group in groups.items()]


def page(runs: Sequence[Run]) -> Page | None:
    """Return the page of all targets; None without any."""
    results = analyze(runs)
    if not results:
        return None
    numbers = sorted(number for result in results for point in result.points for number in point.numbers)
    values = [asdict(entry) for entry in results]
    return Page("targets", "Time and energy to target", results=results, values=values, numbers=numbers)


def _analyze(title: str, configurations: Sequence[Configuration]) -> Targets:
    successes = [Configuration([run for run in every.runs if TIME in run.metrics]) for every in configurations]
    reached = [run for success in successes for run in success.runs]
    covers = {str(run.energy_covers) for run in reached if ENERGY in run.metrics}
    is_comparable = len(covers) == 1
    points = [
        TargetResult(
            title=name,
            numbers=configuration.numbers,
            reached=success.numbers,
            epochs=success.mean(EPOCHS),
            time_s=time_s,
            energy_j=energy_j if is_comparable else None,
        )
        for name, configuration, success, time_s, energy_j in zip(
            titles(configurations), configurations, successes, _means(TIME, successes), _means(ENERGY, successes),
            strict=True,
        )
    ]  # fmt: skip
    times_s = {index: point.time_s.value for index, point in enumerate(points) if point.always and point.time_s}
    energies_j = {index: energy_j.value for index in times_s if (energy_j := points[index].energy_j)}
    is_on_front = is_pareto_front((energy_j, times_s[index]) for index, energy_j in energies_j.items())
    front = {index for index, kept in zip(energies_j, is_on_front, strict=True) if kept}
    # Ties in time are ranked by energy, and the other way round.
    fastest = min(times_s, key=lambda index: (times_s[index], energies_j.get(index, math.inf)), default=None)
    least = min(energies_j, key=lambda index: (energies_j[index], times_s[index]), default=None)
    ratios: tuple[Estimate | None, Estimate | None] = (None, None)
    if fastest is not None and least is not None and fastest != least:
        fast, frugal = successes[fastest], successes[least]
        ratios = ratio_of(TIME, frugal, fast), ratio_of(ENERGY, fast, frugal)
    return Targets(
        title=title,
        points=sorted((replace(point, on_front=index in front) for index, point in enumerate(points)), key=_rank),
        covers=covers.pop() if is_comparable else None,
        no_energy=_no_energy(reached),
        fastest=None if fastest is None else points[fastest].title,
        least=None if least is None else points[least].title,
        not_significantly_slower=[points[index].title for index in _ties(TIME, fastest, times_s, successes)],
        not_significantly_more_energy=[points[index].title for index in _ties(ENERGY, least, energies_j, successes)],
        time_ratio=ratios[0],
        energy_ratio=ratios[1],
    )


def _means(metric: str, configurations: Sequence[Configuration]) -> list[Estimate | None]:
    """Return the mean of each configuration that has the metric, with intervals from all of them."""
    samples = [configuration.values(metric) for configuration in configurations]
    means = iter(positive_means([values for values in samples if values]))
    return [next(means) if values else None for values in samples]


def _ties(metric: str, best: int | None, ranked: Iterable[int], configurations: Sequence[Configuration]) -> list[int]:
    """Return the indices of those that are not significantly different from the best."""
    samples = {index: values for index in ranked if (values := positive_values(configurations[index], metric))}
    if best not in samples:
        return []
    rounds = [[run.round for run in configurations[index].runs] for index in samples]
    is_tie = indistinguishable_from_best([*samples.values()], [*samples].index(best), rounds)
    return [index for index, tied in zip(samples, is_tie, strict=True) if tied and index != best]


def _no_energy(reached: Sequence[Run]) -> str | None:
    """Return why not all runs that reached the target can be compared by energy; None if they can."""
    without = [run for run in reached if ENERGY not in run.metrics]
    covers = sorted({str(run.energy_covers) for run in reached if ENERGY in run.metrics})
    if len(covers) > 1:
        return f"it covers different things: {', '.join(covers)}"
    if not without:
        return None
    why = next((run.no_energy for run in without if run.no_energy), TOO_SHORT)
    return f"{len(without)} of {len(reached)} runs that reached it measured none: {why}"


def _rank(point: TargetResult) -> tuple[bool, bool, float]:
    return not point.always, not point.time_s, point.time_s.value if point.time_s else 0.0
