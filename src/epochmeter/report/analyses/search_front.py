"""The Pareto front of a search: the configurations that no other one dominates in the objectives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epochmeter.report.runs.configuration import NoEnergy, group_repeats, no_energy
from epochmeter.report.runs.run import Run
from epochmeter.results.pareto import is_pareto_front, to_losses
from epochmeter.results.sweep_files import SEARCH_FILE
from epochmeter.shared.atomic_files import read_json

OF_ENERGY = re.compile("_js?$|power_(mean|peak)_w$|co2e|cost")
"""Pattern of the names of metrics of energy, power, carbon and cost; they must cover the same parts."""


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
    means = {
        configuration: {name: mean for name in names if (mean := configuration.mean(name)) is not None}
        for configuration in configurations
    }
    points = {entry: SearchPoint(entry.title, entry.numbers, own) for entry, own in means.items()}
    losses = {entry: loss for entry, own in means.items() if (loss := to_losses(own, names))}
    no_front = no_energy(losses) if any(OF_ENERGY.search(name) for name in names) else None
    is_on_front = dict(zip(losses, is_pareto_front(losses.values()), strict=True))
    front = [] if no_front else sorted(filter(is_on_front.get, losses), key=losses.__getitem__)
    others = [entry for entry in losses if entry not in front]
    incomplete = [entry for entry in configurations if entry not in losses]
    on_front, dominated, lacking = ([points[entry] for entry in group] for group in (front, others, incomplete))
    return SearchResult(names, on_front, dominated, lacking, no_front)
