"""Generated profiler traces with known answers."""

import gzip
import json

from metadata import RUN

from epochmeter.shared.record import Record
from epochmeter.trace.kineto import load


class Kineto:
    """Collects the events of a trace; times in us."""

    def __init__(self, **properties):
        self.events = []
        self.properties = properties
        self._correlation = 0

    def host(self, name, ts, dur, cat="cpu_op", tid=1, **args):
        """Add an event of the host."""
        self._append(cat, name, ts, dur, args, pid=1, tid=tid)

    def step(self, number, ts, dur):
        """Add a ProfilerStep."""
        self.host(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")

    def launch(self, name, ts, dur, launched=None, cat="kernel", device=0, stream=7, call="cudaLaunchKernel", **args):
        """Add an activity of the device, and the call at `launched` that takes 1 us."""
        if launched is not None:
            self._correlation += 1
            self.host(call, launched, 1, cat="cuda_runtime", correlation=self._correlation)
            args["correlation"] = self._correlation
        args.update(device=device, stream=stream)
        self._append(cat, name, ts, dur, args, pid=device, tid=stream)

    def _append(self, cat, name, ts, dur, args, **ids):
        self.events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, **ids})

    def text(self):
        """Return the trace as JSON."""
        return json.dumps({"schemaVersion": 1, "deviceProperties": [self.properties], "traceEvents": self.events})

    def write(self, path):
        """Write the trace, compressed if the name ends in .gz; return the path."""
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    def load(self, folder):
        """Write the trace into a folder and return it as read."""
        return load(self.write(folder / "trace.json"))


def traced_record(folder):
    """Describe a run in a folder, and write a trace of one step; return its path."""
    trace = Kineto()
    trace.step(0, 0, 100)
    trace.host("aten::mm", 10, 20)
    Record(folder).describe({}, RUN)
    return trace.write(folder / "trace.json.gz")
