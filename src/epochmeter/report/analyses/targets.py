"""Time and energy to a target: the points of a sweep, and which of them none other betters in both.

After J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training,
NSDI 2023. A run that never reached its target has neither time nor energy to it: it is counted, and left out. The mean
of those that did says nothing of how long the job takes, as the slow ones are not in it: a job stands beside others,
and may be the best, only if each of its runs reached its target.
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
NAMED = 3
"""So many jobs that reached it in some of their runs are named."""
TOO_SHORT = "a window up to the target, such as an evaluation, was too short for the meter"
"""Why there is no energy to it where there is one of an epoch."""


@dataclass(frozen=True)
class TargetResult:
    """A job that was to reach a target: how often it did, and what that took in the mean of the runs that did."""

    title: str
    numbers: Sequence[int]
    reached: Sequence[int]
    """Numbers of the runs that did."""
    epochs: float | None
    time_s: Estimate | None
    energy_j: Estimate | None
    on_front: bool = False

    @property
    def always(self) -> bool:
        """Whether each of its runs reached it."""
        return len(self.reached) == len(self.numbers)

    @property
    def share(self) -> str:
        """`1 of 5`."""
        return f"{len(self.reached)} of {len(self.numbers)}"


@dataclass(frozen=True)
class Targets:
    """All jobs of a sweep that were to reach one target on one dataset."""

    title: str
    points: Sequence[TargetResult]
    covers: str | None
    """What the energy is that of; None where there is none that can be compared."""
    no_energy: str | None
    """Why jobs that reached it are not on the front, or none is."""
    fastest: str | None
    """The title of the fastest of the jobs that always reached it; None where there is none."""
    least: str | None
    """The same of the one that took the least energy."""
    not_significantly_slower: Sequence[str]
    """The titles of those that are not told apart from the fastest."""
    not_significantly_more_energy: Sequence[str]
    """The same of the one that took the least energy."""
    time_ratio: Estimate | None
    """Time of the one of the least energy, as a multiple of the fastest's."""
    energy_ratio: Estimate | None
    """Energy of the fastest, as a multiple of the least."""


def targets(rows: Sequence[Run]) -> list[Targets]:
    """One for each target and dataset; rows ended, and had an epoch after their warm-up or reached it before."""
    groups: dict[str, list[Run]] = {}
    for row in rows:
        if asked := quality_target(row.job):
            groups.setdefault(f"{row.job['dataset']['name']}, {asked}", []).append(row)
    return [_told(title, group) for title, group in groups.items()]


def sentences(told: Targets) -> list[str]:
    """What is said of one target, the answer first."""
    reached = [point for point in told.points if point.reached]
    lost = sum(len(point.numbers) - len(point.reached) for point in told.points)
    every = sum(len(point.numbers) for point in told.points)
    if not reached:
        return [f"{told.title}: none of {every} runs reached it. Give more epochs, or another target."]
    said = [f"{told.title}: {_answer(told)}"]
    if some := [point for point in reached if not point.always]:
        said.append(_sometimes(some))
    if told.fastest != told.least and told.least and told.time_ratio and told.energy_ratio:
        said.append(_trade(told.time_ratio, told.energy_ratio))
    if lost:
        said.append(f"{lost} of {every} runs never reached it: they have no time or energy to it, and are left out.")
    if told.no_energy:
        lacks = "Some have no place among the others" if told.covers else "No energy to it, and so no front"
        said.append(f"{lacks}: {told.no_energy.rstrip('.')}.")
    if all(len(point.reached) < 2 for point in reached):
        said.append("No intervals, as no job reached it more than once: seed=0,1,2 gives them.")
    return said


def page(rows: Sequence[Run]) -> Page | None:
    """What a sweep with a target says; None where none was set."""
    told = targets(rows)
    if not told:
        return None
    sections = [Section(sentences(each), [grid(each)]) for each in told]
    numbers = sorted(run for each in told for point in each.points for run in point.numbers)
    return Page("targets", "Time and energy to target", sections, plain_values(told), numbers)


def grid(told: Targets) -> Grid:
    ordered = sorted(told.points, key=_place)
    rows = []
    for point in ordered:
        reached = ("yes" if point.reached else "no") if len(point.numbers) == 1 else point.share
        cells = [spread(value) if value else ABSENT for value in (point.time_s, point.energy_j)]
        runs = ", ".join(map(str, point.numbers))
        rows.append([point.title, runs, reached, number(point.epochs), *cells, "front" if point.on_front else ""])
    energy = f"J ({told.covers})" if told.covers else "J"
    return Grid("Points, the fastest first", ["job", "runs", "reached", "epochs", "s", energy, "Pareto"], rows)


