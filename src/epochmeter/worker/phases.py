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
    """Times the phases of one epoch: `open`, train on batches moved by `moving`, `close`, then read `parts`.

    Args:
        timeline: Timeline of the device, for this object only.
        model: The model, with its wrappers.
        optimizer: Its optimizer.
    """

    def __init__(self, timeline: Timeline, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._timeline, self._model, self._optimizer = timeline, model, optimizer
        self._borders: List[int] = []  # of the timestamps, the last one that was read first
        self._sums: Dict[Tuple[int, int], float] = {}  # ns, by pairs of successive borders
        self._is_open = False
        self._thread = 0
        self._depths: Dict[int, int] = {}  # of parts within others of their kind, by the borders at their begins
        self._restores: List[Callable[[], object]] = []  # end the hooks of an open epoch

    def open(self) -> None:
        """Begin an epoch."""
        self._borders, self._sums = [STEP_ENDED], {}
        self._thread, self._depths = threading.get_ident(), {}
        self._hook()
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
        while self._restores:
            self._restores.pop()()
        self._read()

    def parts(self, compute_s: float) -> Dict[str, float]:
        """Return the phases of the closed epoch in seconds, which add up to its compute; unknown ones are absent."""
        known = {phase: self._sums[pair] * NANOSECOND for phase, pair in INTERVALS.items() if pair in self._sums}
        return dict(known, **{OTHER: compute_s - sum(known.values())})

    def _hook(self) -> None:
        model, optimizer = self._model, self._optimizer
        handles = [
            model.register_forward_pre_hook(lambda *_: self._mark(FORWARD_BEGUN)),
            model.register_forward_hook(lambda *_: self._mark(FORWARD_ENDED)),
        ]
        if hasattr(optimizer, "register_step_pre_hook"):
            handles.append(optimizer.register_step_pre_hook(lambda *_: self._enter(STEP_BEGUN)))
            handles.append(optimizer.register_step_post_hook(lambda *_: self._leave(STEP_BEGUN)))
        else:  # before torch 2.0
            self._replace(optimizer, "step", STEP_BEGUN)
        self._restores += [handle.remove for handle in handles]
        self._replace(torch.autograd, "backward", BACKWARD_BEGUN)

    def _replace(self, owner: object, name: str, begun: int) -> None:
        """Note the calls of a function between the border `begun` and the next one."""
        original = getattr(owner, name)

        @functools.wraps(original)  # a schedule looks for attributes of its own
        def timed(*arguments: Any, **keywords: Any) -> Any:
            self._enter(begun)
            try:
                return original(*arguments, **keywords)
            finally:
                self._leave(begun)

        self._restores.append(functools.partial(setattr, owner, name, original))
        setattr(owner, name, timed)

    def _enter(self, begun: int) -> None:
        """Note the begin of a part, unless it is within one of its kind, as with activation checkpointing."""
        self._depths[begun] = depth = self._depths.get(begun, 0) + 1
        if depth == 1:
            self._mark(begun)

    def _leave(self, begun: int) -> None:
        self._depths[begun] = depth = self._depths[begun] - 1
        if not depth:
            self._mark(begun + 1)

    def _mark(self, border: int) -> None:
        if self._is_open and threading.get_ident() == self._thread:
            self._timeline.mark()
            self._borders.append(border)

    def _read(self) -> None:
        """Add up the intervals between the timestamps that the device has passed."""
        intervals, sums = self._timeline.drain(), self._sums
        for pair, interval in zip(zip(self._borders, self._borders[1:]), intervals):
            sums[pair] = sums.get(pair, 0.0) + interval
        del self._borders[: len(intervals)]
