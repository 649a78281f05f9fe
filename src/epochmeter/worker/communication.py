"""Exposed communication: the time in which a rank's training waits for other ranks, for each step of an epoch.

The waits are those of `collectives`. Each has two timestamps on the device's timeline, and nothing waits for them.
"""

import functools
from array import array
from typing import Any, Callable, Dict, List, Optional

import torch

from epochmeter.shared.types import FloatArray
from epochmeter.shared.units import NANOSECOND
from epochmeter.worker.collectives import collective_functions, is_supported, watch_backward
from epochmeter.worker.timeline import Timeline

MAX_MARKS = 1024  # after which the timestamps are read


class ExposedCommunication:
    """Times the waits of one epoch: `open`, train on batches moved by `moving`, `close`, then read `waits_s`.

    Args:
        timeline: Timeline of the device, for this object only; None: there are no other ranks.
        is_compiled: Whether torch compiles the model, with the functions that it calls; only waits in backward passes
            are timed then.
    """

    def __init__(self, timeline: Optional[Timeline], is_compiled: bool = False) -> None:
        self._timeline = timeline if is_supported() else None
        self._is_compiled = is_compiled
        self._step = -1
        self._steps: List[int] = []  # of each wait
        self._intervals: List[float] = []  # ns, between the timestamps that were read
        self._marks = 0
        self._is_waiting = False
        self._restores: List[Callable[[], object]] = []  # end the hooks of an open epoch

    @property
    def is_on(self) -> bool:
        return self._timeline is not None

    def open(self) -> None:
        """Begin an epoch."""
        self._step, self._marks, self._is_waiting = -1, 0, False
        self._steps, self._intervals = [], []
        if self._timeline is None:
            return
        self._replace(torch.autograd, "backward", self._watched(torch.autograd.backward))
        replaced: Dict[Any, Any] = {}
        for owner, name in () if self._is_compiled else collective_functions():
            function = getattr(owner, name)
            replaced.setdefault(function, self._timed(function))
            self._replace(owner, name, replaced[function])
        self._timeline.start()

    def moving(self, move: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that moves a batch to the device, with which a step begins."""
        if self._timeline is None:
            return move

        def moved(batch: Any) -> Any:
            self._step += 1
            if self._marks >= MAX_MARKS:
                self._read()
            return move(batch)

        return moved

    def close(self) -> None:
        """End the epoch, whose work the device has done."""
        while self._restores:
            self._restores.pop()()
        self._read()

    def waits_s(self, steps: int) -> FloatArray:
        """Return the exposed communication of each step of the closed epoch."""
        seconds = array("f", bytes(4 * steps))
        for step, interval in zip(self._steps, self._intervals[1::2]):
            seconds[max(0, step)] += interval * NANOSECOND
        return seconds

    def _watched(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Return `torch.autograd.backward`, whose time after the gradients were computed is a wait."""

        @functools.wraps(backward)  # a schedule looks for attributes of its own
        def watched(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            is_ready = False

            def note() -> None:
                nonlocal is_ready
                self._begin()
                is_ready = True

            end = watch_backward(tensors, note)
            try:
                return backward(tensors, *arguments, **keywords)
            finally:
                end()
                if is_ready:
                    self._end()

        return watched

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are waits, unless they are parts of another one or only begin a collective."""

        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self._is_waiting or keywords.get("async_op"):
                return function(*arguments, **keywords)
            self._begin()
            try:
                return function(*arguments, **keywords)
            finally:
                self._end()

        return timed

    def _begin(self) -> None:
        self._is_waiting = True
        self._mark()

    def _end(self) -> None:
        self._mark()
        self._steps.append(self._step)
        self._is_waiting = False

    def _replace(self, owner: Any, name: str, replacement: object) -> None:
        self._restores.append(functools.partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, replacement)

    def _mark(self) -> None:
        assert self._timeline is not None
        self._timeline.mark()
        self._marks += 1

    def _read(self) -> None:
        """Read the timestamps that the device has passed."""
        if self._timeline is not None:
            self._intervals += self._timeline.drain()
        self._marks = 0


def rank_rows(rows: FloatArray, waits_s: FloatArray) -> FloatArray:
    """Return the rows of a rank (`record.RANK_INTERVALS`), from the rows of its steps (`INTERVALS`) and their waits."""
    gaps, waits, copies, computes = (rows[column::4] for column in range(4))
    stalls, busy = map(min, gaps, waits), map(sum, zip(copies, computes))
    return array("f", [value for row in zip(gaps, stalls, busy, waits_s) for value in row])
