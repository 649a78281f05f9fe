"""Where the time of an epoch goes, by marks on the device's timeline that nobody waits for.

    open | ask ready copied end | ask ready copied end | ... | ask (exhausted) | close

For step i, on the device's timeline:

    gap_i     = ready_i - end_{i-1}, for the first step ready - open: the device has nothing to do
    stall_i   = min(gap_i, host_wait_i): what waiting for data explains of it
    copy_i    = copied_i - ready_i
    compute_i = end_i - copied_i
    overhead  = the rest of the gaps, and close - last end

Host wait is the host's time inside `next()`, for the first step `iter()` and `next()`. End to end is measured by
its own clock and never summed; what the two disagree by is the residual.
"""

import collections
import time
from array import array

NANOSECOND = 1e-9
TOGETHER_NS = 20000
"""Readings of two clocks that lie no further apart are taken as one moment."""


def _nanoseconds(name):
    """A clock of the `time` module in integer nanoseconds, also on Python 3.6, which has none of these."""
    exact = getattr(time, name + "_ns", None)
    seconds = getattr(time, name)
    return exact if exact is not None else lambda: int(seconds() * 1e9)


perf_counter_ns = _nanoseconds("perf_counter")
monotonic_ns = _nanoseconds("monotonic")


class HostTimeline:
    """The timeline of a CPU, which does its work as it is called: a mark is a reading of the host's clock."""

    waits = 0

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
        self._passed.synchronize()

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


class Clock:
    """Times one pass over a loader at a time: `open`, iterate over `batches`, `close`, then read `parts`.

    `synchronous` waits for the device after every step, as programs do that time each step by the host's clock;
    `observe(steps, now_ns)` is told after every step.
    """

    def __init__(self, timeline, synchronous=False, observe=lambda steps, now_ns: None, host=perf_counter_ns,
                 wall=monotonic_ns):  # fmt: skip
        self._timeline = timeline
        self._synchronous = synchronous
        self._observe = observe
        self._host = host
        self._wall = wall

    def open(self):
        self._steps = 0
        self._waits = collections.deque()
        self._first = None
        self._sums = dict.fromkeys(("gap", "stall", "host_wait", "copy", "compute"), 0)
        self._exhausting = 0
        self._intervals = []
        self.rows = array("f")
        self._timeline.synchronize()
        self.opened_ns, _ = self._together(self._timeline.start)

    def batches(self, loader, move):
        """The loader's batches, each passed through `move` to the device, with marks put down around them."""
        host, mark = self._host, self._timeline.mark
        asked = host()
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                self._exhausting = host() - asked
                return
            self._waits.append(host() - asked)
            mark()
            batch = move(batch)
            mark()
            yield batch
            mark()
            if self._synchronous:
                self._timeline.synchronize()
            self._settle()
            self._observe(self._steps, host())
            asked = host()

    def close(self):
        self._timeline.synchronize()
        _, self.closed_ns = self._together(self._timeline.mark)
        self._timeline.synchronize()
        self._settle()
        self._tail = sum(self._intervals)

    def parts(self):
        """The closed pass by metric name, in seconds and counts."""
        sums = self._sums
        e2e = self.closed_ns - self.opened_ns
        overhead = sums["gap"] - sums["stall"] + self._tail
        accounted = sums["stall"] + sums["copy"] + sums["compute"] + overhead
        nanoseconds = {
            "e2e_s": e2e,
            "fetch_stall_s": sums["stall"],
            "host_wait_s": sums["host_wait"],
            "copy_s": sums["copy"],
            "compute_s": sums["compute"],
            "overhead_s": overhead,
            "clock_residual_s": e2e - accounted,
            "loader_start_s": self._first or 0,
            "loader_stop_s": min(self._tail, self._exhausting),
        }
        parts = {name: value * NANOSECOND for name, value in nanoseconds.items()}
        parts.update(steps=self._steps, clock_waits=self._timeline.waits)
        return parts

    def _together(self, mark):
        """The wall clock just before and just after a mark; once more if the host was interrupted between them."""
        for _ in range(5):
            before = self._wall()
            mark()
            after = self._wall()
            if after - before <= TOGETHER_NS:
                break
        return before, after

    def _settle(self):
        """Books the steps whose marks have all passed; what is left are marks of the steps under way."""
        intervals = self._intervals
        self._timeline.drain(intervals.append)
        booked = 0
        while len(intervals) - booked >= 3:
            self._book(*intervals[booked : booked + 3])
            booked += 3
        del intervals[:booked]

    def _book(self, gap, copy, compute):
        wait = self._waits.popleft()
        stall = min(gap, wait)
        if self._first is None:
            self._first = stall
        sums = self._sums
        sums["gap"] += gap
        sums["stall"] += stall
        sums["host_wait"] += wait
        sums["copy"] += copy
        sums["compute"] += compute
        self._steps += 1
        self.rows.extend((gap * NANOSECOND, wait * NANOSECOND, copy * NANOSECOND, compute * NANOSECOND))
