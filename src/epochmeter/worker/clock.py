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
import weakref
from array import array

from epochmeter.shared.units import NANOSECOND
from epochmeter.worker.timeline import monotonic_ns, perf_counter_ns

BOOKED_NS = 20 * 1000 * 1000
"""How long marks may lie before they are booked."""
TOGETHER_NS = 50000
"""Readings of two clocks that lie no further apart are taken as one moment."""


class Clock:
    """Times one pass over a loader at a time: `open`, iterate over `batches`, `close`, then read `parts`.

    `synchronous` waits for the device after every step, as programs do that time each step by the host's clock;
    `observe(steps, now_ns)` is told how many have passed, after steps that are `together_ns` apart or more: short
    steps are booked several at once, which takes them half of what each by itself would.
    """

    def __init__(self, timeline, synchronous=False, observe=lambda steps, now_ns: None, host=perf_counter_ns,
                 wall=monotonic_ns, together_ns=BOOKED_NS):  # fmt: skip
        self._timeline = timeline
        self._synchronous = synchronous
        self._observe = observe
        self._host = host
        self._wall = wall
        self._together_ns = together_ns

    def open(self):
        self._steps = 0
        self._pass = lambda: None
        self._waits = collections.deque()
        self._first = None
        self._sums = dict.fromkeys(("gap", "stall", "host_wait", "copy", "compute"), 0)
        self._exhausting = 0
        self._intervals = []
        self.rows = array("f")
        self._timeline.synchronize()
        self.opened_ns, _ = self._together(self._timeline.start)

    def batches(self, loader, move):
        """Iterates over a loader, with timestamps around each batch's copy and compute.

        Args:
            loader: Iterable of batches.
            move: Function that copies one batch to the device.

        Returns:
            A generator of moved batches. The time until the next batch is requested is the step's compute; a loop that
            leaves early, by `break`, ends its last step there.
        """
        batches = self._timestamped(loader, move)
        self._pass = weakref.ref(batches)  # a loop that left early and released it has closed it
        return batches

    def _timestamped(self, loader, move):
        host, mark = self._host, self._timeline.mark
        settled = asked = host()
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
            try:
                yield batch
            finally:  # a loop that leaves early ends its step as well
                mark()
            if self._synchronous:
                self._timeline.synchronize()
            asked = host()
            if asked - settled >= self._together_ns:
                self._settle()
                self._observe(self._steps, asked)
                settled = asked = host()

    def close(self):
        left = self._pass()
        if left is not None:  # a loop that left early has not released it
            left.close()
        self._timeline.synchronize()
        self._settle()
        _, self.closed_ns = self._together(self._timeline.mark)
        self._timeline.synchronize()
        # One interval, or one for each time that the closing mark was put down: together they are the tail.
        tail = []
        self._timeline.drain(tail.append)
        self._tail = sum(tail)

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
        parts["steps"] = self._steps
        if self._timeline.waits is not None:
            parts["clock_waits"] = self._timeline.waits
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
