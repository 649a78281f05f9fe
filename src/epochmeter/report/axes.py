"""How points come onto a picture: what they are called there, in which units, and what is said of them all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from epochmeter.report.figures import Axis
from epochmeter.report.runs.configuration import Configuration, titles
from epochmeter.report.statistics import deviation
from epochmeter.report.words import number

APART = 30
"""From this ratio of the largest to the least on, values are far apart."""


class Unit(NamedTuple):
    name: str
    size: float
    """In the SI unit."""
    least: float
    """From where on values are told in it, in the SI unit."""


UNITS = {
    "s": (Unit("ms", 1e-3, 0), Unit("s", 1, 0.1), Unit("h", 3600, 10_800)),
    "J": (Unit("mJ", 1e-3, 0), Unit("J", 1, 0.1), Unit("kJ", 1e3, 1e4), Unit("MJ", 1e6, 1e7)),
    "W": (Unit("mW", 1e-3, 0), Unit("W", 1, 0.1), Unit("kW", 1e3, 1e4)),
}
"""Smallest first."""


class Shown(NamedTuple):
    """A point, and how it is called."""

    point: Configuration
    title: str

    @property
    def link(self) -> str | None:
        """The page of the first of its runs that has one."""
        return next((row.link for row in self.point.runs if row.link), None)

    @property
    def covers(self) -> str | None:
        """What its energy is that of; None where any of its runs has none, or that of something else."""
        covers = {row.energy_covers for row in self.point.runs}
        return covers.pop() if len(covers) == 1 else None

    def told(self, *lines: str) -> tuple[str, ...]:
        """What it says when pointed at: its title, these lines, its runs."""
        return (self.title, *lines, self.point.runs_text)


class Value(NamedTuple):
    """The mean of a metric, and its standard deviation over the runs, or over the epochs of the only one."""

    mean: float
    spread: float | None = None
    over: str = ""
    """`runs` or `epochs`."""

    def told(self, unit: str) -> str:
        if self.spread is None:
            return f"{number(self.mean)} {unit}"
        return f"{number(self.mean)} ± {number(self.spread, self.mean)} {unit}"


def shown(points: Sequence[Configuration]) -> list[Shown]:
    return [Shown(point, title) for point, title in zip(points, titles(points), strict=True)]


def steady(point: Configuration, name: str) -> Value | None:
    """A metric of its steady epochs; None where any run lacks it, or has no number for it."""
    value = over_runs(point, f"steady/{name}")
    if value is None or value.spread is not None:
        return value
    over_epochs = point.runs[0].metrics.get(f"std/{name}")
    if over_epochs is None or not math.isfinite(over_epochs):
        return value
    return Value(value.mean, over_epochs, "epochs")


def over_runs(point: Configuration, name: str) -> Value | None:
    """A metric by its full name; None where any run lacks it, or has no number for it."""
    values = point.values(name)
    if not values or not all(map(math.isfinite, values)):
        return None
    mean = statistics.fmean(values)
    return Value(mean, deviation(values), "runs") if len(values) > 1 else Value(mean)


def unit_of(values: Iterable[float], si: str) -> Unit:
    """The unit that such values are best read in, by the largest of them."""
    largest = max(map(abs, values), default=1.0)
    return [unit for unit in UNITS[si] if unit.least <= largest][-1]


def axis(label: str, values: Sequence[float], si: str, straight: bool = False) -> tuple[Axis, float]:
    """An axis for values in an SI unit, and what of that unit one of its own is: divide by it.

    It is logarithmic where they are far apart, unless it is to be straight.
    """
    unit, least = unit_of(values, si), min(values)
    return Axis(label, unit.name, log=not straight and least > 0 and max(values) > APART * least), unit.size


def natural(text: str) -> tuple[bool, float, str]:
    """Numbers by their size, before words by their letters."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def spread_told(values: Iterable[Value]) -> str:
    """What the bars of marks are."""
    over = dict.fromkeys(value.over for value in values if value.spread is not None)
    return f"Bars are one standard deviation over {' or '.join(over)}." if over else ""


def by_covers(every: Iterable[Shown]) -> dict[str, list[Shown]]:
    """What energy is that of -> the jobs whose it is, by its letters; each is drawn by itself."""
    groups: dict[str, list[Shown]] = {}
    for each in every:
        if each.covers:
            groups.setdefault(each.covers, []).append(each)
    return dict(sorted(groups.items()))


def apart(place: int, groups: Mapping[str, Sequence[Shown]]) -> str:
    """What is added to the name of a picture that there is one of for each group."""
    return f"_{place}" if len(groups) > 1 else ""


def covers_told(found: Iterable[Shown]) -> str:
    """What energy is that of; loudly where that is not one thing."""
    covers = sorted({each.covers for each in found if each.covers})
    if len(covers) > 1:
        return f"CAUTION: the energies are of different things and must not be compared: {'; '.join(covers)}."
    return f"Energy is that of: {covers[0]}." if covers else ""


def lacking(every: Sequence[Shown], found: int, what: str) -> str:
    """That not all of the jobs are here, and why, as far as they say so."""
    if found == len(every):
        return ""
    without = [row for each in every if not each.covers for row in each.point.runs]
    reasons = [row.no_energy for row in without if row.no_energy] or ["their runs measured different things"] * bool(
        without
    )
    why = f" ({reasons[0].rstrip('.')})" if reasons and "energy" in what else ""
    return f"{len(every) - found:,} of {len(every):,} jobs have no {what}{why}."


def fewer(many: int, most: int, what: str = "fastest") -> str:
    """That only some are drawn."""
    return f"Here are the {most} {what} of {many:,} jobs." if many > most else ""


def sentence(*parts: str) -> str:
    """Those of the sentences that say something, as one text."""
    return " ".join(part for part in parts if part)
