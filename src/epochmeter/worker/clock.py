"""Step timing: data stall, copy, compute and overhead from timestamps on the device's timeline.

    open | request ready copied end | request ready copied end | ... | request (exhausted) | close

For step i, on the device's timeline:

    gap_i     = ready_i - end_{i-1}, for the first step ready - open: the device is idle
    stall_i   = min(gap_i, host_wait_i): the part of the gap explained by waiting for data
    copy_i    = copied_i - ready_i; if the consumer copies, the copy is part of compute
    compute_i = end_i - copied_i
    overhead  = the rest of the gaps, and close - last end

The host never waits for a timestamp. Host wait is the host's time inside `next()`, for the first step `iter()` and
`next()`. End to end time has its own clock and is never a sum; the residual is its difference from the sum.
"""

import itertools
from array import array
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

from epochmeter.shared.protocol import ReadParts
from epochmeter.shared.types import FloatArray
from epochmeter.shared.units import NANOSECOND
from epochmeter.worker.timeline import Timeline, monotonic_ns, perf_counter_ns

COLLECT_INTERVAL_NS = 100 * 1000 * 1000  # interval between two reads of the device's timestamps
MAX_BRACKET_NS = 50000  # two clock readings at most this far apart count as simultaneous


def ignore_progress(steps: int, now_ns: int, parts: ReadParts) -> None:
    """Observe nothing."""


