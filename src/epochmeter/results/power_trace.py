"""The sampled power of a run over time, thinned to what a picture shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from epochmeter.shared.record import Record

BYTES_A_POINT = 32768
"""So much of a stretch of `power.csv` is read: of 500 all of it, up to an hour of a sample each 10 ms."""


class Point(NamedTuple):
    """The mean power of the samples that lie together in the file."""

    at_ns: int
    """When the middle one of them was taken, on the monotonic clock."""
    watts: float
    mean_of_ns: int
    """How long they last; 0 where there is but one."""


def timeline(record: Record, places: int) -> Iterator[Point]:
    """The total's power in so many stretches alike, where it was read; a short run's samples one by one.

    A mean is that of what its stretch begins with, where it is a long one, so that days of samples take no longer to
    read than an hour's. ValueError where the file holds something that is no number.
    """
    path = record.folder / "power.csv"
    if not path.exists():
        return
    with open(path, "rb") as file:
        columns = file.readline().rstrip().split(b",")
        if b"total_w" not in columns:  # it was cut short
            return
        total = columns.index(b"total_w")
        for lines in _beginnings(file, file.tell(), path.stat().st_size, places):
            rows = [line.rstrip().split(b",") for line in lines]
            known = [(int(row[0]), float(row[total])) for row in rows if row[total]]
            if known:
                yield _mean(known)


def _mean(known: list[tuple[int, float]]) -> Point:
    count, (first_ns, _), (last_ns, _) = len(known), known[0], known[-1]
    lasts_ns = (last_ns - first_ns) * count // (count - 1) if count > 1 else 0
    return Point(known[count // 2][0], math.fsum(watts for _, watts in known) / count, lasts_ns)


def _beginnings(file: BinaryIO, first: int, size: int, places: int) -> Iterator[list[bytes]]:
    """The lines, all or the first of them, that begin in each of the stretches of a file from its byte `first` on.

    One that was cut short is left out.
    """
    borders = [first + (size - first) * number // places for number in range(places + 1)]
    for begin, end in pairwise(borders):
        file.seek(begin - 1)
        file.readline()  # the end of what began before
        until, lines = min(end, file.tell() + BYTES_A_POINT), []
        while file.tell() < until and (line := file.readline()).endswith(b"\n"):
            lines.append(line)
        yield lines
