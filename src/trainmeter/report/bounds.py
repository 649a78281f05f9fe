"""What bounds each point: the part of its steady epoch that takes the most of the time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainmeter.report.costs import TIME, measured
from trainmeter.report.points import Point

Kind = Literal["compute", "preprocessing", "storage", "copy", "overhead", "data"]
COMPUTE: Kind = "compute"
PREPROCESSING: Kind = "preprocessing"
STORAGE: Kind = "storage"
COPY: Kind = "copy"
OVERHEAD: Kind = "overhead"
DATA: Kind = "data"
STALL = "fetch_stall_s"
WAITING = (STORAGE, PREPROCESSING, DATA)
PARTS: Mapping[str, Kind] = {"compute_s": COMPUTE, "copy_s": COPY, "overhead_s": OVERHEAD}


@dataclass(frozen=True)
class Bound:
    """What takes the most of a point's epoch, and the shares of it that are known."""

    point: Point
    kind: Kind
    """`data`: waiting for data, of which no loader told whether storage or preprocessing took the time."""
    shares: Mapping[Kind, float]
    """Kind -> share of the end-to-end time; what a run did not tell is absent, and clocks leave a small rest."""

    @property
    def share(self) -> float:
        """Of what bounds it: of all of its waiting for data, where that does."""
        kinds = WAITING if self.kind in WAITING else (self.kind,)
        return math.fsum(self.shares.get(kind, 0.0) for kind in kinds)


def bounds(points: Sequence[Point]) -> list[Bound]:
    """One for each point whose largest part is known for sure: what is absent could not be larger.

    A fetch stall counts as one, and is then called by what most of it waits for.
    """
    told = []
    for point in points:
        found = shares(point)
        parts = [[kind] for kind in PARTS.values() if kind in found]
        parts.append([kind for kind in WAITING if kind in found])  # one stall, whatever it is waited for
        largest = max(parts, key=lambda kinds: sum(found[kind] for kind in kinds))
        if largest and sum(found[kind] for kind in largest) >= 1 - sum(found.values()):
            told.append(Bound(point, max(largest, key=lambda kind: found[kind]), found))
    return told


def shares(point: Point) -> dict[Kind, float]:
    """Kind -> its share of the epoch, from the mean parts of all runs; empty where no part is known.

    The fetch stall is split between storage and preprocessing as the time that the loader's processes spent on each.
    """
    e2e_s = measured(point, TIME)
    if not e2e_s:
        return {}
    whole_s = statistics.fmean(e2e_s)
    parts = {kind: seconds / whole_s for name, kind in PARTS.items() if (seconds := _seconds(point, name)) is not None}
    stall_s = _seconds(point, STALL)
    if stall_s is None:
        return parts
    return {**parts, **{kind: share * stall_s / whole_s for kind, share in _loading(point).items()}}


def _loading(point: Point) -> dict[Kind, float]:
    """How a fetch stall is shared out."""
    read_s, preprocess_s = (_seconds(point, f"loader_{part}_s") for part in ("read", "preprocess"))
    if read_s is None or preprocess_s is None or read_s + preprocess_s <= 0:
        return {DATA: 1.0}
    storage = read_s / (read_s + preprocess_s)
    return {STORAGE: storage, PREPROCESSING: 1 - storage}


def _seconds(point: Point, name: str) -> float | None:
    """A part of the epoch in the mean of all runs; a small negative one, as an unclamped overhead may be, is none."""
    mean = point.mean(f"steady/{name}")
    return max(0.0, mean) if mean is not None and math.isfinite(mean) else None
