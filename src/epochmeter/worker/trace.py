"""Profiler traces of a few steady steps, taken in a separate window after the last epoch."""

import itertools
import os


class TorchTrace:
    """Record a trace with torch's profiler, after some warm-up steps; opens in Perfetto and chrome://tracing."""

    def __init__(self, warmup_steps=2, steps=5):
        self.warmup_steps = warmup_steps
        self.steps = steps

    def record_trace(self, path, batches, run):
        """Train a few steps and write the trace of the last `steps` of them.

        Args:
            path: Trace file; with None, train the same steps without recording (ranks that write no trace).
            batches: Endless iterable of batches on the device.
            run: Function that trains on an iterable of batches.
        """
        if path is None:
            run(itertools.islice(batches, self.warmup_steps + self.steps))
            return
        from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

        def export(profiler):
            partial = os.path.join(os.path.dirname(path), "partial-" + os.path.basename(path))
            profiler.export_chrome_trace(partial)
            os.replace(partial, path)

        requested = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
        phases = schedule(wait=0, warmup=self.warmup_steps, active=self.steps, repeat=1)
        activities = requested & set(supported_activities())
        with profile(activities=activities, schedule=phases, on_trace_ready=export) as profiler:
            run(self._stepping(batches, profiler))

    def _stepping(self, batches, profiler):
        for _, batch in zip(range(self.warmup_steps + self.steps), batches):
            yield batch
            profiler.step()


class NullProfiler:
    """Take no trace."""

    def record_trace(self, path, batches, run):
        pass
