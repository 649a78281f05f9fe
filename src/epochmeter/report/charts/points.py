"""Configurations as charts show them: name, mean and standard deviation, color, and notes on missing ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epochmeter.report.charts.chart import COLORS, SHAPES
from epochmeter.report.formatting import plural, quantity
from epochmeter.report.runs.configuration import Configuration, titles, varied
from epochmeter.report.statistics import deviation

MAX_KINDS = 7
"""Values of a key up to which they get a color each."""
SELF_EXPLAINING = ("", "model", "dataset", "strategy", "device")
"""Keys whose values need no key in a legend."""
LINK_SCHEMES = ("http://", "https://")


class ChartPoint(NamedTuple):
    """A configuration and its name in charts."""

    configuration: Configuration
    title: str

    @property
    def link(self) -> str | None:
        """The page in MLflow of its first run that has one."""
        links = (run.link for run in self.configuration.runs if run.link)
        return next((link for link in links if link.startswith(LINK_SCHEMES)), None)

    @property
    def energy_scope(self) -> str | None:
        """What its energy covers; None if a run has no energy or the runs differ."""
        scopes = {run.energy_covers for run in self.configuration.runs}
        return scopes.pop() if len(scopes) == 1 else None

    def tooltip(self, **lines: str) -> dict[str, object]:
        """Return the fields of a row that a tooltip shows, with the link that a click opens."""
        fields: dict[str, object] = {
            "title": self.title,
            **lines,
            "runs": ", ".join(map(str, self.configuration.numbers)),
        }
        return {**fields, "link": self.link} if self.link else fields


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
    def label(self) -> str:
        return self.key.replace("_", " ")

    @property
    def colors(self) -> list[str]:
        return list(COLORS[: len(self.kinds)])

    @property
    def shapes(self) -> list[str]:
        return list(SHAPES[: len(self.kinds)])

    def kind(self, configuration: Configuration) -> str:
        return _kind(self.key, configuration.value(self.key)) if self.key else self.kinds[0]

    def color(self, configuration: Configuration) -> str:
        kind = self.kind(configuration)
        return COLORS[self.kinds.index(kind)] if kind in self.kinds else COLORS[0]


def chart_points(configurations: Sequence[Configuration]) -> list[ChartPoint]:
    return [ChartPoint(*pair) for pair in zip(configurations, titles(configurations), strict=True)]


def steady(configuration: Configuration, name: str) -> MeanSd | None:
    """Return a metric of the steady epochs; None if a run lacks it.

    The standard deviation is over the runs, or over the epochs of the only run.
    """
    value = over_runs(configuration, f"steady/{name}")
    if value is None or value.sd is not None:
        return value
    over_epochs = configuration.runs[0].metrics.get(f"std/{name}", math.nan)
    return MeanSd(value.mean, over_epochs, "epochs") if math.isfinite(over_epochs) else value


def over_runs(configuration: Configuration, name: str) -> MeanSd | None:
    """Return a metric by its full name; None if a run lacks it or its value is not finite."""
    values = configuration.values(name)
    if not values or not all(map(math.isfinite, values)):
        return None
    mean = statistics.fmean(values)
    return MeanSd(mean, deviation(values), "runs") if len(values) > 1 else MeanSd(mean)


def natural_order(text: str) -> tuple[bool, float, str]:
    """Sort key: numbers by size, before words."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def by_energy_scope(points: Iterable[ChartPoint]) -> dict[str, list[ChartPoint]]:
    """Group configurations by what their energy covers; energies of different scopes are not comparable."""
    groups: dict[str, list[ChartPoint]] = {}
    for point in points:
        if point.energy_scope:
            groups.setdefault(point.energy_scope, []).append(point)
    return dict(sorted(groups.items()))


def name_suffix(index: int, groups: Mapping[str, Sequence[ChartPoint]]) -> str:
    """Return the suffix of a chart's name if there is one chart per group."""
    return f"_{index}" if len(groups) > 1 else ""


def sd_note(values: Iterable[MeanSd]) -> str:
    over = dict.fromkeys(value.over for value in values if value.sd is not None)
    return f"Bars are one standard deviation over {' or '.join(over)}." if over else ""


def scope_note(points: Iterable[ChartPoint]) -> str:
    scopes = sorted({point.energy_scope for point in points if point.energy_scope})
    return f"Energy of: {'; '.join(scopes)}." if scopes else ""


def missing_note(points: Sequence[ChartPoint], shown: int, what: str) -> str:
    """Return how many configurations a chart lacks, and the first reason that their runs give."""
    if shown == len(points):
        return ""
    runs = [run for point in points if not point.energy_scope for run in point.configuration.runs]
    reasons = [run.no_energy for run in runs if run.no_energy] or ["their runs measured different things"]
    why = f" ({reasons[0].rstrip('.')})" if runs and "energy" in what else ""
    return f"Without {what}: {len(points) - shown:,} of {plural(len(points), 'configuration')}{why}."


def join(*sentences: str) -> str:
    """Join the sentences that are not empty."""
    return " ".join(sentence for sentence in sentences if sentence)


def _kind(key: str, value: str) -> str:
    return value if key in SELF_EXPLAINING else f"{key.replace('_', ' ')} {value}"
