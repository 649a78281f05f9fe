"""Files of a record that grow: only the part appended since the last look is read, and no file is kept open."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from epochmeter.shared.units import NANOSECOND

HISTORY_S = 300
"""Duration that is kept of samples, in seconds."""
MAX_BYTES = 2**21
"""Largest part of a file of samples that is read at once, the newest: five minutes of 100 samples per second."""

MAX_HEADER_BYTES = 2**16


@dataclass(frozen=True)
class Series:
    """One quantity over the last minutes.

    Attributes:
        times_s: Unix times, ascending, at most one per second.
        values: Mean of the samples in each of these seconds, in the unit of the quantity's name.
        latest: The last recorded sample.
    """

    times_s: Sequence[float]
    values: Sequence[float]
    latest: float


class AppendedFile:
    """A file to which another process appends lines.

    Args:
        path: The file; it may not exist yet.
        max_bytes: Largest part to read at once, the newest; None: all.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self.first_line = b""
        self._max_bytes = max_bytes
        self._inode, self._end = 0, 0

    def new_lines(self) -> tuple[list[bytes], bool]:
        """Return the complete lines since the last call, and whether the file is another one than before."""
        try:
            with FileIO(self.path) as file:
                status = os.fstat(file.fileno())
                is_new = status.st_ino != self._inode or status.st_size < self._end
                if is_new:
                    self.first_line, newline, _ = file.read(MAX_HEADER_BYTES).partition(b"\n")
                    if not newline:
                        return [], False
                    self._inode, self._end = status.st_ino, 0
                start = max(self._end, status.st_size - (self._max_bytes or status.st_size))
                file.seek(start)
                content = file.read(status.st_size - start) or b""  # may be less, as on NFS
        except OSError:
            return [], False
        *lines, partial = content.split(b"\n")
        if start > self._end:  # it starts within a line
            lines = lines[1:]
        self._end = start + len(content) - len(partial)
        return lines, is_new


class RecentSamples:
    """The last minutes of a CSV file whose first column is the monotonic clock in nanoseconds.

    Attributes:
        throttling: The last text in the column of that name, empty for `none`; None if there is no such column.
    """

    def __init__(self, path: Path) -> None:
        self._file = AppendedFile(path, MAX_BYTES)
        self._columns: dict[str, _Column] = {}
        self._second = 0
        self._series: Mapping[str, Series] = {}
        self.throttling: str | None = None

    def read(self, to_unix_s: Callable[[int], float]) -> Mapping[str, Series]:
        """Return the quantities by column; empty without samples. `to_unix_s` converts the file's clock."""
        lines, is_new = self._file.new_lines()
        if is_new:
            self._columns = {}
        _, *names = self._file.first_line.decode(errors="replace").strip().split(",")
        for line in lines:
            with suppress(ValueError):  # the header, or a damaged line
                self._add(names, line.decode().strip().split(","))
        if lines or is_new:
            start_s, oldest = to_unix_s(0), self._second - HISTORY_S
            self._series = {name: column.series(start_s, oldest) for name, column in self._columns.items()}
        return self._series

    def _add(self, names: Sequence[str], cells: Sequence[str]) -> None:
        second = int(int(cells[0]) * NANOSECOND)
        if second < self._second:  # the clock of a run that was resumed after a reboot
            self._columns = {}
        self._second = second
        for name, cell in zip(names, cells[1:], strict=True):
            if name == "throttling" and cell:
                self.throttling = "" if cell == "none" else cell
            try:
                value = float(cell)
            except ValueError:  # a value that was not read, or a text
                continue
            self._columns.setdefault(name, _Column()).add(second, value)


@dataclass
class _Column:
    """Means per second so far; `count` is the number of samples in the last second."""

    seconds: list[int] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    count: int = 0
    latest: float = 0.0

    def add(self, second: int, value: float) -> None:
        if not self.seconds or second != self.seconds[-1]:
            self.seconds.append(second)
            self.means.append(0.0)
            self.count = 0
        self.count += 1
        self.means[-1] += (value - self.means[-1]) / self.count
        self.latest = value

    def series(self, start_s: float, oldest: int) -> Series:
        """Return the seconds after `oldest`, and forget the others; `start_s` is the time of second 0."""
        first = bisect_right(self.seconds, oldest)
        del self.seconds[:first], self.means[:first]
        return Series([start_s + second for second in self.seconds], self.means[:], self.latest)
