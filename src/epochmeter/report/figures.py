"""What a picture shows, said free of any library that draws it: one description, and a pen for each kind of page.

Values are already in the unit of their axis. What a mark tells when it is pointed at is plain text: each pen escapes
what it draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Style(NamedTuple):
    """How one series is told from another: by color, and without it by marker and hatch."""

    color: str
    marker: str
    """Of circle, square, diamond, triangle, cross, star, pentagon, hexagon."""
    hatch: str
    """Of the empty text, / \\ x - | + and a dot."""


STYLES = (
    Style("#0072B2", "circle", ""),
    Style("#D55E00", "square", "/"),
    Style("#009E73", "diamond", "\\"),
    Style("#CC79A7", "triangle", "x"),
    Style("#E69F00", "cross", "|"),
    Style("#56B4E9", "star", "-"),
    Style("#000000", "pentagon", "+"),
    Style("#8A8A8A", "hexagon", "."),
)
"""After M. Okabe and K. Ito, Color Universal Design, 2008: their yellow, faint on white, is a gray here."""
LONGEST = 46
"""Letters of a title beside a bar or in a legend; all of it is told when its mark is pointed at."""
NEAR = 0.25
"""Share of an axis that the word of a callout may take."""
Side = Literal["left", "center", "right"]
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GRAY = range(len(STYLES))


@dataclass(frozen=True)
class Axis:
    """What is laid off along one side, and in which unit; without one where it has none."""

    label: str
    unit: str = ""
    log: bool = False

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


class Reach(NamedTuple):
    """How far the bar of a mark goes to either side of it."""

    below: float
    above: float


@dataclass(frozen=True)
class Mark:
    """A place, how far it spreads, what it tells when pointed at, and the page that it opens."""

    x: float
    y: float
    told: Sequence[str] = ()
    """Lines; the first is its title."""
    link: str | None = None
    x_reach: Reach | None = None
    """None where nothing is known of its spread: then it has no bar."""
    y_reach: Reach | None = None


@dataclass(frozen=True)
class Series:
    """Marks of one kind."""

    name: str
    marks: Sequence[Mark]
    style: int = 0


class Callout(NamedTuple):
    """A word for a place that matters."""

    text: str
    x: float
    y: float


class Band(NamedTuple):
    """A stretch of the x axis that is something of its own."""

    start: float
    end: float
    text: str


class Level(NamedTuple):
    """A height to hold values against."""

    y: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """What every picture has."""

    name: str
    """That of its files, and of its place on the page."""
    title: str
    caption: str
    """What is seen, and what has to be known to read it rightly."""


@dataclass(frozen=True)
class Scatter(Drawn):
    """Marks by two values, with the fronts that none betters."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    fronts: Sequence[Sequence[tuple[float, float]]] = ()
    """The corners of each, x ascending: what lies between two of them is bettered by the left one."""
    callouts: Sequence[Callout] = ()
    """By x, ascending."""

    @property
    def limits(self) -> tuple[float, float]:
        """From where to where the y axis goes: with room for callouts below, but not below zero."""
        marks = [mark for series in self.series for mark in series.marks]
        reaches = [(mark.y, mark.y_reach or Reach(0, 0)) for mark in marks]
        ends = [end for y, reach in reaches for end in (y - reach.below, y + reach.above)]
        places = [math.log10(end) for end in ends if end > 0] if self.y.log else ends
        room = max(places) - min(places) or abs(max(places)) or 1
        below = 0.17 + 0.05 * max(self.levels) if self.callouts else 0.07
        low, high = min(places) - below * room, max(places) + 0.07 * room
        if self.y.log:
            return 10**low, 10**high
        return (0.0 if low < 0 <= min(mark.y for mark in marks) else low), high

    @property
    def words_below(self) -> bool:
        """Whether callouts stand below: what matters is mostly on a front, and nothing is below that but the axis."""
        lowest = min((callout.y for callout in self.callouts), default=0.0)
        low, high = self.limits
        return self.y.log or lowest - low > 0.1 * (high - low)

    @property
    def levels(self) -> list[int]:
        """How many lines further off each callout stands, so that those of near places are not on one another."""
        xs = [mark.x for series in self.series for mark in series.marks]
        near = NEAR * (max(xs) - min(xs))
        levels: list[int] = []
        for index, callout in enumerate(self.callouts):
            crowded = index and callout.x - self.callouts[index - 1].x < near
            levels.append(levels[-1] + 1 if crowded else 0)
        return levels

    @property
    def sides(self) -> list[Side]:
        """Which end of each callout's word stands at its place: near an end of the axis it goes away from that."""
        scaled = math.log10 if self.x.log else float
        xs = [scaled(mark.x) for series in self.series for mark in series.marks]
        low, room = min(xs), max(xs) - min(xs)
        shares = [(scaled(callout.x) - low) / room if room else 0.5 for callout in self.callouts]
        return ["left" if share < NEAR else "right" if share > 1 - NEAR else "center" for share in shares]


@dataclass(frozen=True)
class Lines(Drawn):
    """Values along an axis, the marks of a series joined."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    bands: Sequence[Band] = ()
    level: Level | None = None
    points: bool = True
    """Whether each value is marked."""


@dataclass(frozen=True)
class Bar:
    """A piece of a stacked bar."""

    value: float
    told: Sequence[str] = ()
    link: str | None = None


@dataclass(frozen=True)
class Stack:
    """The pieces of one kind, one for each bar; None where a bar has none."""

    name: str
    pieces: Sequence[Bar | None]
    style: int = 0


@dataclass(frozen=True)
class Bars(Drawn):
    """Stacked bars, the first on top."""

    x: Axis
    bars: Sequence[str]
    stacks: Sequence[Stack]


@dataclass(frozen=True)
class Cell:
    """A value of a heatmap, and how it is written into it."""

    value: float
    text: str
    told: Sequence[str] = ()
    link: str | None = None


@dataclass(frozen=True)
class Heatmap(Drawn):
    """A value by two keys."""

    x: Axis
    y: Axis
    value: Axis
    columns: Sequence[str]
    rows: Sequence[str]
    """The first at the bottom."""
    cells: Sequence[Sequence[Cell | None]]
    """By row, then by column."""


Chart = Scatter | Lines | Bars | Heatmap


def shortened(name: str) -> str:
    """A title without its middle, where it is long: how it begins and ends tells it from others."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half].rstrip()} … {name[-half:].lstrip()}"
