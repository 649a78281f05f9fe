"""The profiler's trace of a script: some steps of its last warm-up epoch, which is not part of any mean."""

import contextlib
import itertools
import os
import sys

from epochmeter.agent.iterators import is_from_signal_handler
from epochmeter.shared.protocol import Traced, TraceFailed
from epochmeter.shared.record import TRACE
from epochmeter.worker.timeline import wall_offset_ns
from epochmeter.worker.trace import TorchTrace, module_ranges

LOG_LEVEL, SILENT = "KINETO_LOG_LEVEL", "99"
"""Environment variable of the profiler's library, and the value without messages in the script's stderr."""


class ScriptTrace:
    """Traces steps of one epoch; an error ends the trace, and the script continues.

    Args:
        folder: The run folder.
        epoch: The epoch to trace, from 0.
        warmup_steps, steps: As those of `TorchTrace`.
    """

    def __init__(self, folder, epoch, warmup_steps, steps):
        self.epoch = epoch
        self.is_done = False  # whether the trace has ended, for whatever reason
        self._path = os.path.join(folder, TRACE)
        self._profiler = TorchTrace(warmup_steps, steps)
        self._count = warmup_steps + steps
        self._recording = None

    def step(self, window, model):
        """Begin, continue or end the trace before the script's next step; return a message at its end, else None.

        The first steps of an epoch are not traced, since the script warms up. `model` has marks in the trace, unless it
        is None.
        """
        try:
            if self._recording is None:
                length = window.length or window.limit or 0
                if window.batches < min(length // 4, length - self._count):
                    return None
                self._recording = self._record(window.batches, None if is_compiling() else model)
            next(self._recording)
            return None
        except StopIteration:
            self.is_done = True
            return Traced(*self._profiler.traced_ns, wall_offset_ns(), [])
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self.is_done = True
            return TraceFailed("no trace: {}: {}".format(type(error).__name__, error))

    def close(self):
        """End an incomplete trace; return a message if there was one, else None."""
        if self._recording is None or self.is_done:
            return None
        self.is_done = True
        with contextlib.suppress(Exception):
            self._recording.close()
        return TraceFailed("no trace: the epoch ended within the {} steps to trace".format(self._count))

    def _record(self, first, model):
        level = os.environ.setdefault(LOG_LEVEL, SILENT)
        try:
            with module_ranges(model):
                yield from self._profiler.recorded(self._path, itertools.repeat(None), first)
        finally:
            if level == SILENT:
                os.environ.pop(LOG_LEVEL, None)


def is_compiling():
    """Return whether the script uses `torch.compile`, for which hooks of modules would be a reason to compile again."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))
