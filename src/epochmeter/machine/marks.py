"""Readings of counters over time, to be looked up at the borders of windows, which may be known later."""

from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter
from typing import Generic, TypeVar

from epochmeter.shared.units import NANOSECOND

T = TypeVar("T")

MAX_DISTANCE_S, MAX_DISTANCE_FRACTION = 0.05, 0.02
"""Largest time between a border of a window and the reading used for it: in seconds, or as a fraction of the window."""

_moment = itemgetter(0)


class Marks(Generic[T]):
    """Readings with their times (monotonic clock), the oldest first."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, T]] = []

    def __iter__(self) -> Iterator[tuple[int, T]]:
        return iter(self._marks)

    def add(self, at_ns: int, reading: T) -> None:
        """Add a reading, the newest so far."""
        self._marks.append((at_ns, reading))

    def around(self, at_ns: int) -> tuple[tuple[int, T] | None, tuple[int, T] | None]:
        """Return the last mark before a moment and the first one at or after it, as far as they exist."""
        after = bisect_left(self._marks, at_ns, key=_moment)
        later = self._marks[after] if after < len(self._marks) else None
        return (self._marks[after - 1] if after else None), later

    def at_borders(self, opened_ns: int, closed_ns: int) -> tuple[T, T] | None:
        """Return the readings that are nearest to the borders of a window.

        None if one of them is too far from its border, or if they are the same.
        """
        limit_ns = max(MAX_DISTANCE_S / NANOSECOND, MAX_DISTANCE_FRACTION * (closed_ns - opened_ns))
        first, last = self._nearest(opened_ns, limit_ns), self._nearest(closed_ns, limit_ns)
        if first is None or last is None or first[0] >= last[0]:
            return None
        return first[1], last[1]

    def discard_before(self, before_ns: int) -> None:
        """Discard the readings before a moment except the last of them."""
        del self._marks[: max(0, bisect_left(self._marks, before_ns, key=_moment) - 1)]

    def _nearest(self, at_ns: int, limit_ns: float) -> tuple[int, T] | None:
        marks = [mark for mark in self.around(at_ns) if mark is not None and abs(mark[0] - at_ns) <= limit_ns]
        return min(marks, key=lambda mark: abs(mark[0] - at_ns), default=None)
