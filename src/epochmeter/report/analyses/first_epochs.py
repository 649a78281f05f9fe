"""Epoch 0 beside the later ones of a job, and where the difference lies."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochmeter.report.analyses.effects import title
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.statistics import MIN_EFFECT, Estimate, mean

PARTS = {
    "loader start": ("loader_start_s", None),
    "waiting for data": ("data_stall_s", "loader_start_s"),
    "copies": ("copy_s", None),
    "compute": ("compute_s", None),
    "overhead": ("overhead_s", None),
}
"""Part of an epoch -> the metric that it is, and the one that is told apart from it."""


@dataclass(frozen=True)
class FirstEpoch:
    """Epoch 0 beside the later ones, and where the difference lies."""

    title: str
    numbers: Sequence[int]
    first_s: float
    later_s: float
    more_s: Estimate
    parts_s: Mapping[str, float]
    """Part -> its share of the difference; parts that a run did not tell are absent."""

    @property
    def slower(self) -> bool:
        """Whether the difference matters, and is no chance."""
        return self.more_s.value > MIN_EFFECT * self.later_s and not self.more_s.contains(0)

    @property
    def most(self) -> str | None:
        """The part that the most of it lies in."""
        return max(self.parts_s, key=lambda part: self.parts_s[part]) if self.parts_s else None


def first_epochs(points: Sequence[Configuration]) -> list[FirstEpoch]:
    """For each job that had an epoch after its first and its warm-up."""
    told = []
    for point in points:
        since = max(1, point.job["warmup_epochs"])
        pairs = [pair for row in point.runs if (pair := _first_and_later(row.epochs, since))]
        if len(pairs) < len(point.runs):
            continue
        firsts, laters, parts = zip(*(_told(*pair) for pair in pairs), strict=True)
        more = mean([first - later for first, later in zip(firsts, laters, strict=True)])
        common = [part for part in PARTS if all(part in each for each in parts)]
        shares = {part: statistics.fmean(each[part] for each in parts) for part in common}
        means = statistics.fmean(firsts), statistics.fmean(laters)
        told.append(FirstEpoch(title(point, points), point.numbers, *means, more, shares))
    return told


def _first_and_later(
    epochs: Mapping[int, Mapping[str, float]], since: int
) -> tuple[Mapping[str, float], Sequence[Mapping[str, float]]] | None:
    """A run's epoch 0 and those from one on; None where it lacks either, or the time of any."""
    later = [metrics for number, metrics in epochs.items() if number >= since]
    if 0 not in epochs or not later or any("epoch/e2e_s" not in epoch for epoch in (epochs[0], *later)):
        return None
    return epochs[0], later


def _told(first: Mapping[str, float], later: Sequence[Mapping[str, float]]) -> tuple[float, float, dict[str, float]]:
    """Seconds of a run's first epoch and of its later ones, and the difference by parts."""
    parts = {}
    for part, (name, less) in PARTS.items():
        every = [_seconds(epoch, name, less) for epoch in (first, *later)]
        known = [seconds for seconds in every if seconds is not None]
        if len(known) == len(every):
            parts[part] = known[0] - statistics.fmean(known[1:])
    return first["epoch/e2e_s"], statistics.fmean(epoch["epoch/e2e_s"] for epoch in later), parts


def _seconds(epoch: Mapping[str, float], name: str, less: str | None) -> float | None:
    if f"epoch/{name}" not in epoch:
        return None
    return epoch[f"epoch/{name}"] - (epoch.get(f"epoch/{less}", 0.0) if less else 0.0)
