"""Meter readings over time, from which the joules up to any moment are interpolated."""

from bisect import bisect_left
from collections.abc import Collection
from operator import attrgetter

from epochmeter.power.window_energy import Reading

RECENT_NS = 2_000_000_000  # age up to which all readings are kept

_moment = attrgetter("at_ns")


class Readings:
    """The readings of a meter, the oldest first.

    A reading is taken as soon as a window's border is noticed, and periodically, since a border may be known later.
    """

    def __init__(self) -> None:
        self._readings: list[Reading] = []
        self._at_borders: set[int] = set()  # times of readings at noticed borders

    def __len__(self) -> int:
        return len(self._readings)

    def add(self, reading: Reading, *, is_at_border: bool) -> None:
        """Add a reading, the newest so far."""
        self._readings.append(reading)
        if is_at_border:
            self._at_borders.add(reading.at_ns)

    def at(self, at_ns: int) -> Reading:
        """Return the reading at a moment, interpolated between the two around it, else the nearest one as it is.

        Its begin and end enclose the nearest reading, and `apart_ns` is the distance of that one. `ValueError` if there
        is none.
        """
        before, after = self._around(at_ns)
        if before is None or after is None:
            nearest = before or after
            if nearest is None:
                raise ValueError("the meter was not read")
            return nearest._replace(apart_ns=abs(nearest.at_ns - at_ns))
        nearest = min((before, after), key=lambda reading: abs(reading.at_ns - at_ns))
        return Reading(
            at_ns,
            _interpolated(before, after, at_ns),
            at_ns - min(at_ns, nearest.begun_ns),
            max(at_ns, nearest.ended_ns) - at_ns,
            nearest.suspended_s,
            abs(nearest.at_ns - at_ns),
            {**before.failures, **after.failures},
            nearest.conditions,
        )

    def thin(self, now_ns: int, borders: Collection[int]) -> None:
        """Discard old readings, except those at noticed borders and around other moments that may be borders."""
        kept = {id(reading) for at_ns in borders for reading in self._around(at_ns) if reading}
        recent_ns = now_ns - RECENT_NS
        self._readings = [
            reading
            for reading in self._readings
            if reading.at_ns >= recent_ns or reading.at_ns in self._at_borders or id(reading) in kept
        ]

    def discard_before(self, before_ns: int) -> None:
        """Discard the readings before a moment, except the last of them."""
        del self._readings[: max(0, bisect_left(self._readings, before_ns, key=_moment) - 1)]
        self._at_borders &= {reading.at_ns for reading in self._readings}

    def _around(self, at_ns: int) -> tuple[Reading | None, Reading | None]:
        """Return the last reading before a moment, and the first one at or after it."""
        after = bisect_left(self._readings, at_ns, key=_moment)
        later = self._readings[after] if after < len(self._readings) else None
        return (self._readings[after - 1] if after else None), later


def _interpolated(before: Reading, after: Reading, at_ns: int) -> dict[str, float]:
    """Return the joules at a moment between two readings; a counter that ran backwards is missing."""
    share = (at_ns - before.at_ns) / (after.at_ns - before.at_ns)
    joules: dict[str, float] = {}
    for name in before.joules.keys() & after.joules.keys():
        increase_j = after.joules[name] - before.joules[name]
        if increase_j >= 0:
            joules[name] = before.joules[name] + share * increase_j
    return joules
