"""Time and energy to a quality target, and the Pareto front of both.

As in J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training, NSDI
2023. A run that missed its target has neither time nor energy to it; it is counted and excluded. The mean of the other
runs would be too low, as the slow ones are missing: only configurations that reached the target in all runs are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import Configuration, group_repeats, quality_target, ratio_of, titles
from epochmeter.report.runs.costs import ENERGY_TO_TARGET as ENERGY
from epochmeter.report.runs.costs import TIME_TO_TARGET as TIME
from epochmeter.report.runs.costs import positive_values
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import Estimate, indistinguishable_from_best, positive_means
from epochmeter.report.words import ABSENT, Grid, number, plain_values, spread, times
from epochmeter.results.pareto import is_pareto_front

EPOCHS = "total/epochs_to_target"
MAX_NAMED = 3
"""Configurations that are named in a sentence; further ones are counted."""
TOO_SHORT = "a window up to the target, such as an evaluation, was too short for the meter"
"""Why there is no energy to the target although there is energy per epoch."""


@dataclass(frozen=True)
class TargetResult:
    """A configuration with a target.

    Attributes:
        numbers: Numbers of its runs.
        reached: Numbers of the runs that reached the target.
        epochs: Mean number of epochs of those runs.
        time_s: Mean time of those runs.
        energy_j: Mean energy of those runs.
        on_front: Whether it is on the Pareto front of time and energy.
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

    @property
    def share(self) -> str:
        """`1 of 5`."""
        return f"{len(self.reached)} of {len(self.numbers)}"


@dataclass(frozen=True)
class Targets:
    """All configurations of a sweep with one target on one dataset.

    Attributes:
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


def targets(runs: Sequence[Run]) -> list[Targets]:
    """Analyze each target and dataset of the runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if goal := quality_target(run.job):
            groups.setdefault(f"{run.job['dataset']['name']}, {goal}", []).append(run)
    return [_analyze(title, group) for title, group in groups.items()]


def sentences(result: Targets) -> list[str]:
    """Return the sentences on one target, the answer first."""
    reached = [point for point in result.points if point.reached]
    runs = sum(len(point.numbers) for point in result.points)
    missed = runs - sum(len(point.reached) for point in result.points)
    if not reached:
        return [f"{result.title}: none of {runs} runs reached it. Give more epochs, or another target."]
    texts = [f"{result.title}: {_answer(result)}"]
    if some := [point for point in reached if not point.always]:
        texts.append(_partial(some))
    if result.fastest != result.least and result.least and result.time_ratio and result.energy_ratio:
        texts.append(_trade_off(result.time_ratio, result.energy_ratio))
    if missed:
        texts.append(f"{missed} of {runs} runs missed it and are excluded: they have no time or energy to it.")
    if result.no_energy:
        lead = "Some are not on the front" if result.covers else "No energy to the target, and no front"
        texts.append(f"{lead}: {result.no_energy.rstrip('.')}.")
    if all(len(point.reached) < 2 for point in reached):
        texts.append("No intervals, as no configuration reached it more than once: seed=0,1,2 gives them.")
    return texts


def page(runs: Sequence[Run]) -> Page | None:
    """Return the page of all targets; None without any."""
    results = targets(runs)
    if not results:
        return None
    sections = [Section(sentences(result), [grid(result)]) for result in results]
    numbers = sorted(run for result in results for point in result.points for run in point.numbers)
    return Page("targets", "Time and energy to target", sections, plain_values(results), numbers)


def grid(result: Targets) -> Grid:
    """Return the table of configurations, those that always reached the target first, by time."""
    rows = []
    for point in sorted(result.points, key=_rank):
        reached = ("yes" if point.reached else "no") if len(point.numbers) == 1 else point.share
        cells = [spread(value) if value else ABSENT for value in (point.time_s, point.energy_j)]
        runs = ", ".join(map(str, point.numbers))
        rows.append([point.title, runs, reached, number(point.epochs), *cells, "front" if point.on_front else ""])
    energy = f"J ({result.covers})" if result.covers else "J"
    columns = ["configuration", "runs", "reached", "epochs", "s", energy, "Pareto"]
    return Grid("Configurations, the fastest first", columns, rows)


