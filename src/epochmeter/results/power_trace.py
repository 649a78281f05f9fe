"""A run's samples over time, power and gauges, downsampled for charts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from epochmeter.shared.record import NOT_THROTTLED, POWER, THROTTLING_COLUMN, Record

BYTES_PER_POINT = 32768
"""Most bytes of `power.csv` read per point: with 500 points, everything up to an hour of samples each 10 ms."""


class TracePoint(NamedTuple):
    """Mean power of adjacent samples, at the middle one; they last `mean_of_ns`, a single one 0."""

    at_ns: int
    watts: float
    mean_of_ns: int


def downsample(record: Record, max_points: int) -> Iterator[TracePoint]:
    """Yield the total power at up to `max_points` points, equally spaced in the file; a short run's samples one by one.

    A long section's mean is that of its beginning, so that days of samples are read as fast as an hour's.
    """
    for columns, rows in _sections(record.folder / POWER, max_points):
        total = columns.index("total_w")
        samples = [(int(row[0]), float(row[total])) for row in rows if row[total]]
        if samples:
            yield _mean_point(samples)


def downsample_columns(path: Path, max_points: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the means of the numbers in `power.csv` or `gauges.csv` by column, each with the time of its middle row.

    The points are as those of `downsample`. A column without a reading is absent; of throttling, it is the fraction of
    rows.
    """
    for columns, rows in _sections(path, max_points):
        means = {}
        for place, name in enumerate(columns[1:], 1):
            cells = [row[place] for row in rows if row[place]]
            if cells:
                values = (cell != NOT_THROTTLED if name == THROTTLING_COLUMN else float(cell) for cell in cells)
                means[name] = math.fsum(values) / len(cells)
        yield int(rows[len(rows) // 2][0]), means


def _mean_point(samples: list[tuple[int, float]]) -> TracePoint:
    count, (first_ns, _), (last_ns, _) = len(samples), samples[0], samples[-1]
    duration_ns = (last_ns - first_ns) * count // (count - 1) if count > 1 else 0
    return TracePoint(samples[count // 2][0], math.fsum(watts for _, watts in samples) / count, duration_ns)


def _sections(path: Path, count: int) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the columns of a file, and the rows at the start of each of `count` equal sections."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        header = file.readline()
        if not header.endswith(b"\n"):  # empty or truncated
            return
        columns = header.decode().rstrip().split(",")
        for lines in _line_starts(file, file.tell(), path.stat().st_size, count):
            rows = (line.decode(errors="replace").rstrip("\n").split(",") for line in lines)
            if complete := [row for row in rows if len(row) == len(columns)]:  # others were cut by a full disk
                yield columns, complete


def _line_starts(file: BinaryIO, first: int, size: int, sections: int) -> Iterator[list[bytes]]:
    """Yield the complete lines that begin in each of `sections` equal sections after byte `first`, up to a limit."""
    borders = [first + (size - first) * number // sections for number in range(sections + 1)]
    for begin, end in pairwise(borders):
        file.seek(begin - 1)
        file.readline()  # skip the rest of the previous line
        until, lines = min(end, file.tell() + BYTES_PER_POINT), []
        while file.tell() < until and (line := file.readline()).endswith(b"\n"):
            lines.append(line)
        yield lines
