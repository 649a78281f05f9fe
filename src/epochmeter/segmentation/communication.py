"""Exposed communication of a script's rank: the times in which its training waits for collectives, step by step."""

from array import array
from collections.abc import Sequence

import numpy as np

from epochmeter.segmentation.device_times import TimedEvent
from epochmeter.shared import events
from epochmeter.shared.record import INTERVALS, RANK_INTERVALS
from epochmeter.shared.units import NANOSECOND


class CollectiveWaits:
    """The waits of one thread, or of its device, that belong to no window so far."""

    def __init__(self) -> None:
        self._begun_ns, self._ended_ns = array("q"), array("q")
        self._ready_ns = 0  # when the gradients of the backward pass that goes on were computed; 0: it has none

    def add(self, timed: TimedEvent) -> None:
        """Add an event: a wait, the moment when gradients are computed, or the end of a backward pass."""
        if timed.event.kind == events.GRADIENTS_READY:
            self._ready_ns = timed.device_ns
        elif timed.event.kind == events.COLLECTIVE:
            self._append(timed.device_begun_ns, timed.device_ns)
        else:
            if self._ready_ns > timed.device_begun_ns:
                self._append(self._ready_ns, timed.device_ns)
            self._ready_ns = 0

    def take(self, borders_ns: Sequence[int]) -> np.ndarray:
        """Return the waits between successive borders in ns, and forget those before the last border."""
        borders = np.asarray(borders_ns, dtype=np.int64)
        begun, ended = (np.array(column, dtype=np.int64) for column in (self._begun_ns, self._ended_ns))
        sums = np.append(0, np.cumsum(ended - begun))
        count = np.searchsorted(begun, borders, side="right")  # waits that have begun at each border
        left = np.maximum(0, np.append(0, ended)[count] - borders)  # of the last of them
        waited: np.ndarray = np.diff(sums[count] - left)
        keep = int(np.searchsorted(ended, borders[-1], side="right"))
        del self._begun_ns[:keep], self._ended_ns[:keep]
        return waited

    def _append(self, begun_ns: int, ended_ns: int) -> None:
        """Add a wait; those within it are parts of it."""
        while self._begun_ns and self._begun_ns[-1] >= begun_ns:
            self._begun_ns.pop()
            self._ended_ns.pop()
        begun_ns = max(begun_ns, self._ended_ns[-1] if self._ended_ns else begun_ns)
        if begun_ns < ended_ns:
            self._begun_ns.append(begun_ns)
            self._ended_ns.append(ended_ns)


def rank_rows(rows: "array[float]", waited_ns: np.ndarray) -> "array[float]":
    """Return the rows of a rank (`RANK_INTERVALS`), from the rows of its steps and the wait in each of them."""
    gaps, waits, copies, computes = np.asarray(rows, dtype=np.float32).reshape(-1, len(INTERVALS)).T
    columns = [gaps, np.minimum(gaps, waits), copies + computes, waited_ns * NANOSECOND]
    seconds = np.stack(columns, axis=1).astype(np.float32)
    assert seconds.shape[1] == len(RANK_INTERVALS)
    return array("f", seconds.tobytes())


def joined_rows(of_ranks: Sequence["array[float]"]) -> tuple["array[float]", int]:
    """Return the rows of ranks one after another, and the number of steps of each: those that all have.

    Both are empty if a rank has no rows.
    """
    count = min(map(len, of_ranks))
    if not count:
        return array("f"), 0
    return array("f", b"".join(rows[:count].tobytes() for rows in of_ranks)), count // len(RANK_INTERVALS)


def rows_after(rows: "array[float]", early_s: float, stall_s: float) -> "array[float]":
    """Return the rows of a rank without a time at the begin of its first step, of which `stall_s` is a data stall.

    A rank waits at the end of a step. So the wait in what is left of the step is as long as that, at most.
    """
    if not rows or early_s <= 0:
        return rows
    gap_s, first_stall_s, busy_s, waited_s = rows[: len(RANK_INTERVALS)]
    left_gap_s = max(0.0, gap_s - early_s)
    left_busy_s = max(0.0, busy_s - max(0.0, early_s - gap_s))
    left = [left_gap_s, max(0.0, first_stall_s - stall_s), left_busy_s, min(waited_s, left_gap_s + left_busy_s)]
    return array("f", left) + rows[len(RANK_INTERVALS) :]