def _analyze(title: str, runs: Sequence[Run]) -> Targets:
    points = group_repeats(runs)
    names = titles(points)
    reached = {name: _reached(point) for name, point in zip(names, points, strict=True)}
    successes = {name: Configuration(kept) for name, kept in reached.items() if kept}
    every = [run for kept in reached.values() for run in kept]
    covers = {str(run.energy_covers) for run in every if ENERGY in run.metrics}
    is_comparable = len(covers) == 1
    mean_times, mean_energies = _means(TIME, successes), _means(ENERGY, successes) if is_comparable else {}
    results = [
        TargetResult(
            title=name,
            numbers=point.numbers,
            reached=[run.number for run in reached[name]],
            epochs=successes[name].mean(EPOCHS) if name in successes else None,
            time_s=mean_times.get(name),
            energy_j=mean_energies.get(name),
        )
        for name, point in zip(names, points, strict=True)
    ]
    ranked = [result for result in results if result.always and result.time_s]
    times_s = {result.title: result.time_s.value for result in ranked if result.time_s}
    costs = {
        result.title: (result.energy_j.value, result.time_s.value)
        for result in ranked
        if result.energy_j and result.time_s
    }
    on_front = {name for name, on in zip(costs, is_pareto_front(costs.values()), strict=True) if on}
    # Ties in time are ranked by energy, and the other way round.
    fastest = min(times_s, key=lambda name: (times_s[name], costs.get(name, (math.inf,))[0])) if times_s else None
    least = min(costs, key=lambda name: costs[name]) if costs else None
    differ = bool(least and fastest and least != fastest)
    frugal, fast = (successes[name] if differ and name else None for name in (least, fastest))
    return Targets(
        title=title,
        points=[replace(result, on_front=result.title in on_front) for result in results],
        covers=covers.pop() if is_comparable else None,
        no_energy=_no_energy(every),
        fastest=fastest,
        least=least,
        not_significantly_slower=_ties(TIME, fastest, times_s, successes),
        not_significantly_more_energy=_ties(ENERGY, least, costs, successes),
        time_ratio=ratio_of(TIME, frugal, fast) if frugal and fast else None,
        energy_ratio=ratio_of(ENERGY, fast, frugal) if frugal and fast else None,
    )


def _means(metric: str, points: Mapping[str, Configuration]) -> dict[str, Estimate]:
    """Return the mean of each configuration that has the metric, with intervals from all of them."""
    values = {name: point.values(metric) for name, point in points.items() if point.values(metric)}
    return dict(zip(values, positive_means([*values.values()]), strict=True))


def _ties(metric: str, best: str | None, names: Iterable[str], points: Mapping[str, Configuration]) -> list[str]:
    """Return the titles of those that are not significantly different from the best."""
    measured = {name: values for name in names if (values := positive_values(points[name], metric))}
    if best is None or best not in measured:
        return []
    rounds = [[run.round for run in points[name].runs] for name in measured]
    is_tie = indistinguishable_from_best([*measured.values()], [*measured].index(best), rounds)
    return [name for name, tied in zip(measured, is_tie, strict=True) if tied and name != best]


def _reached(point: Configuration) -> list[Run]:
    return [run for run in point.runs if TIME in run.metrics]


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


def _answer(result: Targets) -> str:
    points = {point.title: point for point in result.points}
    ties = _also("slower", result.not_significantly_slower)
    ties += _also("more energy", result.not_significantly_more_energy)
    if result.fastest and result.fastest == result.least:
        cost = _cost(points[result.fastest])
        return f"{result.fastest} is the fastest and needs the least energy: {cost}.{ties}"
    if not result.fastest:
        return "no configuration reached it in all of its runs, so none is ranked."
    texts = [f"the fastest is {result.fastest}: {_cost(points[result.fastest])}"]
    texts += [f"the least energy has {result.least}: {_cost(points[result.least])}"] if result.least else []
    return f"{'; '.join(texts)}.{ties}"


def _also(worse: str, titles: Sequence[str]) -> str:
    more = [f"{len(titles) - MAX_NAMED} more"] if len(titles) > MAX_NAMED else []
    return f" Not significantly {worse}: {'; '.join([*titles[:MAX_NAMED], *more])}." if titles else ""


def _rank(point: TargetResult) -> tuple[bool, bool, float]:
    return not point.always, not point.time_s, point.time_s.value if point.time_s else 0.0


def _partial(some: Sequence[TargetResult]) -> str:
    texts = [f"{point.title} ({point.share} runs, {_cost(point)})" for point in some[:MAX_NAMED]]
    more = [f"{len(some) - MAX_NAMED} more"] if len(some) > MAX_NAMED else []
    return f"Not ranked, as only some of their runs reached it: {'; '.join([*texts, *more])}."


def _cost(point: TargetResult) -> str:
    time_s = f"{spread(point.time_s)} s" if point.time_s else ABSENT
    return f"{time_s}, {spread(point.energy_j)} J" if point.energy_j else time_s


def _trade_off(time: Estimate, energy: Estimate) -> str:
    equal = [name for name, ratio in {"time": time, "energy": energy}.items() if ratio.contains(1)]
    more = f"; no significant difference in {' and '.join(equal)}" if equal else ""
    return f"The fastest needs {times(energy)} the least energy; the other needs {times(time)} the least time{more}."
