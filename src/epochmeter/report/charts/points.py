"""Configurations as charts show them: name, mean and standard deviation, color, and notes on missing ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from epochmeter.report.charts.chart import COLORS, SHAPES
from epochmeter.report.formatting import plural, quantity
from epochmeter.report.runs.configuration import Configuration, titles, varied
from epochmeter.report.statistics import deviation

MAX_KINDS = 7
"""Values of a key up to which they get a color each."""
SELF_EXPLAINING = ("model", "dataset", "strategy", "device")
"""Keys whose values need no key in a legend."""


class ChartPoint(NamedTuple):
    """A configuration and its name in charts."""

    configuration: Configuration
    title: str

    def tooltip(self, **lines: str) -> dict[str, object]:
        """Return the fields of a row that a tooltip shows, with the link that a click opens."""
        runs = ", ".join(map(str, self.configuration.numbers))
        link = self.configuration.link
        return {"title": self.title, **lines, "runs": runs, **({"link": link} if link else {})}


class MeanSd(NamedTuple):
    """Mean and standard deviation of a metric.

    Attributes:
        mean: mean over the runs.
        sd: standard deviation; None if it is unknown.
        over: `runs` or `epochs`, over which the deviation is.
    """

    mean: float
    sd: float | None = None
    over: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of its error bar."""
        return self.mean - (self.sd or 0.0), self.mean + (self.sd or 0.0)

    def text(self, base: str) -> str:
        """Format it in a readable unit: `90.0 s (SD 1.4 s)`."""
        text = quantity(self.mean, base)
        return text if self.sd is None else f"{text} (SD {quantity(self.sd, base, self.mean)})"


@dataclass(frozen=True)
class Palette:
    """One color and shape per value of one key, the same in every chart.

    Attributes:
        key: the key; empty if all configurations have the same color.
        kinds: its values as legends show them, in order.
    """

    key: str
    kinds: Sequence[str]

    @classmethod
    def of(cls, configurations: Sequence[Configuration]) -> Palette:
        """Choose the first key that takes two to seven values."""
        for key in varied(configurations):
            values = {configuration.value(key) for configuration in configurations}
            if 1 < len(values) <= MAX_KINDS:
                return cls(key, [_kind(key, value) for value in sorted(values, key=natural_order)])
        return cls("", ["configurations"])

    @property
    def caption(self) -> str:
        return f"Colors show {self.key.replace('_', ' ')}." if self.key else ""

    @property
    def colors(self) -> dict[str, str]:
        return dict(zip(self.kinds, COLORS, strict=False))

    @property
    def shapes(self) -> list[str]:
        return list(SHAPES[: len(self.kinds)])

    def kind(self, configuration: Configuration) -> str:
        return _kind(self.key, configuration.value(self.key)) if self.key else self.kinds[0]

    def color(self, configuration: Configuration) -> str:
        return self.colors.get(self.kind(configuration), COLORS[0])


def chart_points(configurations: Sequence[Configuration]) -> list[ChartPoint]:
    return [ChartPoint(*pair) for pair in zip(configurations, titles(configurations), strict=True)]


@cache  # several charts show the same
def mean_sd(configuration: Configuration, metric: str) -> MeanSd | None:
    """Return a metric; None if a run lacks it or its value is not finite.

    The standard deviation is over the runs, or over the steady epochs of the only run.
    """
    values = configuration.values(metric)
    if not values or not all(map(math.isfinite, values)):
        return None
    if len(values) > 1:
        return MeanSd(statistics.fmean(values), deviation(values), "runs")
    over_epochs = configuration.values(metric.replace("steady/", "std/")) if metric.startswith("steady/") else []
    return MeanSd(values[0], over_epochs[0], "epochs") if over_epochs else MeanSd(values[0])


def natural_order(text: str) -> tuple[bool, float, str]:
    """Sort key: numbers by size, before words."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def by_energy_scope(points: Iterable[ChartPoint]) -> list[tuple[str, list[ChartPoint]]]:
    """Group configurations with comparable energy, each with the suffix of its charts' names: none if there is one."""
    groups: dict[str, list[ChartPoint]] = {}
    for point in points:
        if scope := point.configuration.energy_scope:
            groups.setdefault(scope, []).append(point)
    suffixes = [f"_{index}" if len(groups) > 1 else "" for index in range(len(groups))]
    return list(zip(suffixes, [groups[scope] for scope in sorted(groups)], strict=True))


def scope_note(points: Iterable[ChartPoint]) -> str:
    scopes = sorted({scope for point in points if (scope := point.configuration.energy_scope)})
    return f"Energy of: {'; '.join(scopes)}." if scopes else ""


def missing_energy_note(points: Sequence[ChartPoint], shown: int) -> str:
    """Return how many configurations a chart lacks, and the first reason that their runs give."""
    if shown == len(points):
        return ""
    runs = [run for point in points if not point.configuration.energy_scope for run in point.configuration.runs]
    reasons = [run.no_energy for run in runs if run.no_energy] or ["their runs measured different things"]
    why = f" ({reasons[0].rstrip('.')})" if runs else ""
    return f"Without energy: {len(points) - shown:,} of {plural(len(points), 'configuration')}{why}."


def join(*sentences: str) -> str:
    """Join the sentences that are not empty."""
    return " ".join(filter(None, sentences))


def _kind(key: str, value: str) -> str:
    return value if key in SELF_EXPLAINING else f"{key.replace('_', ' ')} {value}"
