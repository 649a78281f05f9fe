"""Analysis of a run's trace: metrics for its record, and tables for its report.

`python -m epochmeter.trace RUN_FOLDER` writes `trace_analysis.json`; the controller runs it after training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from epochmeter.machine.gpu_counters import RESTRICTED
from epochmeter.power.phases.phase_energy import UnresolvedError
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import INTERVALS, NCU_CSV, TRACE, TRACE_ANALYSIS, Record, is_steady
from epochmeter.trace.attribution import Attribution, attribute
from epochmeter.trace.device import S_PER_NS, DeviceTime, busy_fraction, measure_device
from epochmeter.trace.energy import TracedPower, read_power
from epochmeter.trace.kernels import UNKNOWN
from epochmeter.trace.kineto import Category, Trace, load
from epochmeter.trace.nsight import NsightError, analyze_pipes

MAX_ROWS = 500
"""Largest number of rows of a table in the result."""
STEP_PARTS = [INTERVALS.index(name) for name in ("gap_s", "copy_s", "compute_s")]


def analyze_run(folder: Path) -> dict[str, Any]:
    """Analyze the trace in a run folder, and write the result there.

    Raises:
        TraceError: The trace cannot be read.
    """
    trace, record = load(folder / TRACE), Record(folder)
    try:
        power: TracedPower | str = read_power(record)
    except UnresolvedError as reason:
        power = str(reason)
    result = analyze(trace, untraced_wall_s(record, trace.steps[:, 0].tolist()), power)
    if (folder / NCU_CSV).exists():
        add_pipes(result, folder / NCU_CSV)
    write_json(folder / TRACE_ANALYSIS, result)
    return result


def add_pipes(result: dict[str, Any], path: Path) -> None:
    """Add the utilization of pipes to an analysis, or why it is unknown."""
    try:
        pipes = analyze_pipes(path)
    except NsightError as error:
        result["missing"].append(f"no utilization of pipes: {error}")
        return
    result["metrics"].update(pipes.pop("metrics"))
    result["missing"] += pipes.pop("missing")
    result["pipes"] = _limited(pipes)


def untraced_wall_s(record: Record, steps: list[int]) -> float | None:
    """Return the mean wall time of these steps in the steady epochs, which no profiler slowed; None if it is unknown.

    Args:
        record: The run.
        steps: Numbers of the traced steps, from 0; the trace begins with the first batch of an epoch.
    """
    rows = np.array(record.steps()).reshape(-1, len(INTERVALS))
    epochs, begin = [], 0
    for window in record.windows():
        count = int(window["metrics"].get("epoch/steps", 0))
        if window["window"] == "epoch" and is_steady(window) and count:
            epochs.append(rows[begin : begin + count, STEP_PARTS].sum(axis=1, dtype=float))
        begin += count
    walls = [sum(epoch[step % len(epoch)] for step in steps) for epoch in epochs if len(epoch)]
    return float(np.mean(walls)) if walls and steps else None


def analyze(trace: Trace, untraced_s: float | None = None, power: TracedPower | str = "") -> dict[str, Any]:
    """Analyze a trace.

    Args:
        trace: The trace.
        untraced_s: Wall time of the same steps without the profiler; None if it is unknown.
        power: The power in the traced steps, or why it is unknown.

    Returns:
        `metrics` (names without `trace/`), `missing` (why metrics are absent, one sentence per reason), `device` and
        `attribution` (see `DeviceTime` and `Attribution`), and the numbers of `left_out` events by reason.
    """
    time = attribution = None
    metrics: dict[str, float | None] = {}
    if trace.incomplete:
        names = ", ".join(sorted(category.name.lower() for category in trace.incomplete))
        missing = [f"the trace is too large: events of these categories were left out: {names}"]
    else:
        time = measure_device(trace)
        attribution = attribute(trace, None if isinstance(power, str) else power) if len(trace.steps) else None
        metrics.update(_device_metrics(time, untraced_s) if time else {})
        metrics.update(_step_metrics(trace, time, attribution, untraced_s) if attribution else {})
        missing = [*_missing_device(trace, time), *_missing_steps(attribution, untraced_s, power)]
    return {
        "metrics": {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)},
        "missing": missing,
        "device": asdict(time) if time else None,
        "attribution": _limited(asdict(attribution)) if attribution else None,
        "left_out": dict(trace.left_out),
    }


def _missing_device(trace: Trace, time: DeviceTime | None) -> Iterator[str]:
    """Yield why metrics of a GPU are absent."""
    if time is None:
        launched = len(trace.where(Category.RUNTIME)) > 0
        cause = f", although some were launched: {RESTRICTED}" if launched else ""
        yield f"no metrics of a GPU: the trace has no kernels{cause}"
    elif time.occupancy is None:
        yield "no SM efficiency and occupancy: the trace of this device does not contain them"


def _missing_steps(
    attribution: Attribution | None, untraced_s: float | None, power: TracedPower | str
) -> Iterator[str]:
    """Yield why metrics per step, and energy, are absent."""
    if attribution is None:
        yield "no metrics per step, and no time by module and operator: the trace has no ProfilerStep"
        return
    if untraced_s is None:
        yield "no untraced time of the traced steps: no epoch is steady"
    if isinstance(power, str) and power:
        yield f"no energy of modules and operators: {power.rstrip('.')}"
    yield from attribution.energy_reasons


def _device_metrics(time: DeviceTime, untraced_s: float | None) -> dict[str, float | None]:
    wall_s, compute_s = time.wall_s * time.devices, sum(time.by_precision_s.values())
    return {
        "gpu_busy_fraction": busy_fraction(time.busy_s, untraced_s * time.devices) if untraced_s else None,
        "gpu_busy_traced_fraction": time.busy_s / wall_s,
        **{f"idle_{cause}_fraction": idle_s / wall_s for cause, idle_s in time.idle_s.items()},
        "copy_overlap_fraction": time.copy_overlap_s / time.copy_s if time.copy_s else None,
        "communication_fraction": time.communication_s / wall_s if time.communication_s else None,
        "communication_overlap_fraction": (
            time.communication_overlap_s / time.communication_s if time.communication_s else None
        ),
        "sm_efficiency": time.sm_efficiency,
        "achieved_occupancy": time.occupancy,
        "tensor_core_fraction": None if time.tensor_core_s is None else time.tensor_core_s / compute_s,
        **{
            f"precision_{precision}_fraction": seconds / compute_s
            for precision, seconds in time.by_precision_s.items()
            if precision != UNKNOWN
        },
        "kernel_mean_s": time.kernel_s / time.kernels,
        "launch_latency_s": time.launch_latency_s,
    }


def _step_metrics(
    trace: Trace, time: DeviceTime | None, attribution: Attribution, untraced_s: float | None
) -> dict[str, float | None]:
    steps = len(trace.steps)
    traced_s = float((trace.steps[:, 2] - trace.steps[:, 1]).sum()) * S_PER_NS
    return {
        "steps": steps,
        "traced_step_s": traced_s / steps,
        "untraced_step_s": untraced_s / steps if untraced_s else None,
        "kernels_per_step": time.kernels / steps if time else None,
        "operators_per_step": len(trace.in_steps(Category.OPERATOR)) / steps,
        "host_busy_fraction": max(attribution.threads.values(), default=None),
        "explained_fraction": attribution.explained_fraction,
    }


def _limited(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Limit the rows of tables, as a model may have thousands of modules."""
    return {key: value[:MAX_ROWS] if isinstance(value, list) else value for key, value in tables.items()}
