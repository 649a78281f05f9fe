"""A run's samples over time, power and gauges, downsampled for charts."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from epochmeter.shared.record import NOT_THROTTLED, THROTTLING_COLUMN
from epochmeter.shared.record_files import open_file

MAX_LINE_BYTES = 2**16
BYTES_PER_POINT = 32768
"""Most bytes of `power.csv` read per point: with 500 points, everything up to an hour of samples each 10 ms."""


class TracePoint(NamedTuple):
    """Means of the columns of adjacent rows, at the middle row. The rows last `mean_of_ns`; a single row lasts 0."""

    at_ns: int
    mean_of_ns: int
    means: Mapping[str, float]


def downsample(path: Path, max_points: int) -> Iterator[TracePoint]:
    """Yield up to `max_points` points, equally spaced in `power.csv` or `gauges.csv`; a short run's rows one by one.

    A long section's means are those of its beginning, so that days of samples are read as fast as an hour's. A column
    without a reading, or with texts, is absent; of throttling, the mean is the fraction of rows.
    """
    for columns, rows in _sections(path, max_points):
        means = {}
        for place, name in enumerate(columns[1:], 1):
            cells = [row[place] for row in rows if row[place]]
            with suppress(ValueError):  # a text, as of another version
                values = [cell != NOT_THROTTLED if name == THROTTLING_COLUMN else float(cell) for cell in cells]
                if values:
                    means[name] = math.fsum(values) / len(values)
        begin_ns, middle_ns, end_ns = (int(rows[place][0]) for place in (0, len(rows) // 2, -1))
        yield TracePoint(middle_ns, (end_ns - begin_ns) * len(rows) // max(1, len(rows) - 1), means)


def _sections(path: Path, count: int) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the columns of a file, and the complete rows at the start of each of `count` equal sections."""
    if not path.exists():
        return
    with open_file(path) as file:
        columns = file.readline(MAX_LINE_BYTES).decode().split(",")
        if not columns[-1].endswith("\n"):  # empty or truncated
            return
        columns[-1] = columns[-1].rstrip()
        first, size = file.tell(), os.fstat(file.fileno()).st_size
        for number in range(count):
            begin, end = (first + (size - first) * border // count for border in (number, number + 1))
            file.seek(begin - 1)
            file.readline(MAX_LINE_BYTES)  # skip the rest of the previous line
            until, rows = min(end, file.tell() + BYTES_PER_POINT), []
            while file.tell() < until and (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                rows.append(line.decode(errors="replace").rstrip("\n").split(","))
            if complete := [row for row in rows if len(row) == len(columns)]:  # others were cut by a full disk
                yield columns, complete