class Clock:
    """Time one pass over a loader: `open`, iterate over `batches`, `close`, then read `parts`.

    Args:
        timeline: Timeline of the device (see `timeline`).
        synchronous: Wait for the device after every step, like programs that time steps with the host's clock.
        observe: Called with (steps so far, host time in ns, `parts_so_far`) each time completed steps are collected.
        host: Monotonic clock for host waits, ns.
        wall: Clock shared with the controller, ns.
        collect_interval_ns: Shortest time between two collections, each of which interrupts a step.
        copies: Whether the copy of each batch has a timestamp of its own.

    Attributes:
        rows: gap, host wait, copy and compute of each step in seconds, flattened (`record.INTERVALS`).
        is_fetching: Whether `fetch` is in, or was left by an error of, the loader's iterator.
        untimed: The batch whose arrival got no timestamp because of an error.
        first_gap_s: Time from the start to the first batch: its data stall, and overhead.
        opened_ns: Wall clock just before the start timestamp.
        closed_ns: Wall clock just after the last timestamp.
    """

    first_gap_s: float
    opened_ns: int
    closed_ns: int
    rows: FloatArray
    untimed: List[Any]
    _sums: Dict[str, float]  # ns
    _waits: List[int]  # ns, of the steps that are not collected yet
    _intervals: List[float]  # ns
    _tail: float  # ns

    def __init__(
        self,
        timeline: Timeline,
        synchronous: bool = False,
        observe: Callable[[int, int, ReadParts], None] = ignore_progress,
        host: Callable[[], int] = perf_counter_ns,
        wall: Callable[[], int] = monotonic_ns,
        collect_interval_ns: int = COLLECT_INTERVAL_NS,
        copies: bool = True,
    ) -> None:
        self._timeline, self._mark_at = timeline, timeline.mark_at
        self._synchronous, self._copies = synchronous, copies
        self._observe, self._collect_interval_ns = observe, collect_interval_ns
        self._host, self._wall = host, wall
        self.is_fetching = False

    def open(self) -> None:
        """Wait for the device and start a pass."""
        self._steps = self._early_wait = self._at_end = 0
        self._first = self.first_gap_s = 0.0
        self._waits, self._intervals, self.untimed = [], [], []
        self._is_computing = self._may_have_ended = False
        self._collect_at = self._host() + self._collect_interval_ns
        self._sums = dict.fromkeys(("gap", "stall", "host_wait", "copy", "compute"), 0)
        self.rows = array("f")
        self._timeline.synchronize()
        self.opened_ns, _ = self._bracketed_mark(self._timeline.start)

    def batches(self, loader: Iterable[Any], move: Callable[[Any], Any]) -> Iterator[Any]:
        """Iterate over a loader, with timestamps around each batch's copy (`move`) and compute.

        A step's compute lasts until the next batch is requested. If the consumer leaves early, its last step ends then.
        """
        requested = self._host()
        iterator = iter(loader)
        self.add_early_wait(self._host() - requested)
        while True:
            try:
                batch = self.fetch(iterator)
            except StopIteration:
                return
            batch = move(batch)
            self._timeline.mark()
            try:
                yield batch
            except GeneratorExit:
                self.end_step()
                raise
            if self._synchronous:
                self.end_step()
                self._timeline.synchronize()

    def add_early_wait(self, wait: int) -> None:
        """Add the host's time for the loader's `iter()` to the wait for the first batch, in ns."""
        self._early_wait = wait

    def fetch(self, iterator: Iterator[Any]) -> Any:
        """Return an iterator's next batch, whose request ends the current step and whose arrival begins the next one.

        It runs in every step with cold CPU caches: a further call would take about a microsecond.
        """
        requested = self._host()
        if self._is_computing:
            self._mark_at(requested)
            self._is_computing = False
        if requested >= self._collect_at and self._waits:
            requested = self._collect(requested)
        self.is_fetching = True
        try:
            batch = next(iterator)
        except StopIteration:
            self.end(requested)
            raise
        self.is_fetching = False
        try:
            now = self._host()
            self._mark_at(now)
            self._waits.append(now - requested)
        except BaseException:
            self.untimed.append(batch)
            raise
        self._is_computing = True
        return batch

    def end(self, requested: int) -> None:
        """Note that the loader has no further batch."""
        is_empty = not (self._waits or self._steps)
        self._at_end = self._host() - requested + (self._early_wait if is_empty else 0)

    def end_step(self) -> None:
        """End the compute of the current step now, before the next batch is requested: the rest is overhead."""
        if self._is_computing and not self._may_have_ended:
            self._timeline.mark()
        self._is_computing = self._may_have_ended = False

    def end_last_step(self) -> None:
        """Note that the last step of the pass may have ended; call it once per step.

        Later time is overhead. If the consumer requests another batch, the step ends at that request instead.
        """
        if self._is_computing:
            self._timeline.mark()
            self._may_have_ended = True
            self._collect_at = 0

    def close(self) -> None:
        """End the pass: wait for the device and collect its remaining timestamps."""
        self.end_step()
        self._timeline.synchronize()
        self._collect_steps()
        _, self.closed_ns = self._bracketed_mark(self._timeline.mark)
        self._timeline.synchronize()
        # One interval, or several if the closing timestamp was repeated: their sum is the tail.
        self._tail = sum(self._intervals) + sum(self._timeline.drain())

    @property
    def tail_s(self) -> float:
        """Time of the closed pass after its last step."""
        return self._tail * NANOSECOND

    def parts_so_far(self) -> Dict[str, float]:
        """Return the parts of the collected steps of the open pass, in seconds, without waiting for the device."""
        return {name: value * NANOSECOND for name, value in self._split(tail=0).items()}

    def _split(self, tail: float) -> Dict[str, float]:
        sums = self._sums
        overhead = sums["gap"] - sums["stall"] + tail
        copy = {"copy_s": sums["copy"]} if self._copies else {}
        return {"data_stall_s": sums["stall"], **copy, "compute_s": sums["compute"], "overhead_s": overhead}

    def parts(self) -> Dict[str, float]:
        """Metrics of the closed pass by name, in seconds and counts."""
        e2e, split = self.closed_ns - self.opened_ns, self._split(self._tail)
        nanoseconds = {
            "e2e_s": e2e,
            **split,
            "host_wait_s": self._sums["host_wait"],
            "clock_residual_s": e2e - sum(split.values()),
            "loader_start_s": self._first,
            "loader_stop_s": min(self._tail, self._at_end),
        }
        parts = {name: value * NANOSECOND for name, value in nanoseconds.items()}
        parts["steps"] = self._steps
        if self._timeline.waits is not None:
            parts["clock_waits"] = self._timeline.waits
        return parts

    def _bracketed_mark(self, mark: Callable[[], None]) -> Tuple[int, int]:
        """Return the wall clock just before and just after a timestamp. Retries if the host was interrupted."""
        for _ in range(5):
            before = self._wall()
            mark()
            after = self._wall()
            if after - before <= MAX_BRACKET_NS:
                break
        return before, after

    def _collect(self, now: int) -> int:
        """Collect the completed steps and report the progress; return the host's time after that."""
        if self._may_have_ended:
            self._timeline.drop_second_to_last()
            self._may_have_ended = False
        self._collect_steps()
        self._observe(self._steps, now, self.parts_so_far)
        now = self._host()
        self._collect_at = now + self._collect_interval_ns
        return now

    def _collect_steps(self) -> None:
        """Add up the steps whose timestamps have all passed; intervals of unfinished steps are kept."""
        intervals = self._intervals
        intervals += self._timeline.drain()
        columns = 3 if self._copies else 2
        steps = len(intervals) // columns
        if not steps:
            return
        gaps, *copied, computes = (intervals[column : steps * columns : columns] for column in range(columns))
        del intervals[: steps * columns]
        waits = self._waits[:steps]
        del self._waits[:steps]
        if not self._steps:
            waits[0] += self._early_wait
        stalls: List[float] = list(map(min, gaps, waits))
        if not self._steps:
            self._first, self.first_gap_s = stalls[0], gaps[0] * NANOSECOND
        copies: Sequence[float] = copied[0] if copied else [0] * steps
        sums = (("gap", gaps), ("stall", stalls), ("host_wait", waits), ("copy", copies), ("compute", computes))
        for name, values in sums:
            self._sums[name] += sum(values)
        self._steps += steps
        rows = itertools.chain.from_iterable(zip(gaps, waits, copies, computes))
        self.rows.extend([interval * NANOSECOND for interval in rows])
