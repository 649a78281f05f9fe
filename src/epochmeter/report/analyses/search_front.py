"""The Pareto front of a search: the configurations that no other one dominates in the objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from epochmeter.report.runs.configuration import NoEnergy, group_repeats, no_energy
from epochmeter.report.runs.run import Run
from epochmeter.results.pareto import is_pareto_front, to_losses
from epochmeter.results.sweep_files import SEARCH_FILE
from epochmeter.shared.atomic_files import read_json


@dataclass(frozen=True)
class SearchPoint:
    """A configuration, the numbers of its runs, and their mean for each objective."""

    title: str
    numbers: Sequence[int]
    values: Mapping[str, float]


@dataclass(frozen=True)
class SearchResult:
    """All configurations of a search; those without a value of some objective are `incomplete`."""

    objectives: Sequence[str]
    front: Sequence[SearchPoint]
    others: Sequence[SearchPoint]
    incomplete: Sequence[SearchPoint]
    no_front: NoEnergy | None


def search_objectives(folder: Path) -> Sequence[str]:
    """Return the objectives of the search in a folder; empty without a search."""
    try:
        return [str(name) for name in read_json(folder / SEARCH_FILE)["objectives"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def analyze(runs: Sequence[Run], objectives: Sequence[str]) -> SearchResult | None:
    """Return the Pareto front of configurations; None if no run has any of the objectives."""
    configurations = group_repeats(runs)
    names = [name for name in objectives if any(configuration.values(name) for configuration in configurations)]
    if not names:
        return None
    compared, points, incomplete = [], [], []
    for configuration in configurations:
        means = {name: mean for name in names if (mean := configuration.mean(name)) is not None}
        point = SearchPoint(configuration.title, configuration.numbers, means)
        if loss := to_losses(means, names):
            points.append((loss, point))
            compared.append(configuration)
        else:
            incomplete.append(point)
    no_front = no_energy(compared) if any("energy" in name for name in names) else None
    is_on_front = [on_front and not no_front for on_front in is_pareto_front(loss for loss, _ in points)]
    others = [point for (_, point), on_front in zip(points, is_on_front, strict=True) if not on_front]
    front = [entry for entry, on_front in zip(points, is_on_front, strict=True) if on_front]
    return SearchResult(names, [point for _, point in sorted(front, key=itemgetter(0))], others, incomplete, no_front)
