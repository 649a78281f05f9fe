"""Utilization of a GPU's pipes, from the CSV that Nsight Compute writes.

It has one of two layouts: a column per metric and a row of units, or a row per kernel and metric.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

from epochmeter.machine.gpu_counters import PROFILING_OPTION

UTILIZATION = "sm__inst_executed_pipe_{}.avg.pct_of_peak_sustained_elapsed"
PIPES = {pipe: UTILIZATION.format(pipe) for pipe in ("fma", "alu", "fp16", "tensor", "xu")}
"""Pipe -> the metric of its utilization in percent."""
DURATION = "gpu__time_duration.sum"
NCU_METRICS = (DURATION, *PIPES.values())
SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}
"""Seconds per unit, by its first letter: `nsecond` in older versions, `ns` in newer ones."""
NUMBER = re.compile(r"(\d+|\d{1,3}(,\d{3})+)(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
MAX_ROWS = 500
NO_PERMISSION = (
    "ERR_NVGPUCTRPERM: the driver restricts performance counters to administrators. Run the command as root, or let an "
    f"administrator set the driver's option {PROFILING_OPTION}"
)
Launch = tuple[str, dict[str, tuple[str, str]]]
"""Name of the kernel, and (value, unit) by metric."""


class NsightError(Exception):
    """Nsight has no result; the message is the reason."""


def analyze_pipes(path: Path) -> dict[str, Any]:
    """Return the utilization of pipes: means over all profiled kernels, weighted by their duration.

    Returns:
        `metrics`, `missing` (why metrics are absent), and `kernels`: rows with calls, total_s and a fraction per pipe.

    Raises:
        NsightError: The file has no kernel with a duration, or an unknown layout.
    """
    kernels: dict[str, list[dict[str, float]]] = {}
    for name, metrics in _launches(path):
        values = {pipe: _number(metrics.get(metric, ("", ""))[0]) / 100 for pipe, metric in PIPES.items()}
        duration, unit = metrics.get(DURATION, ("", ""))
        seconds = _number(duration) * SECONDS.get(unit[:1], math.nan)
        if not seconds > 0:  # also NaN
            raise NsightError(f"{path.name} has a kernel without `{DURATION}`")
        kernels.setdefault(name, []).append({"total_s": seconds, **values})
    launches = [launch for group in kernels.values() for launch in group]
    if not launches:
        raise NsightError(f"{path.name} has no kernels: none ran in the profiled steps")
    means = _weighted_means(launches)
    longest = sorted(kernels.items(), key=lambda kernel: -_total_s(kernel[1]))[:MAX_ROWS]
    return {
        "metrics": {f"pipe_{pipe}_fraction": mean for pipe, mean in means.items() if mean is not None},
        "missing": [
            f"no utilization of the pipe {pipe}: Nsight Compute has no `{PIPES[pipe]}` of some kernels"
            for pipe, mean in means.items()
            if mean is None
        ],
        "kernels": [
            {"name": name, "calls": len(group), "total_s": _total_s(group), **_weighted_means(group)}
            for name, group in longest
        ],
        "total_s": _total_s(launches),
    }


def error_in(output: str) -> str | None:
    """Return the last error in the output of Nsight Compute, or the remedy for missing permission; else None."""
    if "ERR_NVGPUCTRPERM" in output:
        return NO_PERMISSION
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    return errors[-1].removeprefix("==ERROR==").strip() if errors else None


def _launches(path: Path) -> list[Launch]:
    """Return the launches of kernels in a CSV file of either layout."""
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
    records = [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header) and row != header]
    units = next((record for record in records if not record["ID"]), {})
    launches: dict[tuple[str, str], Launch] = {}  # each process counts its kernels from 0
    for record in filter(lambda record: record["ID"], records):
        launch = launches.setdefault((record.get("Process ID", ""), record["ID"]), (record["Kernel Name"], {}))
        if "Metric Name" in record:
            launch[1][record["Metric Name"]] = record["Metric Value"], record["Metric Unit"]
        else:
            launch[1].update({name: (record[name], units.get(name, "")) for name in NCU_METRICS if name in record})
    return list(launches.values())


def _number(text: str) -> float:
    """Return a number, which may have commas between thousands; NaN for anything else, such as `n/a`."""
    return float(text.replace(",", "")) if NUMBER.fullmatch(text) else math.nan


def _total_s(launches: list[dict[str, float]]) -> float:
    return sum(launch["total_s"] for launch in launches)


def _weighted_means(launches: list[dict[str, float]]) -> dict[str, float | None]:
    """Return the mean utilization by pipe, weighted by duration; None if it is not known of all launches."""
    busy_s = {pipe: sum(launch["total_s"] * launch[pipe] for launch in launches) for pipe in PIPES}
    return {pipe: busy / _total_s(launches) if math.isfinite(busy) else None for pipe, busy in busy_s.items()}
