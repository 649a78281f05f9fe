"""Timelines of devices: timestamps from the host's clock or from CUDA events, read without waiting."""

import collections
import operator
import time
from typing import TYPE_CHECKING, Callable, Deque, List, Optional, Union

if TYPE_CHECKING:
    from torch.cuda import Event


def _nanoseconds(name: str) -> Callable[[], int]:
    """Return a clock of the `time` module in integer nanoseconds; Python 3.6 only has clocks in float seconds."""
    seconds: Callable[[], float] = getattr(time, name)
    nanoseconds: Callable[[], int] = getattr(time, name + "_ns", lambda: int(seconds() * 1e9))
    return nanoseconds


perf_counter_ns = _nanoseconds("perf_counter")
monotonic_ns = _nanoseconds("monotonic")
wall_ns = _nanoseconds("time")


def wall_offset_ns() -> int:
    """Return the wall clock's time at zero of the monotonic clock, from the closest of some pairs of readings."""
    pairs = []
    for _ in range(5):
        before, wall, after = monotonic_ns(), wall_ns(), monotonic_ns()
        pairs.append((after - before, wall - (before + after) // 2))
    return min(pairs)[1]


class HostTimeline:
    """Timeline of a CPU, where work is synchronous: a timestamp is a reading of the host's clock, in ns."""

    waits: Optional[int] = None  # a CPU timestamp never has to be waited for
    _last: int  # the timestamp before the marks, once the timeline was started

    def __init__(self, now: Callable[[], int] = perf_counter_ns) -> None:
        self._now = now
        self._marks: List[int] = []
        self.mark_at = self._marks.append
        """Record a reading of the host's clock as a timestamp."""

    def synchronize(self) -> None:
        """Do nothing: the CPU has no queue."""

    def start(self) -> None:
        """Drop all timestamps and record the first one."""
        self._marks.clear()
        self._last = self._now()

    def mark(self) -> None:
        """Record a timestamp."""
        self._marks.append(self._now())

    def drop_second_to_last(self) -> None:
        """Drop the timestamp before the last, which is not drained yet."""
        del self._marks[-2]

    def drain(self) -> List[int]:
        """Return the intervals between completed timestamps, in ns and in order."""
        marks = [self._last, *self._marks]
        self._last = marks[-1]
        self._marks.clear()
        return list(map(operator.sub, marks[1:], marks))


class EventTimeline:
    """Timeline of an accelerator: a timestamp is an event on its stream, read once `query()` reports it as completed.

    `make_event` makes events such as `torch.cuda.Event(enable_timing=True)`; `synchronize` waits for the device. If
    more than `capacity` events are pending, the host waits for the oldest; `waits` counts this.
    """

    def __init__(
        self, make_event: "Callable[[], Event]", synchronize: Callable[[], None], capacity: int = 4096
    ) -> None:
        self.synchronize = synchronize
        self.waits = 0
        self._make_event, self._capacity = make_event, capacity
        self._passed = make_event()  # the last one that was read
        self._pending: "Deque[Event]" = collections.deque()
        self._free: "List[Event]" = []

    def start(self) -> None:
        self.waits = 0
        self._free.append(self._passed)
        self._passed = self._recorded()

    def mark(self) -> None:
        self._pending.append(self._recorded())

    def mark_at(self, now_ns: int) -> None:
        """Record a timestamp of the device, whose clock is not the host's."""
        self.mark()

    def drop_second_to_last(self) -> None:
        del self._pending[-2]

    def drain(self) -> List[float]:
        pending = self._pending
        intervals: List[float] = []
        while pending:
            if len(pending) > self._capacity:
                self.waits += 1
                pending[0].synchronize()
            if not pending[0].query():
                break
            event = pending.popleft()
            intervals.append(self._passed.elapsed_time(event) * 1e6)
            self._free.append(self._passed)
            self._passed = event
        return intervals

    def _recorded(self) -> "Event":
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event


Timeline = Union[HostTimeline, EventTimeline]
