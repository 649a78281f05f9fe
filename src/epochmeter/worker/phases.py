"""Phases of the compute of an epoch's steps: preparation, forward, loss, backward, optimizer.

    copied  forward ended  backward ended  optimizer ended  copied  forward ...
    preparation   loss           (other)            (other)

Each border is a timestamp on the device's timeline. Nothing waits for it.
"""

import functools
import threading
from typing import Any, Callable, Dict, List, Tuple

import torch

from epochmeter.shared.phases import BACKWARD, FORWARD, LOSS, OPTIMIZER, OTHER, PREPARATION
from epochmeter.shared.units import NANOSECOND
from epochmeter.worker.timeline import Timeline

COPIED, FORWARD_BEGUN, FORWARD_ENDED, BACKWARD_BEGUN, BACKWARD_ENDED, STEP_BEGUN, STEP_ENDED = range(7)
INTERVALS = {
    PREPARATION: (COPIED, FORWARD_BEGUN),
    FORWARD: (FORWARD_BEGUN, FORWARD_ENDED),
    LOSS: (FORWARD_ENDED, BACKWARD_BEGUN),
    BACKWARD: (BACKWARD_BEGUN, BACKWARD_ENDED),
    OPTIMIZER: (STEP_BEGUN, STEP_ENDED),
}
"""The first and the last border of each phase; the time between other borders is the rest of the compute."""
MAX_BORDERS = 1024  # after which the timestamps are read


class StepPhases:
    """Times the phases of one epoch: `open`, train on batches moved by `moving`, `close`.

    Args:
        timeline: Timeline of the device, for this object only.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._borders: List[int] = []  # of the timestamps, the last one that was read first
        self._sums: Dict[Tuple[int, int], float] = {}  # ns, by pairs of successive borders
        self._is_open = False
        self._thread = 0
        self._depth = self._steps = 0  # backward passes, and steps, that have begun within each other

    def hook(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Note the forward passes of a model and the steps of its optimizer while an epoch is open."""
        model.register_forward_pre_hook(lambda *_: self._mark(FORWARD_BEGUN))
        model.register_forward_hook(lambda *_: self._mark(FORWARD_ENDED))
        if hasattr(optimizer, "register_step_pre_hook"):
            optimizer.register_step_pre_hook(lambda *_: self._begin_step())
            optimizer.register_step_post_hook(lambda *_: self._end_step())
        else:  # before torch 2.0
            self._replace_step(optimizer)

    def open(self) -> None:
        """Begin an epoch."""
        self._borders, self._sums = [STEP_ENDED], {}
        self._thread, self._depth, self._steps = threading.get_ident(), 0, 0
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._timed_backward
        self._timeline.start()
        self._is_open = True

    def moving(self, move: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that moves a batch to the device, after which its compute begins."""

        def moved(batch: Any) -> Any:
            batch = move(batch)
            self._mark(COPIED)
            if len(self._borders) >= MAX_BORDERS:
                self._read()
            return batch

        return moved

    def close(self) -> None:
        """End the epoch, whose work the device has done."""
        self._is_open = False
        torch.autograd.backward = self._backward
        self._read()

    def parts(self, compute_s: float) -> Dict[str, float]:
        """Return the phases of the closed epoch in seconds, which add up to its compute; unknown ones are absent."""
        known = {phase: self._sums[pair] * NANOSECOND for phase, pair in INTERVALS.items() if pair in self._sums}
        return dict(known, **{OTHER: compute_s - sum(known.values())})

    def _replace_step(self, optimizer: Any) -> None:
        step = optimizer.step

        @functools.wraps(step)  # a schedule looks for its own attributes
        def timed_step(*arguments: Any, **keywords: Any) -> Any:
            self._begin_step()
            result = step(*arguments, **keywords)
            self._end_step()
            return result

        optimizer.step = timed_step

    def _begin_step(self) -> None:
        """Note that a step begins; those of a class and its base class are one."""
        if not self._steps:
            self._mark(STEP_BEGUN)
        self._steps += 1

    def _end_step(self) -> None:
        self._steps -= 1
        if not self._steps:
            self._mark(STEP_ENDED)

    def _mark(self, border: int) -> None:
        if self._is_open and threading.get_ident() == self._thread:
            self._timeline.mark()
            self._borders.append(border)

    def _timed_backward(self, *arguments: Any, **keywords: Any) -> None:
        if self._depth:  # of activation checkpointing
            return self._backward(*arguments, **keywords)
        self._depth += 1
        self._mark(BACKWARD_BEGUN)
        try:
            self._backward(*arguments, **keywords)
        finally:
            self._depth -= 1
            self._mark(BACKWARD_ENDED)

    def _read(self) -> None:
        """Add up the intervals between the timestamps that the device has passed."""
        intervals, sums = self._timeline.drain(), self._sums
        for pair, interval in zip(zip(self._borders, self._borders[1:]), intervals):
            sums[pair] = sums.get(pair, 0.0) + interval
        del self._borders[: len(intervals)]
