"""Trace analysis against HolisticTraceAnalysis (HTA) on real traces, and its time and memory on a trace of 100 MB.

`python benchmarks/accuracy/traces.py [--short] [TRACE ...]` takes further traces. HTA is installed into its own
environment. HTA truncates the times of kernel types to integer microseconds, so these are compared only for traces with
integer microseconds.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from common.output import ARGUMENTS, SHORT, print_table, sized
from hta import figures
from torchvision.models import mobilenet_v3_small, resnet18

from epochmeter.config.installation import ROOT
from epochmeter.trace.attribution import attribute
from epochmeter.trace.kineto import load
from epochmeter.worker.models.lenet import LeNet
from epochmeter.worker.trace import TorchTrace, module_ranges

HTA = "HolisticTraceAnalysis==0.5.0"
TRACES = [*sorted((ROOT / "tests/data/traces").glob("*.json.gz"))[: sized(None, 1)], *map(Path, ARGUMENTS)]
GOAL, LARGE_BYTES = 0.1, sized(100_000_000, 1_000_000)
"""Goal: the largest difference in percentage points; the size of the large trace."""
MODELS = [
    ("LeNet, 64 images", LeNet(1, 10), torch.randn(64, 1, 32, 32)),
    ("MobileNet v3 small, 8 images", mobilenet_v3_small(num_classes=10), torch.randn(8, 3, 96, 96)),
    ("ResNet-18, 8 images", resnet18(num_classes=10), torch.randn(8, 3, 64, 64)),
]
PROGRAM = """
import json, logging, sys, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/", include_last_profiler_step=True)
(time,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
types, _ = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
whole = time["kernel_time(us)"]
values = {name: time[f"{key}(us)"] / whole for name, key in
          {"idle": "idle_time", "compute": "compute_time", "non-compute": "non_compute_time"}.items()}
names = {"COMPUTATION": "only computation", "COMMUNICATION": "only communication", "MEMORY": "only memory"}
values |= {names[row["kernel_type"]]: row["sum"] / types["sum"].sum() for row in types.to_dict("records")
           if row["kernel_type"] in names}
(overlap,) = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]
if overlap == overlap:
    values["communication overlap"] = overlap / 100
idle, _ = analysis.get_idle_time_breakdown(visualize=False)
for stream, rows in idle.groupby("stream"):
    waits = rows[rows["idle_category"] == "host_wait"]["idle_time"].sum()
    if rows["idle_time"].sum():
        values[f"host wait, stream {stream}"] = waits / rows["idle_time"].sum()
print(json.dumps({name: 100 * float(value) for name, value in values.items()}))
"""
PEAK = "\nprint(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
"""Prints the peak of the process's memory in kB; that of `getrusage` includes its parent's."""
OURS = "import sys; from epochmeter.trace.kineto import load; from epochmeter.trace.analysis import analyze; "
OURS += "from pathlib import Path; analyze(load(Path(sys.argv[1])), 1.0)"


def hta_python() -> tuple[Path | None, str]:
    """Return the interpreter of HTA's environment, created on first use; None and the reason if there is none."""
    if SHORT:
        return None, "its 200 packages are not installed for a short run"
    folder = Path(tempfile.gettempdir()) / "epochmeter-hta"
    python = folder / "bin/python"
    if subprocess.run([python, "-c", "import hta"], capture_output=True).returncode if python.exists() else True:
        for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "--quiet", HTA]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                error = (done.stderr.strip() or done.stdout.strip() or "venv failed").splitlines()[-1]
                return None, f"{HTA} cannot be installed: {error}"
    return python, ""


def run(python: Path | str, program: str, trace: Path) -> tuple[str, float, float]:
    """Run a program on a trace; return its output, its seconds and its peak memory in MB."""
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HTA_DISABLE_NS_ROUNDING": "1"}
    command = [python, "-c", program + PEAK, trace]
    text = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True).stdout
    *lines, peak_kb = text.splitlines()
    return "\n".join(lines), time.perf_counter() - began, int(peak_kb) * 1024 / 1e6


def large_trace(source: Path, folder: Path) -> Path:
    """Write a trace of about 100 MB: the events of a real one, again and again at later times."""
    content = json.loads(gzip.decompress(source.read_bytes()))
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    span = max(event["ts"] + event.get("dur", 0) for event in events) - min(event["ts"] for event in events)
    path, size, copies = folder / "large.json", 0, 0
    with open(path, "w") as file:
        file.write('{"traceEvents": [\n')
        while size < LARGE_BYTES:
            for event in events:
                moved = {**event, "ts": event["ts"] + copies * span, "args": dict(event.get("args", {}))}
                if "correlation" in moved["args"]:
                    moved["args"]["correlation"] += copies * 10_000_000
                size += file.write((",\n" if size else "") + json.dumps(moved, indent=1))
            copies += 1
        file.write("]}")
    return path


def explained(model: torch.nn.Module, inputs: torch.Tensor, folder: str) -> tuple[float, float]:
    """Return the mean time of a step on one core, and the fraction of it that modules, operators and so on explain."""
    targets = torch.zeros(len(inputs), dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def train(batches: Iterable[torch.Tensor]) -> None:
        for batch in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), targets).backward()
            optimizer.step()

    path = Path(folder) / "explained.json.gz"
    with module_ranges(model):
        TorchTrace().record_trace(str(path), itertools.repeat(inputs), train)
    result = attribute(load(path))
    return result.total_s / TorchTrace().steps, result.explained_fraction


def print_explained() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [[name, *explained(model, inputs, folder)] for name, model, inputs in MODELS]
    cells = [[name, f"{1e3 * step_s:.0f}", f"{100 * fraction:.1f}"] for name, step_s, fraction in rows]
    print_table("Explained time of CPU steps", ["model", "step ms", "explained %"], cells)


def main() -> None:
    python, why = hta_python()
    if python is None:
        print(f"HTA is skipped: {why}")
    rows, worst = [], 0.0
    for trace in TRACES:
        theirs = json.loads(run(python, PROGRAM, trace)[0].splitlines()[-1]) if python else {}
        loaded = load(trace)
        is_rounded = bool((loaded.duration_ns % 1000).any())
        for name, value in figures(loaded).items():
            other = None if is_rounded and name.startswith("only") else theirs.get(name)
            worst = max(worst, abs(value - other)) if other is not None else worst
            rows.append([trace.name, name, f"{value:.2f}", "" if other is None else f"{other:.2f}"])
    print_table("Trace analysis against HTA, in percent", ["trace", "quantity", "epochmeter", "HTA"], rows)
    print(f"\nLargest difference: {worst:.3f} percentage points (goal: at most {GOAL})")
    with tempfile.TemporaryDirectory() as folder:
        large = large_trace(TRACES[-1], Path(folder))
        costs = [["epochmeter", *run(sys.executable, OURS, large)[1:]]]
        if python:
            costs.append(["HTA", *run(python, PROGRAM, large)[1:]])
        size = f"{large.stat().st_size / 1e6:.0f} MB"
        cells = [[program, size, f"{seconds:.1f}", f"{memory:.0f}"] for program, seconds, memory in costs]
        print_table("Time and memory of an analysis", ["program", "trace", "s", "MB"], cells)


if __name__ == "__main__":
    main()
    print_explained()
