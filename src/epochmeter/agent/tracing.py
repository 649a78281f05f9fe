"""The profiler's trace of a script: some steps of its last warm-up epoch, which is not part of any mean."""

import contextlib
import itertools
import os
import sys
from typing import Generator, Iterator, Optional, Union

import torch

from epochmeter.agent.frames import Suppressed, pass_on
from epochmeter.agent.iterators import PassProgress
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import Traced, TraceFailed
from epochmeter.shared.record import TRACE
from epochmeter.worker.timeline import wall_offset_ns
from epochmeter.worker.trace import TorchTrace, module_ranges

LOG_LEVEL, SILENT = "KINETO_LOG_LEVEL", "99"
"""Environment variable of the profiler's library, and the value without messages in the script's stderr."""


class ScriptTrace:
    """Traces steps of one pass that trains, with a `TorchTrace`; an error ends only the trace.

    Args:
        folder: Run folder, in which the trace is written.
        epoch: Number of the pass, counted from 0 over the passes that train.
        warmup_steps: Steps under the profiler before the traced ones.
        steps: Traced steps.
    """

    def __init__(self, folder: str, epoch: int, warmup_steps: int, steps: int) -> None:
        self._epoch, self._epochs = epoch, 0
        self._path = os.path.join(folder, TRACE)
        self._profiler = TorchTrace(warmup_steps, steps)
        self._count = warmup_steps + steps
        self._recording: Optional[Generator[None, None, None]] = None

    def step(
        self, progress: PassProgress, thread_steps: int, model: Optional[torch.nn.Module]
    ) -> Union[Traced, TraceFailed, None]:
        """Begin, continue or end the trace before the next step of a pass; return a message at its end, else None.

        The first steps of an epoch are not traced, since the script warms up. The modules of `model` are marked.
        `progress` is a `PassProgress`, and `thread_steps` the number of training steps of the thread so far.
        """
        progress.batches += 1
        if progress.epoch is None and thread_steps > progress.begun_steps:
            progress.epoch = self._epochs
            self._epochs += 1
        if progress.epoch != self._epoch:
            return None
        try:
            if self._recording is None:
                length = progress.length or 0
                if progress.batches - 1 < min(length // 4, length - self._count):
                    return None
                # With `torch.compile`, hooks of modules would be a reason to compile again.
                compilations = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get("frames")
                self._recording = self._record(progress.batches - 1, None if compilations else model)
            next(self._recording)
            return None
        except StopIteration:
            return self._ended()
        except Exception as error:
            pass_on(error)
            return no_trace("{}: {}".format(type(error).__name__, error))

    def close(self) -> Optional[TraceFailed]:
        """End an incomplete trace; return a message, unless no step was traced."""
        if self._recording is None:
            return None
        with Suppressed(Exception):
            self._recording.close()
        return no_trace("the epoch ended within the {} steps to trace".format(self._count))

    def _ended(self) -> Union[Traced, TraceFailed]:
        if self._profiler.traced_ns is None:
            return no_trace("no step was traced")
        return Traced(*self._profiler.traced_ns, wall_offset_ns(), [])

    def _record(self, first: int, model: Optional[torch.nn.Module]) -> Generator[None, None, None]:
        recorded = self._profiler.recorded(self._path, itertools.repeat(None), first)
        with module_ranges(model), contextlib.closing(recorded):
            with silent_library():
                next(recorded)
            yield
            yield from recorded


def no_trace(reason: str) -> TraceFailed:
    return TraceFailed(Problem(reason).within("no trace"))


@contextlib.contextmanager
def silent_library() -> Iterator[None]:
    """Silence the profiler's library, which reads this variable once; the script's child processes must not get it."""
    if LOG_LEVEL in os.environ:
        yield
        return
    os.environ[LOG_LEVEL] = SILENT
    try:
        yield
    finally:
        del os.environ[LOG_LEVEL]
