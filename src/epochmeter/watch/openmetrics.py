"""The state of a run or a sweep for Prometheus, as OpenMetrics 1.0."""

import math
from collections.abc import Iterator, Mapping
from typing import get_args

from epochmeter.watch.snapshot import ACTIVE, PARTS, RunView, Snapshot, State

PREFIX = "epochmeter_"
ESCAPES = str.maketrans({'"': r"\"", "\\": r"\\", "\n": r"\n"})
FAMILIES = {
    "run": ("info", "A run that is active, or the single run."),
    "run_state": ("stateset", "State of the run."),
    "runs": ("gauge", "Number of runs by state."),
    "remaining_seconds": ("gauge", "Estimated time to the end of the run or the sweep."),
    "remaining_joules": ("gauge", "Estimated energy to the end of the run or the sweep."),
    "progress_ratio": ("gauge", "Fraction of the run's epochs that are trained."),
    "epochs": ("counter", "Recorded epochs."),
    "steps": ("counter", "Steps of the recorded epochs."),
    "energy_joules": ("counter", "Measured energy of the recorded epochs."),
    "estimated_energy_joules": ("counter", "Estimated energy of the recorded epochs."),
    "epoch_seconds": ("gauge", "Time of the mean steady epoch."),
    "epoch_joules": ("gauge", "Measured energy of the mean steady epoch."),
    "epoch_part_seconds": ("gauge", "Time of the mean steady epoch by cause."),
    "epoch_part_ratio": ("gauge", "Fraction of the mean steady epoch by cause."),
    "bottleneck_ratio": ("gauge", "Fraction of the epoch in the part that is its bottleneck, or in about equal parts."),
    "current_epoch_steps": ("gauge", "Finished steps of the current epoch."),
    "current_epoch_part_seconds": ("gauge", "Time of the current epoch's steps by cause."),
    "power_watts": ("gauge", "Sampled power by source."),
    "utilization_ratio": ("gauge", "Busy fraction of the CPU, its cores, GPUs and the disk."),
    "temperature_celsius": ("gauge", "Temperature by sensor."),
    "clock_hertz": ("gauge", "Clock of GPUs."),
    "memory_used_bytes": ("gauge", "Memory in use."),
    "throughput_bytes_per_second": ("gauge", "Bytes from and to disk and network."),
    "requests_per_second": ("gauge", "Completed requests of the disk."),
    "latency_seconds": ("gauge", "Mean time of a request of the disk."),
    "queue_requests": ("gauge", "Mean number of requests of the disk in flight."),
}
"""Metric -> its type and its meaning. A unit is the end of its name."""
SUFFIXES = {"info": "_info", "counter": "_total"}  # of the names of samples, by type
COLUMNS = {
    "_utilization": "utilization_ratio",
    "_temperature_c": "temperature_celsius",
    "_clock_hz": "clock_hertz",
    "_used_bytes": "memory_used_bytes",
    "_bytes_per_s": "throughput_bytes_per_second",
    "_per_s": "requests_per_second",
    "_await_s": "latency_seconds",
    "_queue_requests": "queue_requests",
    "_w": "power_watts",
}
"""End of the columns of power.csv and gauges.csv -> their metric; the beginning is the label `source`."""
Sample = tuple[str, Mapping[str, str], float | None]  # metric, labels, and value if there is one


def to_openmetrics(snapshot: Snapshot) -> str:
    """Return the state as text; values that were not measured and gauges of ended runs are absent."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in _samples(snapshot):
        if value is not None and math.isfinite(value):
            kind, meaning = FAMILIES[name]
            family = lines.setdefault(name, [f"# TYPE {PREFIX}{name} {kind}", f"# HELP {PREFIX}{name} {meaning}"])
            escaped = {label: content.translate(ESCAPES) for label, content in labels.items()}
            text = ",".join(f'{label}="{content}"' for label, content in escaped.items())
            braced = f"{{{text}}}" if text else ""
            family.append(f"{PREFIX}{name}{SUFFIXES.get(kind, '')}{braced} {float(value)!r}")
    return "\n".join([*(line for family in lines.values() for line in family), "# EOF\n"])


def _samples(snapshot: Snapshot) -> Iterator[Sample]:
    yield from (("runs", {"state": state}, count) for state, count in snapshot.counts.items())
    yield "remaining_seconds", {}, snapshot.remaining_s
    yield "remaining_joules", {}, snapshot.remaining_j
    for view in snapshot.active:
        yield from _run_samples(view)


def _run_samples(view: RunView) -> Iterator[Sample]:
    own, metrics = {"run": str(view.number)}, view.metrics
    yield "run", {**own, "name": view.name, "host": view.host}, 1
    yield from (("run_state", {**own, f"{PREFIX}run_state": state}, state == view.state) for state in get_args(State))
    yield "progress_ratio", own, view.progress.fraction
    yield "epochs", own, view.progress.recorded
    yield "steps", own, view.progress.steps
    yield "energy_joules", own, metrics.get("total/energy_j")
    yield "estimated_energy_joules", own, metrics.get("total/estimated_energy_j")
    yield "epoch_seconds", own, metrics.get("steady/e2e_s")
    yield "epoch_joules", own, metrics.get("steady/energy_j")
    yield from (("bottleneck_ratio", {**own, "part": part}, ratio) for part, ratio in view.bottleneck.items())
    current = view.splits["current"].metrics if "current" in view.splits else {}
    yield "current_epoch_steps", own, current.get("steps")
    for part in PARTS:
        labels, e2e_s, part_s = {**own, "part": part}, metrics.get("steady/e2e_s"), metrics.get(f"steady/{part}_s")
        yield "epoch_part_seconds", labels, part_s
        yield "epoch_part_ratio", labels, part_s / e2e_s if part_s is not None and e2e_s else None
        yield "current_epoch_part_seconds", labels, current.get(f"{part}_s")
    if view.state in ACTIVE:
        for column, series in {**view.power, **view.gauges}.items():
            if ending := next((ending for ending in COLUMNS if column.endswith(ending)), None):
                yield COLUMNS[ending], {**own, "source": column.removesuffix(ending)}, series.latest
