"""Samples of power by the monotonic clock: the joules that they make, and how well they tell a stretch of time."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from trainmeter.metrics import NANOSECOND

NORMAL_95 = 1.96
UNTAKEN = "no sample was taken"
"""Why nothing is known since the last sample, where no read has failed since."""


class Sampling(NamedTuple):
    """How well a stretch of time was sampled."""

    samples: int
    gap_max_s: float
    """The longest that the total went unread."""
    failed: int
    """Reads that failed; those between two good ones are bridged by a straight line."""
    lost: dict[str, str]
    """Why a domain has no energy in this stretch."""
    peak_w: float | None
    half_width_j: float
    """What the total's energy may be wrong by, in 95 of 100 stretches, for being sampled and rounded."""
    inside: Mapping[str, int] = MappingProxyType({})
    """How many times each domain was read in it."""
    parts: Sequence[Sampling | None] = ()
    """Those of the meters that a sum is made of."""


class Powers(NamedTuple):
    """Samples in the order of time: watts by domain, and of the total; NaN where one was not read."""

    times_ns: array
    watts: dict[str, array]
    total_w: array


NO_POWERS = Powers(array("q"), {}, array("d"))


class Line:
    """One domain's joules so far: the area below the straight lines between its good samples."""

    def __init__(self) -> None:
        self.at_ns: int | None = None
        self.watts = 0.0
        self.joules = 0.0
        self.gaps: list[tuple[int, int, str]] = []
        """From when to when nothing was known, and why."""
        self.why = "it was never read"

    def add(self, at_ns: int, watts: float, bridge_ns: int) -> None:
        if self.at_ns is not None:
            if at_ns - self.at_ns > bridge_ns:
                self.gaps.append((self.at_ns, at_ns, self.why))
            else:
                self.joules += (at_ns - self.at_ns) * NANOSECOND * (self.watts + watts) / 2
        self.at_ns, self.watts, self.why = at_ns, watts, UNTAKEN

    def joules_at(self, at_ns: int, bridge_ns: int) -> float | None:
        """The joules up to a moment at or after the last sample; None once that is too old to go by."""
        if self.at_ns is None or at_ns - self.at_ns > bridge_ns:
            return None
        return self.joules + (at_ns - self.at_ns) * NANOSECOND * self.watts

    def lost(self, opened_ns: int, closed_ns: int, bridge_ns: int) -> str | None:
        """Why the energy between two moments is not known, or None where it is."""
        if self.at_ns is None:
            return self.why
        if self.at_ns < opened_ns and self.why != UNTAKEN:
            return f"not once read in it: {self.why}"
        open_yet = [(self.at_ns, closed_ns, self.why)] if closed_ns - self.at_ns > bridge_ns else []
        within = [gap for gap in (*self.gaps, *open_yet) if gap[0] < closed_ns and gap[1] > opened_ns]
        return f"unread for {(within[0][1] - within[0][0]) * NANOSECOND:.1f} s: {within[0][2]}" if within else None


