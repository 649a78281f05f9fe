"""The uncertainty of the energy of several intervals by the same instruments, such as all windows of a run.

A counter is read at the borders of intervals. Its reading lacks the energy since its last renewal, which the next
interval has instead. So errors at a border that two intervals share cancel, and those of two close borders almost do.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from epochmeter.shared.units import NANOSECOND

NORMAL_95 = 1.96
PARTS = ("step_j", "stale_j", "unsampled_j", "in_step_j")
"""Joules of a term that are parts of its uncertainty, which add up in another way than the rest."""


class Interval(NamedTuple):
    """The time between two readings (monotonic clock), and its energy as a term of a sum (`WindowEnergy.term`)."""

    opened_ns: int
    closed_ns: int
    term: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return (self.closed_ns - self.opened_ns) * NANOSECOND


class Uncertainty(NamedTuple):
    """The half-width of the 95 % interval of a sum, in parts.

    Attributes:
        rest_j: Errors whose sign may always be the same.
        step_j: Of rounding.
        unsampled_j: Power that a part-time sensor missed.
        in_step_j: The same, if power repeats in each step.
        border_w: Highest power at a border.
        period_s: Largest age of a counter's reading; 0 without a counter.
        stale_j: The energy that a counter's readings at the borders lacked.
    """

    rest_j: float = 0.0
    step_j: float = 0.0
    unsampled_j: float = 0.0
    in_step_j: float = 0.0
    border_w: float = 0.0
    period_s: float = 0.0
    stale_j: float = 0.0

    @property
    def half_width_j(self) -> float:
        return self.rest_j + self.step_j + math.hypot(self.stale_j, max(self.unsampled_j, self.in_step_j))


def intervals_of(windows: Iterable[Mapping[str, Any]]) -> list[Interval]:
    """Return the intervals of windows in the record."""
    energies = [window["energy"] for window in windows]
    return [Interval(energy["opened_ns"], energy["closed_ns"], energy["term"]) for energy in energies]


def total_uncertainty_j(intervals: Sequence[Interval]) -> float:
    """Return the 95 % confidence interval (plus or minus) of the energy of several intervals, in joules."""
    return sum_uncertainty(intervals).half_width_j


def sum_uncertainty(intervals: Sequence[Interval], others: Sequence[Interval] = ()) -> Uncertainty:
    """Return the uncertainty of the energy of several intervals; `others` show the power where these do not.

    Rounding, and power that a part-time sensor missed, are independent from interval to interval, so their squares are
    added. Energy that readings at borders lack: see `_stale_j`. All other errors are added, since the same instrument
    may always err in the same direction.
    """
    terms = [interval.term for interval in intervals]
    if not all("stale_j" in term or not term.get("period_s") for term in terms):
        return _without_parts(terms, mean_power_w(intervals))
    period_s = max((term.get("period_s", 0.0) for term in terms), default=0.0)
    at_borders_w = _at_borders_w(intervals, others)
    return Uncertainty(
        rest_j=math.fsum(map(_rest_j, terms)),
        step_j=math.hypot(*(term.get("step_j", 0.0) for term in terms)),
        unsampled_j=math.hypot(*(term.get("unsampled_j", 0.0) for term in terms)),
        in_step_j=math.fsum(map(_in_step_j, terms)),
        border_w=max(at_borders_w, default=0.0),
        period_s=period_s,
        stale_j=_stale_j(intervals, at_borders_w, period_s),
    )


def mean_power_w(intervals: Sequence[Interval]) -> float:
    """Return the mean power of intervals."""
    seconds = math.fsum(interval.seconds for interval in intervals)
    return math.fsum(interval.term["energy_j"] for interval in intervals) / seconds if seconds > 0 else 0.0


def _at_borders_w(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[float]:
    """Return the highest power at the borders of each interval.

    A counter may not advance in a short interval: then that is the highest one of all intervals.
    """
    watts = [_border_w(interval.term) for interval in intervals]
    highest_w = max([*watts, *(_border_w(other.term) for other in others)], default=0.0)
    return [power_w or highest_w for power_w in watts]


def _border_w(term: Mapping[str, float]) -> float:
    period_s = term.get("period_s", 0.0)
    return term.get("stale_j", 0.0) / period_s if period_s else 0.0


def sum_adjacent(parts: Sequence[Uncertainty]) -> Uncertainty:
    """Return the uncertainty of a time without gaps, given those of its parts: all borders but two cancel."""
    border_w = max(part.border_w for part in parts)
    period_s = max(part.period_s for part in parts)
    return Uncertainty(
        rest_j=math.fsum(part.rest_j for part in parts),
        step_j=max(part.step_j for part in parts),
        unsampled_j=math.hypot(*(part.unsampled_j for part in parts)),
        in_step_j=math.fsum(part.in_step_j for part in parts),
        border_w=border_w,
        period_s=period_s,
        stale_j=border_w * period_s,
    )


def _rest_j(term: Mapping[str, float]) -> float:
    """Return the half-width of an interval without the errors of its counters."""
    step_j, stale_j, unsampled_j, in_step_j = (term.get(name, 0.0) for name in PARTS)
    counter_j = step_j + math.hypot(stale_j, max(unsampled_j, in_step_j))
    return max(0.0, term["energy_uncertainty_j"] - counter_j)


def _in_step_j(term: Mapping[str, float]) -> float:
    in_step_j = term.get("in_step_j", 0.0)
    return in_step_j if in_step_j > term.get("unsampled_j", 0.0) else 0.0


def _stale_j(intervals: Sequence[Interval], at_borders_w: Sequence[float], period_s: float) -> float:
    """Half-width for the energy that readings at borders lacked: the smallest of three bounds.

    1. Each interval may have the energy of one period too much or too little.
    2. The intervals are the whole time, which has one such error, without its gaps.
    3. The same error of each interval is hardly larger than the interval, and partly random. If all short intervals
       happen to have a renewal, it is what they measured.
    """
    energy_j = math.fsum(interval.term["energy_j"] for interval in intervals)
    age_s = max((interval.term.get("age_s", 0.0) for interval in intervals), default=0.0)
    gaps_s = [(after.opened_ns - before.closed_ns) * NANOSECOND for before, after in pairwise(intervals)]
    # Intervals that overlap, or are of another boot of the machine, have no common border.
    apart_s = [gap_s if gap_s >= 0 else math.inf for gap_s in gaps_s]
    at_gaps_w = [max(pair) for pair in pairwise(at_borders_w)]
    lengths_s = [interval.seconds for interval in intervals]
    each_alone_j = period_s * math.fsum(at_borders_w)
    without_gaps_j = period_s * max(at_borders_w, default=0.0) + _short_j(apart_s, at_gaps_w, period_s, age_s)
    short_j = max(energy_j, _short_j(lengths_s, at_borders_w, period_s, age_s))
    return min(each_alone_j, without_gaps_j, short_j)


def _short_j(lengths_s: Sequence[float], watts: Sequence[float], period_s: float, age_s: float) -> float:
    """Half-width for the energy that readings at both ends of some times lack, in which power is at most `watts`.

    A counter shows power later, by `age_s` on average: the means differ by the power of that time, or of all the time.
    Its last renewal is up to a period before a reading, at random: two uniform errors, or of a short time an error of
    one period whose probability is the fraction of the period. Random errors are independent from time to time.
    """
    late_j = math.fsum(min(length_s, age_s) * power_w for length_s, power_w in zip(lengths_s, watts, strict=True))
    variances = (
        power_w**2 * period_s * min(length_s, period_s / 3) for length_s, power_w in zip(lengths_s, watts, strict=True)
    )
    return late_j + NORMAL_95 * math.sqrt(math.fsum(variances))


def _without_parts(terms: Sequence[Mapping[str, float]], mean_w: float) -> Uncertainty:
    """Return the uncertainty by terms without parts, of which an interval's is at least one period of the counter."""
    unsampled_j = [term.get("unsampled_j", 0.0) for term in terms]
    others_j = [
        max(math.sqrt(max(0.0, term["energy_uncertainty_j"] ** 2 - part_j**2)), mean_w * term.get("period_s", 0.0))
        for term, part_j in zip(terms, unsampled_j, strict=True)
    ]
    return Uncertainty(unsampled_j=math.hypot(*unsampled_j), stale_j=math.fsum(others_j))
