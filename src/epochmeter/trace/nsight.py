"""Utilization of a GPU's pipes, from the CSV of Nsight Compute, or from a trace with counters of torch's profiler.

The CSV has one of two layouts: a column per metric and a row of units, or a row per kernel and metric. The trace has an
event of the category `cuda_profiler_range` per kernel, with the metrics as arguments. The times of these events are no
measurements: Kineto divides the time of the trace into equal parts (libkineto/src/CuptiRangeProfiler.cpp).
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from epochmeter.machine.gpu_counters import RESTRICTED
from epochmeter.shared.pipes import DURATION, PIPE_METRICS, PIPES
from epochmeter.shared.units import NANOSECOND
from epochmeter.trace.kineto import Reader, TraceError, is_number

SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}
"""Seconds per unit, by its first letter: `nsecond` in older versions, `ns` in newer ones."""
NUMBER = re.compile(r"(\d+|\d{1,3}(,\d{3})+)(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
RANGE, MAX_RANGES = "cuda_profiler_range", 1500
"""Category of the counted kernels, and the largest number per device, in Kineto."""
Launch = tuple[str, dict[str, float]]
"""Name of a kernel, its duration `total_s`, and the utilization of its pipes as fractions; NaN if it is unknown."""


class NsightError(Exception):
    """Nsight has no result; the message is the reason."""


def analyze_pipes(path: Path) -> dict[str, Any]:
    """Return the utilization of pipes: means over all profiled kernels, weighted by their duration.

    Args:
        path: The CSV of Nsight Compute, or the trace with counters of torch's profiler.

    Returns:
        `source`, `metrics`, `missing` (why metrics are absent), and `kernels`: rows with calls, total_s and a fraction
        per pipe.

    Raises:
        NsightError: The file has no kernel with a duration, or an unknown layout.
    """
    missing: list[str] = []
    if path.suffix == ".csv":
        source, counted = "Nsight Compute", _csv_launches(path)
    else:
        source, counted = "CUPTI", _counted_launches(path, missing)
    kernels: dict[str, list[dict[str, float]]] = {}
    for name, values in counted:
        if not values["total_s"] > 0:  # also NaN
            raise NsightError(f"{path.name} has a kernel without `{DURATION}`")
        kernels.setdefault(name, []).append(values)
    if not kernels:
        raise NsightError(f"{path.name} has no kernels: none ran in the profiled steps")
    rows = [{"name": name, "calls": len(group), **_summary(group)} for name, group in kernels.items()]
    total = _summary([launch for group in kernels.values() for launch in group])
    fractions = {pipe: total[pipe] for pipe in PIPES}
    return {
        "source": source,
        "metrics": {f"pipe_{pipe}_fraction": mean for pipe, mean in fractions.items() if mean is not None},
        "missing": missing
        + [
            f"no utilization of the pipe {pipe}: {source} has no `{PIPES[pipe]}` of some kernels"
            for pipe, mean in fractions.items()
            if mean is None
        ],
        "kernels": sorted(rows, key=lambda row: -row["total_s"]),
        "total_s": total["total_s"],
    }


def error_in(output: str) -> str | None:
    """Return the last error in the output of Nsight Compute, or the remedy for missing permission; else None."""
    if "ERR_NVGPUCTRPERM" in output:
        return f"ERR_NVGPUCTRPERM: {RESTRICTED}"
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    return errors[-1].removeprefix("==ERROR==").strip() if errors else None


def _counted_launches(path: Path, missing: list[str]) -> Iterator[Launch]:
    """Yield the counted kernels of a trace; the reason is added to `missing` if there may be more of them."""
    per_device: Counter[object] = Counter()
    try:
        for event in Reader(path).events():
            if event.get("cat") == RANGE:
                per_device[event.get("pid")] += 1
                metrics = {metric: value for metric, value in event.get("args", {}).items() if is_number(value)}
                yield _launch(str(event.get("name")), metrics, NANOSECOND)
    except TraceError as error:
        raise NsightError(str(error).splitlines()[0]) from error
    if not per_device:
        raise NsightError(f"torch's profiler counted no kernels: its build may lack this function, or {RESTRICTED}")
    if max(per_device.values()) >= MAX_RANGES:
        missing.append(f"pipes of the first {MAX_RANGES:,} kernels only: torch's profiler counts no more")


def _csv_launches(path: Path) -> Iterator[Launch]:
    """Yield the launches of kernels in a CSV file of either layout."""
    records = _csv_records(path)
    row_of_units = next((record for record in records if not record["ID"]), {})
    launches: dict[tuple[str, str], tuple[str, dict[str, str], dict[str, str]]] = {}
    for record in filter(lambda record: record["ID"], records):
        kernel = (record.get("Process ID", ""), record["ID"])  # each process counts its kernels from 0
        name, values, units = launches.setdefault(kernel, (record["Kernel Name"], {}, dict(row_of_units)))
        if "Metric Name" in record:
            values[record["Metric Name"]] = record.get("Metric Value", "")
            units[record["Metric Name"]] = record.get("Metric Unit", "")
        else:
            values.update(record)
    for name, values, units in launches.values():
        metrics = {metric: _number(values.get(metric, "")) for metric in PIPE_METRICS}
        yield _launch(name, metrics, SECONDS.get(units.get(DURATION, "")[:1], math.nan))


def _csv_records(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column, without the other output of Nsight Compute."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith(('"ID",', "ID,"))), None)
    if begin is None:
        raise NsightError(error_in(text) or f"{path.name} is no CSV of Nsight Compute: it has no column `ID`")
    try:
        header, *rows = csv.reader(lines[begin:])
    except csv.Error as error:
        raise NsightError(f"{path.name} is damaged: {error}") from error
    if "Kernel Name" not in header:
        raise NsightError(f"{path.name} has an unknown layout: it has no column `Kernel Name`")
    return [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header) and row != header]


def _launch(name: str, metrics: Mapping[str, float], unit_s: float) -> Launch:
    """Return the values of a kernel from its metrics, with the unit of its duration."""
    fractions = {pipe: metrics.get(metric, math.nan) / 100 for pipe, metric in PIPES.items()}
    return name, {"total_s": metrics.get(DURATION, math.nan) * unit_s, **fractions}


def _number(text: str) -> float:
    """Return a number, which may have commas between thousands; NaN for anything else, such as `n/a`."""
    return float(text.replace(",", "")) if NUMBER.fullmatch(text) else math.nan


def _summary(launches: list[dict[str, float]]) -> Mapping[str, Any]:
    """Return the total time, and the mean utilization by pipe, weighted by time; None if any launch lacks it."""
    total_s = sum(launch["total_s"] for launch in launches)
    busy_s = {pipe: sum(launch["total_s"] * launch[pipe] for launch in launches) for pipe in PIPES}
    means = {pipe: busy / total_s if math.isfinite(busy) else None for pipe, busy in busy_s.items()}
    return {"total_s": total_s, **means}
