"""A run's samples over time, power and gauges, downsampled for charts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
        times_ns = [int(row[0]) for row in rows if row[total]]
        if count := len(times_ns):
            duration_ns = (times_ns[-1] - times_ns[0]) * count // max(1, count - 1)
            watts = math.fsum(float(row[total]) for row in rows if row[total]) / count
            yield TracePoint(times_ns[count // 2], watts, duration_ns)


def downsample_columns(path: Path, max_points: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the means of the columns of `power.csv` or `gauges.csv`, at the time of the middle row; as `downsample`.

    A column without a reading is absent; of throttling, it is the fraction of rows.
    """
    for columns, rows in _sections(path, max_points):
        means = {}
        for place, name in enumerate(columns[1:], 1):
            cells = [row[place] for row in rows if row[place]]
            if cells:
                values = (cell != NOT_THROTTLED if name == THROTTLING_COLUMN else float(cell) for cell in cells)
                means[name] = math.fsum(values) / len(cells)
        yield int(rows[len(rows) // 2][0]), means


def _sections(path: Path, count: int) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the columns of a file, and the complete rows at the start of each of `count` equal sections."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        columns = file.readline().decode().split(",")
        if not columns[-1].endswith("\n"):  # empty or truncated
            return
        columns[-1] = columns[-1].rstrip()
        first, size = file.tell(), path.stat().st_size
        for number in range(count):
            begin, end = (first + (size - first) * border // count for border in (number, number + 1))
            file.seek(begin - 1)
            file.readline()  # skip the rest of the previous line
            until, rows = min(end, file.tell() + BYTES_PER_POINT), []
            while file.tell() < until and (line := file.readline()).endswith(b"\n"):
                rows.append(line.decode(errors="replace").rstrip("\n").split(","))
            if complete := [row for row in rows if len(row) == len(columns)]:  # others were cut by a full disk
                yield columns, complete
