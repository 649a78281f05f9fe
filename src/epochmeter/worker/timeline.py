"""Timelines of what trains: marks put down as work goes by, and the intervals between those that have passed."""

import collections
import time


def _nanoseconds(name):
    """A clock of the `time` module in integer nanoseconds, also on Python 3.6, which has none of these."""
    exact = getattr(time, name + "_ns", None)
    seconds = getattr(time, name)
    return exact if exact is not None else lambda: int(seconds() * 1e9)


perf_counter_ns = _nanoseconds("perf_counter")
monotonic_ns = _nanoseconds("monotonic")


class HostTimeline:
    """The timeline of a CPU, which does its work as it is called: a mark is a reading of the host's clock."""

    waits = None  # nothing here is ever waited for

    def __init__(self, now=perf_counter_ns):
        self._now = now
        self._last = None
        self._marks = []

    def synchronize(self):
        pass

    def start(self):
        self._marks.clear()
        self._last = self._now()

    def mark(self):
        self._marks.append(self._now())

    def drain(self, take):
        """Hands the intervals between marks that have passed, in nanoseconds and in order, to `take`."""
        last = self._last
        for mark in self._marks:
            take(mark - last)
            last = mark
        self._last = last
        self._marks.clear()


class EventTimeline:
    """The timeline of an accelerator: a mark is an event on its stream, read once `query()` says it has passed.

    At most `capacity` events are under way: past that the host waits for the oldest, which `waits` counts.
    `make_event` gives an event with `record`, `query`, `synchronize` and `elapsed_time` (ms), such as
    `torch.cuda.Event(enable_timing=True)`; `synchronize` waits for the device.
    """

    def __init__(self, make_event, synchronize, capacity=4096):
        self.synchronize = synchronize
        self.waits = 0
        self._make_event = make_event
        self._capacity = capacity
        self._passed = None
        self._under_way = collections.deque()
        self._free = []

    def start(self):
        self.waits = 0
        if self._passed is not None:
            self._free.append(self._passed)
        self._passed = self._recorded()

    def mark(self):
        self._under_way.append(self._recorded())

    def drain(self, take):
        under_way = self._under_way
        while under_way and (self._has_room() or self._wait()) and under_way[0].query():
            event = under_way.popleft()
            take(self._passed.elapsed_time(event) * 1e6)
            self._free.append(self._passed)
            self._passed = event

    def _recorded(self):
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event

    def _has_room(self):
        return len(self._under_way) <= self._capacity

    def _wait(self):
        self.waits += 1
        self._under_way[0].synchronize()
        return True