class Series:
    """Samples of several domains, added by one thread and asked for by another.

    A read that failed is bridged by a straight line from the good sample before it to the one after; not over more
    than `bridge_s`, for in such a gap nothing is known. `total` names the domains that together are the total power;
    `steps_w` is how finely each is told, `averaging_s` over how long each is averaged before, and `late_s` how long
    before a border the last sample may lie, where none is taken there.
    """

    def __init__(
        self,
        domains: Iterable[str],
        *,
        total: Sequence[str],
        bridge_s: float,
        steps_w: Mapping[str, float] | None = None,
        averaging_s: float = 0.0,
        late_s: float = 0.0,
    ) -> None:
        self.bridge_s = bridge_s
        self._lines = {name: Line() for name in domains}
        self._total = tuple(total)
        self._step_w = sum((steps_w or {}).get(name, 0.0) for name in total)
        self._averaging_s, self._late_s = averaging_s, late_s
        self._begun_ns: int | None = None
        self._times_ns = array("q")
        self._watts = {name: array("d") for name in self._lines}
        self._lock = threading.Lock()

    def add(self, at_ns: int, watts: Mapping[str, float], failed: Mapping[str, str] | None = None) -> None:
        """Adds what was read at a moment, and why the rest was not."""
        failed = failed or {}
        with self._lock:
            self._begun_ns = at_ns if self._begun_ns is None else self._begun_ns
            self._times_ns.append(at_ns)
            for name, line in self._lines.items():
                self._watts[name].append(watts.get(name, math.nan))
                if name in watts:
                    line.add(at_ns, watts[name], self._bridge_ns)
                elif name in failed:
                    line.why = failed[name]

    def lost(self, at_ns: int) -> dict[str, str]:
        """The domains that have not been read for longer than a bridge reaches, and why."""
        known_ns = at_ns - self._bridge_ns
        with self._lock:
            begun_ns = at_ns if self._begun_ns is None else self._begun_ns
            since_ns = {name: begun_ns if line.at_ns is None else line.at_ns for name, line in self._lines.items()}
            return {name: line.why for name, line in self._lines.items() if since_ns[name] < known_ns}

    def joules(self, at_ns: int) -> dict[str, float]:
        """Each domain's joules up to a moment, which is not before the last sample; without those that are lost."""
        with self._lock:
            known = {name: line.joules_at(at_ns, self._bridge_ns) for name, line in self._lines.items()}
        return {name: joules for name, joules in known.items() if joules is not None}

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling:
        """How well the stretch between two moments was sampled, as far as its samples were not drained."""
        with self._lock:
            first, last = (bisect_left(self._times_ns, at_ns) for at_ns in (opened_ns, closed_ns + 1))
            inside = {name: sum(map(math.isfinite, values[first:last])) for name, values in self._watts.items()}
            around = slice(max(0, first - 1), last + 1)
            times_ns, watts = self._times_ns[around], [self._watts[name][around] for name in self._total]
            reasons = {name: line.lost(opened_ns, closed_ns, self._bridge_ns) for name, line in self._lines.items()}
        told = tally(times_ns, map(sum, zip(*watts, strict=True)), opened_ns, closed_ns)
        seconds = (closed_ns - opened_ns) * NANOSECOND
        return Sampling(
            samples=told.samples,
            gap_max_s=told.gap_max_ns * NANOSECOND,
            failed=len(inside) * (last - first) - sum(inside.values()),
            lost={name: why for name, why in reasons.items() if why},
            peak_w=told.peak_w if told.samples else None,
            # A sensor that averages shifts what happens near a border over it, and one that is read late misses it;
            # one that rounds may always do so to the same side.
            half_width_j=NORMAL_95 * math.sqrt(told.variance_j2)
            + (self._averaging_s / 2 + self._late_s) * told.swing_w
            + self._step_w / 2 * seconds,
            inside=inside,
        )

    def drain(self, before_ns: int) -> Powers:
        """Hands over the samples before a moment, and forgets them."""
        with self._lock:
            count = bisect_left(self._times_ns, before_ns)
            times_ns, self._times_ns = self._times_ns[:count], self._times_ns[count:]
            watts = {name: values[:count] for name, values in self._watts.items()}
            self._watts = {name: values[count:] for name, values in self._watts.items()}
            for line in self._lines.values():
                line.gaps = [gap for gap in line.gaps if gap[1] > before_ns]
        of_total = [watts[name] for name in self._total]
        return Powers(times_ns, watts, array("d", map(sum, zip(*of_total, strict=True))))

    @property
    def _bridge_ns(self) -> int:
        return round(self.bridge_s / NANOSECOND)


class Tally(NamedTuple):
    """What samples of the total tell of a stretch."""

    samples: int
    gap_max_ns: int
    peak_w: float
    swing_w: float
    """From the least to the most, its neighbors included."""
    variance_j2: float
    """Of the energy, for being sampled."""


def tally(times_ns: Iterable[int], watts: Iterable[float], opened_ns: int, closed_ns: int) -> Tally:
    """Goes once through the samples of a stretch and its neighbors; NaN where the total was not read.

    Each sample stands for half of the time to either neighbor. What it departs from the straight line between them is
    what a straight line may be wrong by: for noise two thirds of its square are the error's variance, for a step a
    sixth. The greater holds for both, and a ramp has none.
    """
    samples, gap_max_ns, last_ns, variance_j2 = 0, 0, opened_ns, 0.0
    peak_w, low_w, high_w = -math.inf, math.inf, -math.inf
    before, here = None, None
    for at_ns, now_w in zip(times_ns, watts, strict=True):
        if math.isnan(now_w):
            continue
        if before and here:
            span_ns = at_ns - before[0]
            off_w = here[1] - before[1] - (now_w - before[1]) * (here[0] - before[0]) / span_ns
            variance_j2 += (off_w * span_ns * NANOSECOND / 2) ** 2 * 2 / 3
        before, here = here, (at_ns, now_w)
        low_w, high_w = min(low_w, now_w), max(high_w, now_w)
        if opened_ns <= at_ns <= closed_ns:
            samples, peak_w = samples + 1, max(peak_w, now_w)
            gap_max_ns, last_ns = max(gap_max_ns, at_ns - last_ns), at_ns
    return Tally(samples, max(gap_max_ns, closed_ns - last_ns), peak_w, max(0.0, high_w - low_w), variance_j2)
