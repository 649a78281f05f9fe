"""Waits of a script's training thread for other ranks: collectives, and the end of backward passes.

Hooks are installed when the script has joined a process group of several ranks. On a CPU the thread waits; on a GPU the
device does, in its current stream, and timestamps of the device show how long. Waits in other streams are not seen.
"""

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

import torch
from torch import distributed

from epochmeter.agent.frames import hidden, hide_frames
from epochmeter.agent.replaced import Restore, replace
from epochmeter.shared import events
from epochmeter.worker.collectives import OLD_TORCH, collective_functions, is_supported, watch_backward
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from epochmeter.agent.agent import Agent
    from epochmeter.agent.phases import Begun

OTHER_STREAMS = "collectives are waited for on other streams of the GPU than the training's, as with FSDP"
COMPILED = "torch compiles the backward pass"


class _Thread(threading.local):
    is_waiting = False  # whether a wait is being recorded, whose inner ones are parts of it
    stream: Any = None  # of the GPU, in which the last backward pass began


class Collectives:
    """Records the waits of a process for other ranks."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._thread = _Thread()
        self._functions: List[Restore] = []  # end the hooks of functions
        self._restores: List[Restore] = []
        self._has_compiled = False
        self._reason: Optional[str] = None  # why waits are not known; None before the hooks are installed

    def join(self) -> None:
        """Install the hooks if the script has joined a process group of several ranks."""
        if self._restores or not (distributed.is_initialized() and distributed.get_world_size() > 1):
            return
        self._set_reason("" if is_supported() else OLD_TORCH)
        if not is_supported():
            return
        self._agent.brief.forbid()
        self._restores.append(replace(torch.autograd, "backward", self._watched(torch.autograd.backward)))
        if self._has_compiled:
            return
        recorded: Dict[Any, Any] = {}  # the same function may have several places
        for owner, name in collective_functions():
            function = getattr(owner, name)
            recorded.setdefault(function, self._recorded(function))
            self._functions.append(replace(owner, name, recorded[function]))
        if hasattr(distributed, "Work"):  # for functions that were imported before
            self._functions.append(replace(distributed.Work, "wait", self._recorded(distributed.Work.wait)))

    def end_functions(self) -> None:
        """Restore the functions before torch compiles those of the script: it knows only its own ones."""
        self._has_compiled = True
        while self._functions:
            self._functions.pop()()

    def end(self) -> None:
        """Remove all hooks."""
        self.end_functions()
        while self._restores:
            self._restores.pop()()

    def _set_reason(self, reason: str) -> None:
        if self._reason != reason and not self._reason:
            self._reason = reason
            self._agent.guarded(self._agent.facts.write, {"kind": "collectives", "reason": reason})

    # Collectives

    def _recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are recorded as waits, unless they only begin a collective."""

        @functools.wraps(function)
        @hidden
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            begun = None if keywords.get("async_op") else self._begin()
            try:
                return function(*arguments, **keywords)
            except BaseException as error:
                hide_frames(error)
                raise
            finally:
                if begun is not None:
                    self._end(begun)

        return wrapper

    def _begin(self) -> "Optional[Begun]":
        thread, agent = self._thread, self._agent
        if thread.is_waiting or agent.thread.log is None or not agent.is_on:
            return None
        thread.is_waiting = True
        agent.guarded(self._check_stream)
        return agent.training.wait_begun()

    def _end(self, begun: "Begun") -> None:
        self._thread.is_waiting = False
        self._agent.training.phase_ended(events.COLLECTIVE, begun)

    def _check_stream(self) -> None:
        marks, stream = self._agent.thread.marks, self._thread.stream
        if marks is not None and stream is not None and torch.cuda.current_stream(marks.device) != stream:
            self._set_reason(OTHER_STREAMS)

    # Backward passes

    def _watched(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Return `torch.autograd.backward` with a timestamp when the gradients are computed."""

        @functools.wraps(backward)
        @hidden
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            end = watch_backward(arguments[0] if arguments else keywords.get("tensors"), self._noted())
            try:
                return backward(*arguments, **keywords)
            except BaseException as error:
                hide_frames(error)
                raise
            finally:
                end()

        return wrapper

    def _noted(self) -> Optional[Callable[[], None]]:
        """Return a function that records that gradients are computed; None if nothing is to be recorded."""
        agent = self._agent
        log, marks = agent.thread.log, agent.thread.marks
        if log is None or not agent.is_on:
            return None
        if is_backward_compiled():
            self._set_reason(COMPILED)
            return None
        if marks is not None:
            self._thread.stream = torch.cuda.current_stream(marks.device)

        def note_ready() -> None:
            # In another thread on a GPU, while this one waits for it.
            mark = None if marks is None else marks.record()
            if mark is None:
                log.write(events.GRADIENTS_READY, monotonic_ns())
            else:
                log.write(events.GRADIENTS_READY, monotonic_ns(), 0, 0.0, 0, 0, mark, 0, events.HAS_DEVICE_TIME)

        return lambda: agent.guarded(note_ready)  # which returns nothing


def is_backward_compiled() -> bool:
    """Return whether torch compiles backward passes, and would compile hooks with them."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiled, "compiled_autograd_enabled", False))
