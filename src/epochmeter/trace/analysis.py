"""Analysis of a run's trace: metrics for its record, and tables for its report.

`python -m epochmeter.trace.analysis RUN_FOLDER` writes `trace_analysis.json`; the controller runs it after training.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

import numpy as np

from epochmeter.machine.gpu_counters import RESTRICTED
from epochmeter.results.summary import step_durations
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.lifetime import die_with_parent
from epochmeter.shared.problem import problem_of
from epochmeter.shared.record import NCU_CSV, TRACE, TRACE_ANALYSIS, Record, is_steady
from epochmeter.shared.types import Document
from epochmeter.shared.units import NANOSECOND, percent
from epochmeter.trace.attribution import attribute
from epochmeter.trace.device import IDLE_CAUSES, measure_device
from epochmeter.trace.energy import TracedPower, read_power
from epochmeter.trace.kernels import PRECISIONS
from epochmeter.trace.kineto import Category, Trace, TraceError, load
from epochmeter.trace.nsight import NsightError, analyze_pipes

RATIOS = {
    # As in H. Zhu et al., Benchmarking and Analyzing Deep Neural Network Training, IISWC 2018, and the TBD suite.
    "gpu_busy_fraction": ("busy_s", "untraced_device_s"),
    "gpu_busy_traced_fraction": ("busy_s", "wall_s"),
    **{f"idle_{cause}_fraction": (f"idle_{cause}_s", "wall_s") for cause in IDLE_CAUSES},
    "copy_overlap_fraction": ("copy_overlap_s", "copy_s"),
    "communication_fraction": ("communication_s", "wall_s"),
    "communication_overlap_fraction": ("communication_overlap_s", "communication_s"),
    "tensor_core_fraction": ("tensor_core_s", "computing_s"),
    **{f"precision_{precision}_fraction": (f"precision_{precision}_s", "computing_s") for precision in PRECISIONS},
    "kernel_mean_s": ("kernel_s", "kernels"),
    "kernels_per_step": ("kernels", "steps"),
    "operators_per_step": ("operators", "steps"),
    "traced_step_s": ("traced_s", "steps"),
    "untraced_step_s": ("untraced_s", "steps"),
}
"""Metric -> its numerator and denominator."""
MAX_FRACTION = 1.05
"""Larger fractions are absent. Up to it they count as 1, as kernels are a little slower while they are traced."""
ESTIMATES = {"sm_efficiency": "SM efficiency", "achieved_occupancy": "occupancy"}
MEANS = (*ESTIMATES, "launch_latency_s")


class _Analysis(TypedDict):
    metrics: dict[str, float]
    missing: list[str]
    device: dict[str, float] | None
    attribution: Document | None
    left_out: Mapping[str, int]


class Analysis(_Analysis, total=False):
    """Content of `trace_analysis.json`.

    Attributes:
        metrics: Metrics by their names without `trace/`.
        missing: Why metrics are absent.
        device: Times and means of `measure_device`; None without kernels.
        attribution: Fields of `Attribution`; None without steps.
        left_out: Number of events that are left out, by reason.
        pipes: Utilization of pipes by kernel, if Nsight Compute has measured it.
    """

    pipes: Document


def analyze_run(folder: Path) -> Analysis:
    """Analyze the trace in a run folder, and write the result there; TraceError if it cannot be read."""
    trace, record = load(folder / TRACE), Record(folder)
    steps = [int(trace.names[name].partition("#")[2]) for name in trace.name[trace.steps]]
    result = analyze(trace, untraced_wall_s(record, steps), read_power(record))
    if (folder / NCU_CSV).exists():
        try:
            pipes = analyze_pipes(folder / NCU_CSV)
            result["metrics"] |= pipes["metrics"]
            result["missing"] += [*pipes["missing"], *drop_impossible_fractions(result["metrics"])]
            result["pipes"] = {"kernels": pipes["kernels"], "total_s": pipes["total_s"]}
        except NsightError as error:
            result["missing"].append(f"no utilization of pipes: {error}")
    write_json(folder / TRACE_ANALYSIS, result)
    return result


def untraced_wall_s(record: Record, steps: list[int]) -> float | None:
    """Return the mean wall time of these steps (from 0) in the steady epochs; None if it is unknown."""
    durations_s, epochs, begin = step_durations(record.steps()), [], 0
    for window in record.windows():
        count = int(window["metrics"].get("epoch/steps", 0))  # 0 of an evaluation
        if is_steady(window):
            epochs.append(durations_s[begin : begin + count])
        begin += count
    walls_s = [sum(epoch[step % len(epoch)] for step in steps) for epoch in epochs if len(epoch)]
    return float(np.mean(walls_s)) if walls_s and steps else None


def analyze(trace: Trace, untraced_s: float | None = None, power: TracedPower | str = "") -> Analysis:
    """Analyze a trace, with the untraced wall time of its steps, and the power or the reason why it is unknown."""
    missing, attribution, device = list[str](), None, measure_device(trace)
    times, metrics = {**device}, {name: device[name] for name in MEANS if name in device}
    if not device:
        cause = f", although some were launched: {RESTRICTED}" if len(trace.where(Category.RUNTIME)) else ""
        missing.append(f"no metrics of a GPU: the trace has no kernels{cause}")
    elif unknown := [label for name, label in ESTIMATES.items() if name not in device]:
        missing.append(f"no {' and '.join(unknown)}: the trace of this device does not contain them")
    if len(trace.steps):
        attribution = attribute(trace, None if isinstance(power, str) else power)
        times |= {"steps": len(trace.steps), "operators": len(trace.in_steps(Category.OPERATOR))}
        times["traced_s"] = float(trace.duration_ns[trace.steps].sum()) * NANOSECOND
        metrics |= {"explained_fraction": attribution.explained_fraction, "steps": times["steps"]}
        metrics |= {"host_busy_fraction": max(attribution.threads.values())} if attribution.threads else {}
        if untraced_s:
            times |= {"untraced_s": untraced_s, "untraced_device_s": untraced_s * device.get("devices", 0)}
        else:
            missing.append("no untraced time of the traced steps: no epoch is steady")
        if isinstance(power, str) and power:
            missing.append(f"no energy of modules and operators: {power.rstrip('.')}")
        missing += attribution.energy_reasons
    else:
        missing.append("no metrics per step, and no time by module and operator: the trace has no ProfilerStep")
    metrics |= {
        name: times[component] / times[total]
        for name, (component, total) in RATIOS.items()
        if component in times and times.get(total)
    }
    missing += drop_impossible_fractions(metrics)
    return {
        "metrics": metrics,
        "missing": missing,
        "device": device or None,
        "attribution": asdict(attribution) if attribution else None,
        "left_out": trace.left_out,
    }


def drop_impossible_fractions(metrics: dict[str, float]) -> list[str]:
    """Remove fractions above 1, and return the reasons; those within the errors of measurement become 1."""
    above = {name: value for name, value in metrics.items() if name.endswith("_fraction") and value > 1}
    metrics.update(dict.fromkeys(above, 1.0))
    reasons = []
    for name, value in above.items():
        if value > MAX_FRACTION:
            del metrics[name]
            words = name.replace("_", " ")
            reasons.append(f"no {words}: it would be {percent(value)}, so the trace differs from the run")
    return reasons


if __name__ == "__main__":
    die_with_parent()
    try:
        analyze_run(Path(sys.argv[1]))
    except TraceError as error:
        json.dump(problem_of(error).to_fields(), sys.stdout)
        sys.exit(1)
