"""Step timing: data stall, copy, compute and overhead from timestamps on the device's timeline.

    open | request ready copied end | request ready copied end | ... | request (exhausted) | close

For step i, on the device's timeline:

    gap_i     = ready_i - end_{i-1}, for the first step ready - open: the device is idle
    stall_i   = min(gap_i, host_wait_i): the part of the gap explained by waiting for data
    copy_i    = copied_i - ready_i
    compute_i = end_i - copied_i
    overhead  = the rest of the gaps, and close - last end

The host never waits for a timestamp. Host wait is the host's time inside `next()`, for the first step `iter()` and
`next()`. End to end time has its own clock and is never a sum; the residual is its difference from the sum.
"""

import collections
import weakref
from array import array

from epochmeter.shared.units import NANOSECOND
from epochmeter.worker.timeline import monotonic_ns, perf_counter_ns

COLLECT_INTERVAL_NS = 20 * 1000 * 1000
"""Interval between two reads of the device's timestamps."""
MAX_BRACKET_NS = 50000
"""Two clock readings at most this far apart count as simultaneous."""


class Clock:
    """Time one pass over a loader: `open`, iterate over `batches`, `close`, then read `parts`.

    Args:
        timeline: Timeline of the device (see `timeline`).
        synchronous: Wait for the device after every step, like programs that time steps with the host's clock.
        observe: Called with (steps so far, host time in ns, `parts_so_far`) each time completed steps are collected.
        host: Monotonic clock for host waits, ns.
        wall: Clock shared with the controller, ns.
        collect_interval_ns: Shortest time between two collections. Collecting several short steps at once halves the
            cost per step.

    Attributes:
        rows: gap, host wait, copy and compute of each step in seconds, flattened (`record.INTERVALS`).
        opened_ns: Wall clock just before the start timestamp.
        closed_ns: Wall clock just after the last timestamp.
    """

    def __init__(self, timeline, synchronous=False, observe=lambda steps, now_ns, parts: None,
                 host=perf_counter_ns, wall=monotonic_ns, collect_interval_ns=COLLECT_INTERVAL_NS):  # fmt: skip
        self._timeline = timeline
        self._synchronous = synchronous
        self._observe = observe
        self._host = host
        self._wall = wall
        self._collect_interval_ns = collect_interval_ns

    def open(self):
        """Wait for the device and start a pass."""
        self._steps = 0
        self._pass = lambda: None
        self._waits = collections.deque()
        self._is_computing = False
        self._first = None
        self._sums = dict.fromkeys(("gap", "stall", "host_wait", "copy", "compute"), 0)
        self._at_end = 0
        self._intervals = []
        self.rows = array("f")
        self._timeline.synchronize()
        self.opened_ns, _ = self._bracketed_mark(self._timeline.start)

    def batches(self, loader, move, waited_ns=0):
        """Iterate over a loader, with timestamps around each batch's copy (`move`) and compute.

        A step's compute lasts until the next batch is requested. If the consumer leaves early, its last step ends then.
        `waited_ns` is the host's time for the loader's `iter()` if that was called before.
        """
        batches = self._timestamped(loader, move, waited_ns)
        self._pass = weakref.ref(batches)  # dead if a consumer that left early released it: then it is closed
        return batches

    def end_step(self):
        """End the compute of the current step now, before the next batch is requested: the rest is overhead."""
        if self._is_computing:
            self._timeline.mark()
            self._is_computing = False

    def end_last_step(self):
        """Note that the work of the pass's last step may be done. What follows is overhead, unless the consumer
        requests another batch: then that is the end of the step. Call it once per pass.
        """
        if self._is_computing:
            self._timeline.mark()

    def _timestamped(self, loader, move, waited_ns):
        host, mark = self._host, self._timeline.mark
        collected = host()
        requested = collected - waited_ns
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                self._at_end = host() - requested
                return
            self._waits.append(host() - requested)
            mark()
            batch = move(batch)
            mark()
            self._is_computing = True
            try:
                yield batch
            finally:  # also when the consumer leaves early
                self.end_step()
            if self._synchronous:
                self._timeline.synchronize()
            requested = host()
            if requested - collected >= self._collect_interval_ns:
                self._collect_steps()
                self._observe(self._steps, requested, self.parts_so_far)
                collected = requested = host()

    def close(self):
        """End the pass: wait for the device and collect its remaining timestamps."""
        generator = self._pass()
        if generator is not None:  # the consumer left early and still holds the generator
            generator.close()
        self._timeline.synchronize()
        self._collect_steps()
        after_last = sum(self._intervals)  # since `end_last_step`
        if self._at_end and self._intervals:
            self._sums["compute"] += after_last
            self.rows[-1] += after_last * NANOSECOND
            after_last = 0
        _, self.closed_ns = self._bracketed_mark(self._timeline.mark)
        self._timeline.synchronize()
        # One interval, or several if the closing timestamp was repeated: their sum is the tail.
        tail = []
        self._timeline.drain(tail.append)
        self._tail = after_last + sum(tail)

    @property
    def tail_s(self):
        """Time of the closed pass after its last step."""
        return self._tail * NANOSECOND

    def parts_so_far(self):
        """Return the parts of the collected steps of the open pass, in seconds, without waiting for the device."""
        return {name: value * NANOSECOND for name, value in self._split(tail=0).items()}

    def _split(self, tail):
        sums = self._sums
        overhead = sums["gap"] - sums["stall"] + tail
        return {"data_stall_s": sums["stall"], "copy_s": sums["copy"], "compute_s": sums["compute"],
                "overhead_s": overhead}  # fmt: skip

    def parts(self):
        """Metrics of the closed pass by name, in seconds and counts."""
        e2e, split = self.closed_ns - self.opened_ns, self._split(self._tail)
        nanoseconds = {
            "e2e_s": e2e,
            **split,
            "host_wait_s": self._sums["host_wait"],
            "clock_residual_s": e2e - sum(split.values()),
            "loader_start_s": self._first or 0,
            "loader_stop_s": min(self._tail, self._at_end),
        }
        parts = {name: value * NANOSECOND for name, value in nanoseconds.items()}
        parts["steps"] = self._steps
        if self._timeline.waits is not None:
            parts["clock_waits"] = self._timeline.waits
        return parts

    def _bracketed_mark(self, mark):
        """Return the wall clock just before and just after a timestamp. Retries if the host was interrupted."""
        for _ in range(5):
            before = self._wall()
            mark()
            after = self._wall()
            if after - before <= MAX_BRACKET_NS:
                break
        return before, after

    def _collect_steps(self):
        """Add up the steps whose timestamps have all passed; intervals of unfinished steps are kept."""
        intervals = self._intervals
        self._timeline.drain(intervals.append)
        consumed = 0
        while len(intervals) - consumed >= 3:
            self._add_step(*intervals[consumed : consumed + 3])
            consumed += 3
        del intervals[:consumed]

    def _add_step(self, gap, copy, compute):
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
