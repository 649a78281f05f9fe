"""A profiler's trace of a few steady steps, in a window of its own after the last epoch."""

import itertools
import os


class TorchTrace:
    """Records with torch's profiler: opens in Perfetto and in chrome://tracing."""

    def __init__(self, warmup_steps=2, steps=5):
        self.warmup_steps = warmup_steps
        self.steps = steps

    def take(self, path, batches, run):
        """Lets `run` train on a few of the endless `batches`; writes the trace of the last of them to `path`.

        Without a path it but trains, in step with the rank that leaves the trace.
        """
        if path is None:
            run(itertools.islice(batches, self.warmup_steps + self.steps))
            return
        from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

        def export(profiler):
            partial = os.path.join(os.path.dirname(path), "partial-" + os.path.basename(path))
            profiler.export_chrome_trace(partial)
            os.replace(partial, path)

        wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
        plan = schedule(wait=0, warmup=self.warmup_steps, active=self.steps, repeat=1)
        activities = wanted & set(supported_activities())
        with profile(activities=activities, schedule=plan, on_trace_ready=export) as profiler:
            run(self._stepping(batches, profiler))

    def _stepping(self, batches, profiler):
        for _, batch in zip(range(self.warmup_steps + self.steps), batches):
            yield batch
            profiler.step()


class NoTrace:
    """Leaves no trace."""

    def take(self, path, batches, run):
        pass
