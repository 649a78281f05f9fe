"""Configurations as charts show them: mean and standard deviation, color, tooltip and captions."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from epochmeter.report.charts.vega import COLORS
from epochmeter.report.runs.configuration import Configuration, NoEnergy, no_energy, varied
from epochmeter.report.runs.run import grouped
from epochmeter.results.intervals import deviation
from epochmeter.results.quantities import quantity

SELF_EXPLAINING = ("model", "dataset", "strategy", "device")  # keys whose values need no key in a legend


class MeanSd(NamedTuple):
    """Mean and standard deviation of a metric over runs; the deviation is None for a single run."""

    mean: float
    sd: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of its error bar."""
        return self.mean - (self.sd or 0.0), self.mean + (self.sd or 0.0)

    def text(self, base: str) -> str:
        """Format it in a readable unit: `90.0 s (SD 1.4 s)`."""
        text = quantity(self.mean, base, half=self.sd)
        return text if self.sd is None else f"{text} (SD {quantity(self.sd, base, self.mean, half=self.sd)})"


@dataclass(frozen=True)
class Palette:
    """One color and shape per value of one key, as legends show it (`kinds`); without a `key`, the same for all."""

    key: str
    kinds: Sequence[str]

    @classmethod
    def of(cls, configurations: Sequence[Configuration]) -> "Palette":
        """Choose the first key that takes two values or more, up to one for each color but the last."""
        for key in varied(configurations):
            values = {configuration.value(key) for configuration in configurations}
            if 1 < len(values) < len(COLORS):
                return cls(key, [_kind(key, value) for value in sorted(values, key=natural_order)])
        return cls("", ["configurations"])

    @property
    def colors(self) -> dict[str, str]:
        return dict(zip(self.kinds, COLORS, strict=False))

    def kind(self, configuration: Configuration) -> str:
        return _kind(self.key, configuration.value(self.key)) if self.key else self.kinds[0]

    def color(self, configuration: Configuration) -> str:
        return self.colors.get(self.kind(configuration), COLORS[0])


def tooltip(configuration: Configuration, **lines: str) -> dict[str, object]:
    """Return the fields of a row that a tooltip shows, with the link that a click opens."""
    link = {"link": configuration.link} if configuration.link else {}
    return {"title": configuration.title, **lines, "runs": ", ".join(map(str, configuration.numbers)), **link}


@cache  # several charts show the same
def mean_sd(configuration: Configuration, metric: str) -> MeanSd | None:
    """Return a metric's mean and deviation; None if a run lacks it."""
    values = configuration.values(metric)
    return MeanSd(statistics.fmean(values), deviation(values) if len(values) > 1 else None) if values else None


def natural_order(text: str) -> tuple[bool, float, str]:
    """Sort key: numbers by size, before words."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def by_energy_scope(configurations: Iterable[Configuration]) -> list[tuple[str, str, list[Configuration]]]:
    """Group configurations with comparable energy: suffix of the charts' names (none for one scope), scope, group."""
    groups = grouped(configurations, lambda configuration: configuration.energy_scope or "")
    scopes = sorted(filter(None, groups))
    return [(f"_{index}" if len(scopes) > 1 else "", scope, groups[scope]) for index, scope in enumerate(scopes)]


def without_energy(configurations: Sequence[Configuration], shown: int) -> tuple[int, int, NoEnergy | None] | None:
    """Return how many of these configurations a chart omits, their number, and why; None if it shows all."""
    unknown = [configuration for configuration in configurations if not configuration.energy_scope]
    missing, total = len(configurations) - shown, len(configurations)
    return (missing, total, no_energy(unknown)) if missing else None


def _kind(key: str, value: str) -> str:
    return value if key in SELF_EXPLAINING else f"{key.replace('_', ' ')} {value}"
