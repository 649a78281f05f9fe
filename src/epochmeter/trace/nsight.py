"""Utilization of a GPU's pipes, from the CSV of Nsight Compute.

The CSV has one of two layouts: a column per metric and a row of units, or a row per kernel and metric.
"""

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np

from epochmeter.machine.gpu_counters import RESTRICTED
from epochmeter.shared.types import Document
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


class Pipes(TypedDict):
    """Mean utilization of pipes by profiled kernels, weighted by their duration.

    Attributes:
        metrics: Utilization by `pipe_NAME_fraction`, of all kernels.
        missing: Why some metrics are absent.
        kernels: The same by kernel: `name`, `calls`, `total_s`, and the utilization by pipe; the longest is first.
        total_s: Duration of all kernels, in seconds.
    """

    metrics: dict[str, float]
    missing: list[str]
    kernels: list[Document]
    total_s: float


def analyze_pipes(path: Path) -> Pipes:
    """Return the mean utilization of pipes over all profiled kernels, or raise NsightError."""
    launches = list(_launches(path))
    if not launches:
        raise NsightError(f"{path.name} has no kernels: none ran in the profiled steps")
    names, values = np.array([name for name, _ in launches], object), np.array([row for _, row in launches])
    if not (values[:, 0] > 0).all():  # also NaN
        raise NsightError(f"{path.name} has a kernel without `{DURATION}`")
    kernels: list[Document] = [
        {"name": name, "calls": int((names == name).sum()), **_kernel(values[names == name])}
        for name in dict.fromkeys(names.tolist())
    ]
    total_s, means = _summary(values)
    return {
        "metrics": {f"pipe_{pipe}_fraction": mean for pipe, mean in means.items() if mean is not None},
        "missing": [
            f"no utilization of the pipe {pipe}: Nsight Compute has no `{metric}` of some kernels"
            for pipe, metric in PIPES.items()
            if means[pipe] is None
        ],
        "kernels": sorted(kernels, key=lambda row: -row["total_s"]),
        "total_s": total_s,
    }


def error_in(output: str) -> str | None:
    """Return the last error in the output of Nsight Compute, or the remedy for missing permission; else None."""
    if "ERR_NVGPUCTRPERM" in output:
        return f"ERR_NVGPUCTRPERM: {RESTRICTED}"
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    return errors[-1].removeprefix("==ERROR==").strip() if errors else None


def _launches(path: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each launched kernel, its duration in s, and the utilization of its pipes as fractions."""
    records = _csv_records(path)
    row_of_units = next((record for record in records if not record["ID"]), {})
    launches = defaultdict[tuple[str, ...], dict[str, tuple[str, str]]](lambda: dict.fromkeys(PIPE_METRICS, ("", "")))
    for record in filter(lambda record: record["ID"], records):  # each process counts its kernels from 0
        values = launches[record.get("Process ID", ""), record["ID"], record["Kernel Name"]]
        values.update({metric: (text, row_of_units.get(metric, "")) for metric, text in record.items()})
        if "Metric Name" in record:
            values[record["Metric Name"]] = record.get("Metric Value", ""), record.get("Metric Unit", "")
    for (*_, name), values in launches.items():
        texts = [values[metric][0] for metric in PIPE_METRICS]
        numbers = [float(text.replace(",", "")) if NUMBER.fullmatch(text) else math.nan for text in texts]
        unit_s = SECONDS.get(values[DURATION][1][:1], math.nan)
        yield name, [numbers[0] * unit_s, *(percent / 100 for percent in numbers[1:])]


def _csv_records(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column, without the other output of Nsight Compute."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith(('"ID",', "ID,"))), None)
    if begin is None:
        raise NsightError(error_in(text) or f"{path.name} is not a CSV file of Nsight Compute: it has no column `ID`")
    try:
        header, *rows = csv.reader(lines[begin:])
    except csv.Error as error:
        raise NsightError(f"{path.name} is damaged: {error}") from error
    if "Kernel Name" not in header:
        raise NsightError(f"{path.name} has an unknown layout: it has no column `Kernel Name`")
    return [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header) and row != header]


def _kernel(launches: Floats) -> dict[str, float | None]:
    total_s, means = _summary(launches)
    return {"total_s": total_s, **means}


def _summary(launches: Floats) -> tuple[float, dict[str, float | None]]:
    """Return the total time, and the mean utilization by pipe, weighted by time; None if any launch lacks it."""
    durations_s = launches[:, 0]
    total_s = float(durations_s.sum())
    means = (durations_s @ launches[:, 1:] / total_s).tolist()
    pipes = {pipe: mean if math.isfinite(mean) else None for pipe, mean in zip(PIPES, means, strict=True)}
    return total_s, pipes
