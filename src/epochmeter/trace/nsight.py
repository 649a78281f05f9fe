"""Utilization of a GPU's pipes, from the CSV of Nsight Compute: a column per metric, and a first row with the units."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from epochmeter.machine.gpu_counters import RESTRICTED
from epochmeter.trace.kineto import Floats

PIPES = {
    pipe: f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_elapsed"
    for pipe in ("fma", "alu", "fp16", "tensor", "xu")
}
"""Pipe -> the metric of its utilization in percent."""
DURATION = "gpu__time_duration.sum"
PIPE_METRICS = (DURATION, *PIPES.values())
SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}
"""Seconds per unit, by its first letter: `nsecond` in older versions, `ns` in newer ones."""
NUMBER = re.compile(r"(\d+|\d{1,3}(,\d{3})+)(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)


class NsightError(Exception):
    """Nsight has no result; the message is the reason."""


def analyze_pipes(path: Path) -> dict[str, Any]:
    """Return the mean utilization of pipes over all profiled kernels, weighted by their duration, or raise NsightError.

    These are `metrics`, `missing` (why some are absent), and `total_s`; `kernels` has the same per kernel.
    """
    rows = _csv_rows(path)
    units = next((row for row in rows if not row["ID"]), {})
    launches = [row for row in rows if row["ID"]]
    if not launches:
        raise NsightError(f"{path.name} has no kernels: none ran in the profiled steps")
    names = np.array([row["Kernel Name"] for row in launches], object)
    unit_s = SECONDS.get(units.get(DURATION, "")[:1], math.nan)
    values = np.array(
        [[_number(row, DURATION) * unit_s, *(_number(row, pipe) / 100 for pipe in PIPES.values())] for row in launches]
    )
    if not (values[:, 0] > 0).all():  # also NaN
        raise NsightError(f"{path.name} has a kernel without `{DURATION}`")
    kernels = [
        {"name": name, "calls": int((names == name).sum()), **_summary(values[names == name])}
        for name in dict.fromkeys(names.tolist())
    ]
    total = _summary(values)
    return {
        "metrics": {f"pipe_{pipe}_fraction": total[pipe] for pipe in PIPES if total[pipe] is not None},
        "missing": [
            f"no utilization of the pipe {pipe}: Nsight Compute has no `{metric}` of some kernels"
            for pipe, metric in PIPES.items()
            if total[pipe] is None
        ],
        "kernels": sorted(kernels, key=lambda row: -row["total_s"]),
        "total_s": total["total_s"],
    }


def error_in(output: str) -> str | None:
    """Return the last error in the output of Nsight Compute, or the remedy for missing permission; else None."""
    if "ERR_NVGPUCTRPERM" in output:
        return f"ERR_NVGPUCTRPERM: {RESTRICTED}"
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    return errors[-1].removeprefix("==ERROR==").strip() if errors else None


def _csv_rows(path: Path) -> list[dict[str, str]]:
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


def _number(row: dict[str, str], metric: str) -> float:
    """Return a metric of a kernel; NaN if it is unknown."""
    text = row.get(metric, "")
    return float(text.replace(",", "")) if NUMBER.fullmatch(text) else math.nan


def _summary(launches: Floats) -> dict[str, Any]:
    """Return the total time, and the mean utilization by pipe, weighted by time; None if any launch lacks it."""
    durations_s = launches[:, 0]
    total_s = float(durations_s.sum())
    means = (durations_s @ launches[:, 1:] / total_s).tolist()
    pipes = {pipe: mean if math.isfinite(mean) else None for pipe, mean in zip(PIPES, means, strict=True)}
    return {"total_s": total_s, **pipes}
