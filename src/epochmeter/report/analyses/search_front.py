"""The Pareto front of a search: the configurations that no other one dominates in the objectives."""

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
    """A configuration, the numbers of its runs, and their mean for each objective."""

    title: str
    numbers: Sequence[int]
    values: Mapping[str, float]


@dataclass(frozen=True)
class SearchResult:
    """All configurations of a search.

    Attributes:
        objectives: Objectives that any configuration has.
        front: The Pareto front, by the first objective.
        others: Dominated configurations.
        incomplete: Configurations without a value of some objective.
        no_front: Why there is no front: the energies are not comparable.
    """

    objectives: Sequence[str]
    front: Sequence[SearchPoint]
    others: Sequence[SearchPoint]
    incomplete: Sequence[SearchPoint]
    no_front: str | None


def page(runs: Sequence[Run], folder: Path) -> Page | None:
    """Return the page of the search in a folder; None without a search, or without any value of its objectives."""
    objectives = search_objectives(folder)
    result = analyze(runs, objectives) if objectives else None
    if result is None:
        return None
    points = (*result.front, *result.others, *result.incomplete)
    numbers = sorted(run for point in points for run in point.numbers)
    grids = [grid(result)] if result.front else []
    return Page("front", "Search", [Section(sentences(result), grids)], plain_values([result]), numbers)


def search_objectives(folder: Path) -> Sequence[str]:
    """Return the objectives of the search in a folder; empty without a search."""
    try:
        return [str(name) for name in read_json(folder / SEARCH_FILE)["objectives"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def analyze(runs: Sequence[Run], objectives: Sequence[str]) -> SearchResult | None:
    """Return the Pareto front of configurations; None if no run has any of the objectives."""
    configurations = group_repeats(runs)
    measured = [name for name in objectives if any(point.values(name) for point in configurations)]
    if not measured:
        return None
    points = [
        (_search_point(title, configuration, measured), configuration)
        for title, configuration in zip(titles(configurations), configurations, strict=True)
    ]
    losses = {point.title: loss for point, _ in points if (loss := to_losses(point.values, measured))}
    compared = [configuration for point, configuration in points if point.title in losses]
    no_front = no_energy(compared) if any("energy" in name for name in measured) else None
    is_on_front = dict(zip(losses, is_pareto_front(losses.values()), strict=True))
    front = [point for point, _ in points if is_on_front.get(point.title) and not no_front]
    return SearchResult(
        objectives=measured,
        front=sorted(front, key=lambda point: losses[point.title]),
        others=[point for point, _ in points if point.title in losses and point not in front],
        incomplete=[point for point, _ in points if point.title not in losses],
        no_front=no_front,
    )


def sentences(result: SearchResult) -> list[str]:
    """Return the sentences on a search, the answer first."""
    names, count = " and ".join(result.objectives), len(result.front) + len(result.others)
    if result.no_front:
        texts = [f"No front of {names}: {result.no_front.rstrip('.')}."]
    elif not result.front:
        texts = [f"No front: no run has all of {names}."]
    elif len(result.front) == 1:
        (best,) = result.front
        values = ", ".join(f"{name} {number(best.values[name])}" for name in result.objectives)
        texts = [f"{best.title} is the best of {count} configuration{'s' if count > 1 else ''}: {values}."]
    else:
        lead = f"{len(result.front)} of {count} configurations are on the Pareto front of {names}"
        texts = [f"{lead}: none is better in all."]
    if result.incomplete:
        runs = ", ".join(str(run) for point in result.incomplete for run in point.numbers)
        texts.append(f"Excluded, without a value of some objective: runs {runs}.")
    if result.front and all(len(point.numbers) == 1 for point in result.front):
        texts.append(
            f"No intervals, as each configuration ran once: -m {RECOMMENDED_REPEATS} with these configurations gives "
            "them."
        )
    return texts


def grid(result: SearchResult) -> Grid:
    """Return the table of the front."""
    rows = [
        [point.title, ", ".join(map(str, point.numbers)), *(number(point.values[name]) for name in result.objectives)]
        for point in result.front
    ]
    return Grid("Pareto front", ["configuration", "runs", *result.objectives], rows)


def _search_point(title: str, configuration: Configuration, names: Sequence[str]) -> SearchPoint:
    means = {name: configuration.mean(name) for name in names}
    return SearchPoint(
        title, configuration.numbers, {name: value for name, value in means.items() if value is not None}
    )
