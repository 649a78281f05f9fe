"""What a search found: of the points that it measured, those that none other betters in what it was for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import Configuration, group_repeats, no_energy, titles
from epochmeter.report.runs.run import Run
from epochmeter.report.words import Grid, number, plain_values
from epochmeter.results.pareto import is_pareto_front, to_losses
from epochmeter.shared.atomic_files import read_json
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS, SEARCH_FILE


@dataclass(frozen=True)
class SearchPoint:
    """A point that was measured, and what its runs gave of each objective, in the mean."""

    title: str
    numbers: Sequence[int]
    values: Mapping[str, float]


@dataclass(frozen=True)
class SearchResult:
    """All points of a search that ended."""

    objectives: Sequence[str]
    """Those that any of its points has."""
    front: Sequence[SearchPoint]
    """The points that none other betters, by the first objective."""
    others: Sequence[SearchPoint]
    lacking: Sequence[SearchPoint]
    """Those without a value of some objective, which have no place among the others."""
    apart: str | None
    """Why there is no front: the energies cover different things."""


def page(rows: Sequence[Run], folder: Path) -> Page | None:
    """What the search in a folder found, of these runs of it; None where none was made, or its runs tell nothing."""
    objectives = sought(folder)
    told = searched(rows, objectives) if objectives else None
    if told is None:
        return None
    points = (*told.front, *told.others, *told.lacking)
    numbers = sorted(run for point in points for run in point.numbers)
    grids = [grid(told)] if told.front else []
    return Page("front", "Search", [Section(sentences(told), grids)], plain_values([told]), numbers)


def sought(folder: Path) -> Sequence[str]:
    """What the search in a folder is for; nothing where none was made."""
    try:
        return [str(name) for name in read_json(folder / SEARCH_FILE)["objectives"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def searched(rows: Sequence[Run], objectives: Sequence[str]) -> SearchResult | None:
    """The points of these rows by their objectives; None where no run has any of them."""
    points = group_repeats(rows)
    known = [name for name in objectives if any(point.values(name) for point in points)]
    if not known:
        return None
    tried = [(_tried(title, point, known), point) for title, point in zip(titles(points), points, strict=True)]
    costs = {one.title: cost for one, _ in tried if (cost := to_losses(one.values, known))}
    compared = [point for one, point in tried if one.title in costs]
    apart = no_energy(compared) if any("energy" in name for name in known) else None
    on = dict(zip(costs, is_pareto_front(costs.values()), strict=True))
    best = [one for one, _ in tried if on.get(one.title) and not apart]
    return SearchResult(
        objectives=known,
        front=sorted(best, key=lambda one: costs[one.title]),
        others=[one for one, _ in tried if one.title in costs and one not in best],
        lacking=[one for one, _ in tried if one.title not in costs],
        apart=apart,
    )


def sentences(told: SearchResult) -> list[str]:
    """What is said of a search, the answer first."""
    names, count = " and ".join(told.objectives), len(told.front) + len(told.others)
    if told.apart:
        said = [f"No front of {names}: {told.apart.rstrip('.')}."]
    elif not told.front:
        said = [f"No front: no run has all of {names}."]
    elif len(told.front) == 1:
        (best,) = told.front
        values = ", ".join(f"{name} {number(best.values[name])}" for name in told.objectives)
        said = [f"{best.title} is the best of {count} point{'s' if count > 1 else ''}: {values}."]
    else:
        said = [f"{len(told.front)} of {count} points are on the Pareto front of {names}: none is better in all."]
    if told.lacking:
        runs = ", ".join(str(run) for point in told.lacking for run in point.numbers)
        said.append(f"Left out, as they lack a value of these: runs {runs}.")
    if told.front and all(len(point.numbers) == 1 for point in told.front):
        said.append(
            f"No intervals, as each point was measured once: -m {RECOMMENDED_REPEATS} with these points gives them."
        )
    return said


def grid(told: SearchResult) -> Grid:
    rows = [
        [point.title, ", ".join(map(str, point.numbers)), *(number(point.values[name]) for name in told.objectives)]
        for point in told.front
    ]
    return Grid("Pareto front", ["job", "runs", *told.objectives], rows)


def _tried(title: str, point: Configuration, names: Sequence[str]) -> SearchPoint:
    means = {name: point.mean(name) for name in names}
    return SearchPoint(title, point.numbers, {name: value for name, value in means.items() if value is not None})