def _told(title: str, rows: Sequence[Run]) -> Targets:
    every = group_repeats(rows)
    reached = {name: _reached(point) for name, point in zip(titles(every), every, strict=True)}
    measured = [row for kept in reached.values() for row in kept if ENERGY in row.metrics]
    covers = {str(row.energy_covers) for row in measured}
    alike = len(covers) == 1
    runs = {name: Configuration(kept) for name, kept in reached.items() if kept}
    mean_times, mean_energies = _means(TIME, runs), _means(ENERGY, runs) if alike else {}
    found = [
        TargetResult(
            title=name,
            numbers=point.numbers,
            reached=[row.number for row in reached[name]],
            epochs=runs[name].mean(EPOCHS) if name in runs else None,
            time_s=mean_times.get(name),
            energy_j=mean_energies.get(name),
        )
        for name, point in zip(reached, every, strict=True)
    ]
    costs = {
        point.title: (point.energy_j.value, point.time_s.value)
        for point in found
        if point.always and point.energy_j and point.time_s
    }
    on_front = {name for name, on in zip(costs, is_pareto_front(costs.values()), strict=True) if on}
    times_s = {point.title: point.time_s.value for point in found if point.always and point.time_s}
    # Of what is as fast, what takes less energy; and the other way round.
    fastest = min(times_s, key=lambda name: (times_s[name], costs.get(name, (math.inf,))[0])) if times_s else None
    least = min(costs, key=lambda name: costs[name]) if costs else None
    apart = least and fastest and least != fastest
    frugal, fast = (runs[name] if apart and name else None for name in (least, fastest))
    return Targets(
        title=title,
        points=[replace(point, on_front=point.title in on_front) for point in found],
        covers=covers.pop() if alike else None,
        no_energy=_no_energy([row for kept in reached.values() for row in kept]),
        fastest=fastest,
        least=least,
        not_significantly_slower=_alike(TIME, fastest, times_s, runs),
        not_significantly_more_energy=_alike(ENERGY, least, costs, runs),
        time_ratio=ratio_of(TIME, frugal, fast) if frugal and fast else None,
        energy_ratio=ratio_of(ENERGY, fast, frugal) if frugal and fast else None,
    )


def _means(metric: str, runs: Mapping[str, Configuration]) -> dict[str, Estimate]:
    """Return the mean of each configuration that has the metric, with intervals from all of them."""
    values = {name: point.values(metric) for name, point in runs.items() if point.values(metric)}
    return dict(zip(values, positive_means([*values.values()]), strict=True))


def _alike(metric: str, best: str | None, names: Iterable[str], runs: Mapping[str, Configuration]) -> list[str]:
    """Those of these jobs that are not told apart from the best of them, by what their runs took."""
    known = {name: values for name in names if (values := positive_values(runs[name], metric))}
    if best is None or best not in known:
        return []
    rounds = [[run.round for run in runs[name].runs] for name in known]
    alike = indistinguishable_from_best([*known.values()], [*known].index(best), rounds)
    return [name for name, kept in zip(known, alike, strict=True) if kept and name != best]


def _reached(point: Configuration) -> list[Run]:
    """The job's runs that reached the target."""
    return [row for row in point.runs if TIME in row.metrics]


def _no_energy(reached: Sequence[Run]) -> str | None:
    """Why not all of the runs that reached it can be put side by side; None where they can, or none did."""
    without = [row for row in reached if ENERGY not in row.metrics]
    covers = sorted({str(row.energy_covers) for row in reached if ENERGY in row.metrics})
    if len(covers) > 1:
        return f"it covers different things: {', '.join(covers)}"
    if not without:
        return None
    why = next((row.no_energy for row in without if row.no_energy), TOO_SHORT)
    return f"{len(without)} of {len(reached)} runs that reached it measured none: {why}"


def _answer(told: Targets) -> str:
    known = {point.title: point for point in told.points}
    alike = _also("slower", told.not_significantly_slower) + _also("more energy", told.not_significantly_more_energy)
    if told.fastest and told.fastest == told.least:
        return f"{told.fastest} is the fastest and takes the least energy: {_cost(known[told.fastest])}.{alike}"
    if not told.fastest:
        return "no job reached it in each of its runs, so that none is the fastest."
    said = [f"the fastest is {told.fastest}: {_cost(known[told.fastest])}"]
    said += [f"the least energy takes {told.least}: {_cost(known[told.least])}"] if told.least else []
    return f"{'; '.join(said)}.{alike}"


def _also(worse: str, titles: Sequence[str]) -> str:
    more = [f"{len(titles) - NAMED} more"] if len(titles) > NAMED else []
    return f" Not significantly {worse}: {'; '.join([*titles[:NAMED], *more])}." if titles else ""


def _place(point: TargetResult) -> tuple[bool, bool, float]:
    """Those that always reached it first, the fastest on top."""
    return not point.always, not point.time_s, point.time_s.value if point.time_s else 0.0


def _sometimes(some: Sequence[TargetResult]) -> str:
    told = [f"{point.title} ({point.share} runs, {_cost(point)})" for point in some[:NAMED]]
    more = [f"{len(some) - NAMED} more"] if len(some) > NAMED else []
    return f"Not beside the others, as only some of their runs reached it: {'; '.join([*told, *more])}."


def _cost(point: TargetResult) -> str:
    time_s = f"{spread(point.time_s)} s" if point.time_s else ABSENT
    return f"{time_s}, {spread(point.energy_j)} J" if point.energy_j else time_s


def _trade(time: Estimate, energy: Estimate) -> str:
    unshown = [name for name, told in {"time": time, "energy": energy}.items() if told.contains(1)]
    more = f", which shows no difference in {' and '.join(unshown)}" if unshown else ""
    return f"The fastest takes {times(energy)} the least energy; the other takes {times(time)} the least time{more}."
