"""Energy of windows on a real NVIDIA GPU under steady and switched loads, by epochmeter and by Zeus in turn.

The expected energy of a window is its length times the mean power of the segment, by the GPU's own energy counter. So
the counter's gain cancels out, and the errors are those at the borders of windows.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from common.jobs import composed
from common.output import print_table, sized

from epochmeter.power.meter import open_meter
from epochmeter.power.window_energy import energy_of_window, take_reading
from epochmeter.shared.units import NANOSECOND

WINDOWS_S = (1.0, 2.0, 5.0)
SEGMENT_S = sized(24.0, 6.0)
WARM_UP_S = 10.0
LOADS = {"constant": (1.0, 0.0), "20 ms of load, 30 ms idle": (0.02, 0.03), "0.2 s of load, 0.3 s idle": (0.2, 0.3)}
"""Seconds of load and of idle time, repeated."""
COLUMNS = ("load", "mean W", "window s", "windows", "tool", "bias %", "largest error %", "stated %", "covered %")


def load(busy_s: float, idle_s: float) -> None:
    """Switch the GPU between load and idle time until the process is ended."""
    matrix = torch.rand(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while True:
        until = time.monotonic() + busy_s
        while time.monotonic() < until:
            for _ in range(4):
                matrix @ matrix
            torch.cuda.synchronize()
        time.sleep(idle_s)


def one_window(begin: Callable, end: Callable, length_s: float) -> tuple[float, float, float]:
    """Measure a window with a tool: its length in s, its energy and the uncertainty in J (nan if none is stated)."""
    opened_ns, state = time.monotonic_ns(), begin()
    time.sleep(length_s)
    closed_ns = time.monotonic_ns()
    return (closed_ns - opened_ns) * NANOSECOND, *end(state, opened_ns, closed_ns)


def main() -> None:
    if not torch.cuda.is_available():
        print("benchmarks/accuracy/gpu_energy.py needs an NVIDIA GPU: skipped.")
        return
    from zeus.monitor import ZeusMonitor

    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    sensors = composed("device=cuda")["device"]["sensors"]
    spec = {"_target_": "epochmeter.power.meters.nvml.open_nvml", "sensors": sensors}
    meter = open_meter(spec, gpus=[uuid], root="/")
    zeus = ZeusMonitor(gpu_indices=[0], cpu_indices=[])

    def end_epochmeter(before: object, opened_ns: int, closed_ns: int) -> tuple[float, float]:
        window_s = (closed_ns - opened_ns) * NANOSECOND
        metrics = energy_of_window(before, take_reading(meter), meter, window_s).metrics
        return metrics.get("energy_j", float("nan")), metrics.get("energy_uncertainty_j", float("nan"))

    def begin_zeus() -> str:
        key = str(time.monotonic_ns())
        zeus.begin_window(key)
        return key

    def end_zeus(key: str, opened_ns: int, closed_ns: int) -> tuple[float, float]:
        return zeus.end_window(key).total_energy, float("nan")

    tools = {"epochmeter": (lambda: take_reading(meter), end_epochmeter), "Zeus": (begin_zeus, end_zeus)}
    rows = []
    for name, (busy_s, idle_s) in LOADS.items():
        process = multiprocessing.get_context("spawn").Process(target=load, args=(busy_s, idle_s), daemon=True)
        process.start()
        time.sleep(WARM_UP_S)  # starts torch and CUDA
        begun, reading = time.monotonic_ns(), take_reading(meter)
        measured: dict[tuple[str, float], list[tuple[float, ...]]] = {}
        for length_s in WINDOWS_S:
            for _ in range(math.ceil(SEGMENT_S / len(WINDOWS_S) / length_s / len(tools))):
                for tool, (begin, end) in tools.items():
                    measured.setdefault((tool, length_s), []).append(one_window(begin, end, length_s))
        ended = time.monotonic_ns()
        total_s = (ended - begun) * NANOSECOND
        mean_w = energy_of_window(reading, take_reading(meter), meter, total_s).metrics["energy_j"] / total_s
        process.kill()
        process.join()
        for (tool, length_s), taken in measured.items():
            rows.append([name, f"{mean_w:.1f}", f"{length_s:g}", str(len(taken)), tool, *summary(taken, mean_w)])
            print(*rows[-1], file=sys.stderr)
    print_table(f"Energy of windows on {torch.cuda.get_device_name()}", COLUMNS, rows)
    meter.close()


def summary(windows: Sequence[tuple[float, ...]], mean_w: float) -> list[str]:
    """Return bias, largest error, median stated uncertainty and the windows within it, in percent."""
    errors = [energy_j / (mean_w * length_s) - 1 for length_s, energy_j, _ in windows]
    stated = [uncertainty_j / energy_j for _, energy_j, uncertainty_j in windows]
    covered = [abs(error) <= half for error, half in zip(errors, stated, strict=True)]
    has_uncertainty = stated[0] == stated[0]
    return [
        f"{100 * statistics.mean(errors):+.2f}",
        f"{100 * max(map(abs, errors)):.2f}",
        f"{100 * statistics.median(stated):.1f}" if has_uncertainty else "",
        f"{100 * statistics.mean(covered):.0f}" if has_uncertainty else "",
    ]


if __name__ == "__main__":
    main()
