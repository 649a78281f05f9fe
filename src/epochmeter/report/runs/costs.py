"""What a steady epoch of each point costs, and which points are as good as the best."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from epochmeter.report.runs.configuration import Configuration, titles
from epochmeter.report.statistics import apart, range_of, spreads

TIME, ENERGY, POWER, PEAK = (f"steady/{name}" for name in ("e2e_s", "energy_j", "power_mean_w", "power_peak_w"))
LIMIT, HIGHEST = "total/power_limit_w", "total/power_limit_max_w"
FEW = 3
"""Points that are as good are named up to so many; more are counted."""


FREEDOMS = (*range(1, 31), 40, 60, 120)
"""The degrees of freedom for which a studentized range is looked up, as in the tables of it: it takes a while."""


@dataclass(frozen=True)
class Cost:
    """A point's steady epoch, a value a run: seconds, and joules where each of its runs measured them alike."""

    point: Configuration
    title: str
    times_s: Sequence[float]
    joules: Sequence[float] = ()
    covers: str | None = None
    """What the joules are those of; None where there are none."""

    @cached_property
    def time_s(self) -> float:
        return statistics.fmean(self.times_s)

    @cached_property
    def energy_j(self) -> float | None:
        return statistics.fmean(self.joules) if self.joules else None

    @cached_property
    def power_w(self) -> float | None:
        """In the mean of its epochs; None where there is no energy."""
        watts = positive_values(self.point, POWER) if self.joules else []
        if watts:
            return statistics.fmean(watts)
        return None if self.energy_j is None else self.energy_j / self.time_s


def costs(points: Sequence[Configuration]) -> list[Cost]:
    """Those of the points whose time is known, in their order."""
    timed = [(positive_values(point, TIME), point, title) for point, title in zip(points, titles(points), strict=True)]
    return [Cost(point, title, times_s, *_energy(point)) for times_s, point, title in timed if times_s]


def comparable(known: Sequence[Cost]) -> dict[str, list[Cost]]:
    """What the energy covers -> the costs that can be put side by side, the most first."""
    groups: dict[str, list[Cost]] = {}
    for cost in known:
        if cost.covers is not None:
            groups.setdefault(cost.covers, []).append(cost)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def positive_values(point: Configuration, name: str) -> list[float]:
    """A metric by its full name, a value a run; empty where any run lacks it, or has no finite one above zero."""
    values = point.values(name)
    return values if all(math.isfinite(value) and value > 0 for value in values) else []


def indistinguishable_from_best(candidates: Iterable[Sequence[float]], best: Sequence[float]) -> list[bool]:
    """For each candidate's values of runs whether they are not told apart from the best: by repeats, or as equal.

    The best of many that are equal seems better by chance, so that a candidate is worse where it lies farther from it
    than the extremes of so many equal ones do (Tukey's studentized range), on logarithms, with spreads that all of them
    tell of: two repeats of a job alone would tell nothing apart. One run beside repeats is as good where it may be one
    more of them.
    """
    every = list(candidates)
    logs = [[math.log(value) for value in values] for values in (*every, best)]
    *known, of_best = spreads(logs)

    def alike(values: Sequence[float], place: int) -> bool:
        told = apart(logs[place], logs[-1], known[place], of_best)
        if told is None:
            return math.isclose(*values, *best)
        freedom = FREEDOMS[max(0, bisect_right(FREEDOMS, told.freedom) - 1)]
        return told.errors <= range_of(len(logs), freedom)

    return [alike(values, place) for place, values in enumerate(every)]


def also_as_good(names: Sequence[str], lead: str = "As good") -> str:
    """A sentence on those that are as good as what was just told; nothing where there are none."""
    if not names:
        return ""
    more = [f"{len(names) - FEW} more"] if len(names) > FEW else []
    return f" {lead}, as far as these runs tell: {'; '.join([*names[:FEW], *more])}."


def max_power(known: Sequence[Cost]) -> tuple[float, str]:
    """Watts that the devices of these costs draw at most, and what that is read from.

    It is the highest limit that the devices take, which a run records that was asked for one (Zeus, NSDI 2023).
    Without it, a point tells by the limits that were applied, or by the largest power sampled.
    """
    metered = [cost for cost in known if cost.joules]
    if not metered:
        raise ValueError("no energy, and so no power, was measured of any of these points")
    highest_w = max((_limit_w(cost, HIGHEST) for cost in metered), default=0.0)
    if highest_w >= max(cost.power_w or 0.0 for cost in metered):
        return highest_w, "the highest limit that the devices take"
    most_w, source = max(_most(cost) for cost in metered)
    return most_w, f"{source}, as no run tells the highest limit of the devices"


def _energy(point: Configuration) -> tuple[Sequence[float], str | None]:
    covers = {row.energy_covers for row in point.runs}
    joules = positive_values(point, ENERGY)
    alike = len(covers) == 1 and None not in covers
    return (joules, str(covers.pop())) if joules and alike else ((), None)


def _most(cost: Cost) -> tuple[float, str]:
    power_w = cost.power_w or 0.0
    limit_w, peaks = _limit_w(cost, LIMIT), positive_values(cost.point, PEAK)
    if limit_w and limit_w >= power_w:
        return limit_w, "the largest limit that was applied"
    if peaks:
        return max(peaks), "the largest power sampled"
    return power_w, "the largest mean power of an epoch"


def _limit_w(cost: Cost, name: str) -> float:
    """A limit of each device that one was set on, of them all together; zero where it is not known."""
    return max(positive_values(cost.point, name), default=0.0) * (cost.point.runs[0].power_limited_devices or 0)
