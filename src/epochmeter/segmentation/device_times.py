"""Times of a thread's events on its device: those of the host's clock on a CPU, else from timestamps of the GPU."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from epochmeter.shared.events import BATCH, DEVICE_TIME, HAS_BEGIN_TIME, HAS_DEVICE_TIME, IDLE_TIME, Event

MAX_DRIFT = 1e-4
"""Largest drift of the host's clock against the device's. Clocks corrected by NTP are within 5e-5."""


class TimedEvent(NamedTuple):
    """An event, and when the device reached its begin and its end, on the host's clock."""

    event: Event
    device_begun_ns: int
    device_ns: int


class DeviceTimes:
    """Gives the events of one thread the times of its device.

    A GPU reaches a timestamp later than the host records it, or at once if it is idle. The largest time by which the
    host's clock was ahead of the device's is therefore the offset of the two clocks, but for their drift since then.
    """

    def __init__(self) -> None:
        self._waiting: deque[Event] = deque()  # the first of them has a timestamp that is not known
        self._times_ns: dict[int, int] = {}  # by number, on the device's clock
        self._now_ns = 0  # the last of them
        self._offset_ns: float = -math.inf
        self._recorded_ns = 0  # when the last of the timestamps used was recorded, on the host's clock
        self.unread = 0  # events whose timestamps were never read, as the process was killed

    def timed(self, events: Iterable[Event], *, is_final: bool = False) -> Iterator[TimedEvent]:
        """Yield the events in order, as far as their timestamps are known; all of them if the process has ended."""
        for event in events:
            if event.kind == DEVICE_TIME:
                self._now_ns += round(event.value)
                self._times_ns[event.number] = self._now_ns
            elif not self._waiting and not event.flags & HAS_DEVICE_TIME:
                yield TimedEvent(event, event.begun_ns, event.time_ns)
            else:
                self._waiting.append(event)
        while self._waiting and (is_final or self._is_known(self._waiting[0])):
            event = self._waiting.popleft()
            timed = self._timed(event) if self._is_known(event) else self._untimed(event)
            if event.kind != IDLE_TIME:
                yield timed

    def _is_known(self, event: Event) -> bool:
        return not event.flags & HAS_DEVICE_TIME or event.number + (event.kind == BATCH) in self._times_ns

    def _untimed(self, event: Event) -> TimedEvent:
        self.unread += event.kind != IDLE_TIME
        return TimedEvent(event, event.begun_ns, event.time_ns)

    def _timed(self, event: Event) -> TimedEvent:
        if not event.flags & HAS_DEVICE_TIME:
            return TimedEvent(event, event.begun_ns, event.time_ns)
        if event.kind == BATCH:
            begun_ns = self._host_ns(event.number, event.begun_ns)
            return TimedEvent(event, begun_ns, self._host_ns(event.number + 1, event.time_ns))
        has_begin = event.flags & HAS_BEGIN_TIME
        begun_ns = self._host_ns(event.other, event.begun_ns) if has_begin else event.begun_ns
        return TimedEvent(event, begun_ns, self._host_ns(event.number, event.time_ns))

    def _host_ns(self, number: int, recorded_ns: int) -> int:
        """Return a timestamp on the host's clock, which was recorded at a time of that clock."""
        device_ns = self._times_ns.pop(number)
        least_ns = self._offset_ns - MAX_DRIFT * max(0, recorded_ns - self._recorded_ns)
        self._offset_ns = max(recorded_ns - device_ns, least_ns)
        self._recorded_ns = max(recorded_ns, self._recorded_ns)
        return device_ns + round(self._offset_ns)
