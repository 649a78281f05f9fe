"""Files of a record that grow: only the part appended since the last look is read, and no file is kept open."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
                *lines, partial = file.read(status.st_size - start).split(b"\n")
        except OSError:
            return [], False
        if start > self._end:  # it starts within a line
            lines = lines[1:]
        self._end = status.st_size - len(partial)
        return lines, is_new


class RecentSamples:
    """The last minutes of a CSV file whose first column is the monotonic clock in nanoseconds.

    Attributes:
        throttling: The last text in the column of that name, empty for `none`; None if there is no such column.
    """

    def __init__(self, path: Path) -> None:
        self._file = AppendedFile(path, MAX_BYTES)
        self._seconds: dict[int, dict[str, list[float]]] = {}
        self._latest: dict[str, float] = {}
        self._series: Mapping[str, Series] = {}
        self.throttling: str | None = None

    def read(self, to_unix_s: Callable[[int], float]) -> Mapping[str, Series]:
        """Return the quantities by column; empty without samples. `to_unix_s` converts the file's clock."""
        lines, is_new = self._file.new_lines()
        if is_new:
            self._seconds, self._latest = {}, {}
        _, *columns = self._file.first_line.decode(errors="replace").strip().split(",")
        for line in lines:
            with suppress(ValueError):  # the header, or a damaged line
                self._add(columns, line.decode().strip().split(","))
        if lines or is_new:
            oldest = max(self._seconds, default=0) - HISTORY_S
            self._seconds = {second: values for second, values in self._seconds.items() if second > oldest}
            times_s = {second: to_unix_s(round(second / NANOSECOND)) for second in self._seconds}
            self._series = {name: self._one_series(name, times_s) for name in self._latest}
        return self._series

    def _one_series(self, name: str, times_s: Mapping[int, float]) -> Series:
        means = {second: sum(own[name]) / len(own[name]) for second, own in self._seconds.items() if name in own}
        return Series([times_s[second] for second in means], [*means.values()], self._latest[name])

    def _add(self, columns: Sequence[str], cells: Sequence[str]) -> None:
        second = int(int(cells[0]) * NANOSECOND)
        for name, cell in zip(columns, cells[1:], strict=True):
            if name == "throttling" and cell:
                self.throttling = "" if cell == "none" else cell
            with suppress(ValueError):  # a value that was not read, or a text
                value = self._latest[name] = float(cell)
                self._seconds.setdefault(second, {}).setdefault(name, []).append(value)
