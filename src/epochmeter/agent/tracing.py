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
    """Traces steps of one epoch, counted from 0, with a `TorchTrace`; an error ends only the trace."""

    def __init__(self, folder, epoch, warmup_steps, steps):
        self.epoch = epoch
        self._path = os.path.join(folder, TRACE)
        self._profiler = TorchTrace(warmup_steps, steps)
        self._count = warmup_steps + steps
        self._recording = None

    def step(self, window, model):
        """Begin, continue or end the trace before the script's next step; return a message at its end, else None.

        The first steps of an epoch are not traced, since the script warms up. The modules of `model` are marked.
        """
        try:
            if self._recording is None:
                length = window.length or window.limit or 0
                if window.batches < min(length // 4, length - self._count):
                    return None
                # With `torch.compile`, hooks of modules would be a reason to compile again.
                compilations = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get("frames")
                self._recording = self._record(window.batches, None if compilations else model)
            next(self._recording)
            return None
        except StopIteration:
            return Traced(*self._profiler.traced_ns, wall_offset_ns(), [])
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            return TraceFailed("no trace: {}: {}".format(type(error).__name__, error))

    def close(self):
        """End an incomplete trace; return a message, unless no step was traced."""
        if self._recording is None:
            return None
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
