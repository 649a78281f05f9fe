"""Timestamps of a GPU in a thread's log: CUDA events, recorded on the spot and written once they have completed."""

import collections
import time
from typing import TYPE_CHECKING, Deque, List, Optional

import torch

from epochmeter.shared.events import DEVICE_TIME, HAS_DEVICE_TIME, IDLE_TIME
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from epochmeter.agent.event_log import EventLog

COLLECT_INTERVAL_NS = 400 * 1000 * 1000
"""Shortest interval between two collections, each of which takes 0.1 ms of a step."""
IDLE_WAIT_NS = 50 * 1000
"""Longest time in which a stream without work reaches a timestamp; longer: the device's streams wait for each other."""
MAX_PENDING = 4096  # events that have not completed; the script waits for the oldest if there are more
POLL_INTERVAL_S = 0.001


class DeviceMarks:
    """Records numbered timestamps on the current stream of a GPU, and writes them to a thread's log.

    Args:
        log: The thread's log.
        device: The GPU, a `torch.device` with an index.
    """

    def __init__(self, log: "EventLog", device: torch.device) -> None:
        self.device = device
        self._log = log
        self._count = self._written = 0  # numbers of the next recorded, and of the next written timestamp
        self._last: Optional[torch.cuda.Event] = None  # the last written one
        self._pending: Deque[torch.cuda.Event] = collections.deque()
        self._free: List[torch.cuda.Event] = []
        self._collect_at_ns = 0
        self._idle_stream = torch.cuda.Stream(device)
        self._mark_idle()

    def record(self) -> Optional[int]:
        """Record a timestamp, and return its number; None while a CUDA graph is captured, which it would disturb."""
        if is_capturing():
            return None
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return self._add(event)

    def collect(self, now_ns: int) -> None:
        """Write the completed timestamps, unless that was done shortly before."""
        if now_ns >= self._collect_at_ns and not is_capturing():
            self._mark_idle()
            self.write_completed()
            self._collect_at_ns = monotonic_ns() + COLLECT_INTERVAL_NS

    def write_completed(self) -> None:
        """Write all completed timestamps, as intervals to the one before."""
        pending = self._pending
        while pending and not is_capturing():
            if len(pending) > MAX_PENDING:
                pending[0].synchronize()
            if not pending[0].query():
                return
            event = pending.popleft()
            elapsed_ms = self._last.elapsed_time(event) if self._last is not None else 0.0
            self._log.write(DEVICE_TIME, monotonic_ns(), 0, elapsed_ms * 1e6, 0, 0, self._written)
            self._written += 1
            if self._last is not None:
                self._free.append(self._last)
            self._last = event

    def write_all(self, limit_s: float) -> None:
        """Write all timestamps, and wait for that as long as the limit at most."""
        until_s = time.monotonic() + limit_s
        self.write_completed()
        while self._pending and time.monotonic() < until_s:
            time.sleep(POLL_INTERVAL_S)
            self.write_completed()

    def _mark_idle(self) -> None:
        """Record a timestamp that no work delays, from which the reader learns how the clocks differ."""
        event, begun_ns = torch.cuda.Event(enable_timing=True), monotonic_ns()
        event.record(self._idle_stream)
        while not event.query():
            if monotonic_ns() > begun_ns + IDLE_WAIT_NS:
                return
        self._log.write(IDLE_TIME, begun_ns, 0, 0.0, 0, 0, self._add(event), 0, HAS_DEVICE_TIME)

    def _add(self, event: torch.cuda.Event) -> int:
        self._pending.append(event)
        number = self._count
        self._count += 1
        return number


def is_capturing() -> bool:
    """Return whether the current stream records a CUDA graph, which a timestamp would disturb."""
    capturing = getattr(torch.cuda, "is_current_stream_capturing", None)
    return capturing is not None and bool(capturing())
