"""The last minutes of the samples of a record, which grow while they are shown."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from epochmeter.results.appended_file import AppendedFile
from epochmeter.shared.units import NANOSECOND

HISTORY_S = 300  # duration that is kept of samples, in seconds
MAX_BYTES = 2**21  # largest part of a file of samples that is read at once: five minutes of 100 samples per second


@dataclass(frozen=True, eq=False)
class Series:
    """One quantity over the last minutes: means per second, at ascending Unix times.

    Two series are equal only if they are the same object.
    """

    times_s: Sequence[float]
    values: Sequence[float]
    latest: float


class RecentSamples:
    """The last minutes of a CSV file whose first column is the monotonic clock in nanoseconds.

    `throttling` is the last text in the column of that name, empty for `none`; None if there is no such column.
    """

    def __init__(self, path: Path) -> None:
        self.file = AppendedFile(path, MAX_BYTES)
        self._columns: dict[str, _Column] = {}
        self._second = 0
        self._series: Mapping[str, Series] = {}
        self.throttling: str | None = None

    def read(self, start_s: float) -> Mapping[str, Series]:
        """Return the quantities by column; without new samples they are the same objects again.

        The file's clock was 0 at the Unix time `start_s`.
        """
        lines, is_new = self.file.new_lines()
        if is_new:
            self._columns.clear()
        if lines or is_new:
            _, *names = self.file.first_line.decode(errors="replace").strip().split(",")
            for line in lines:
                with suppress(ValueError, OverflowError):  # the header, or a damaged line
                    self._add(names, line.decode().strip().split(","), start_s)
            recent = {name: column.since(start_s + self._second - HISTORY_S) for name, column in self._columns.items()}
            self._series = {name: series for name, series in recent.items() if series.times_s}
        return self._series

    @property
    def latest_ns(self) -> int:
        """The time of the last sample, in whole seconds; 0 without one."""
        return round(self._second / NANOSECOND)

    def _add(self, names: Sequence[str], cells: Sequence[str], start_s: float) -> None:
        second = int(int(cells[0]) * NANOSECOND)
        if second < self._second:  # the clock of a run that was resumed after a reboot
            self._columns.clear()
        self._second = second
        for name, cell in zip(names, cells[1:], strict=True):
            if name == "throttling" and cell:
                self.throttling = "" if cell == "none" else cell
            with suppress(ValueError):  # a value that was not read, or a text
                value = float(cell)
                self._columns.setdefault(name, _Column()).add(start_s + second, value)


class _Column:
    """Means per second of one quantity."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._values: list[float] = []
        self._count, self._latest = 0, 0.0

    def add(self, second_s: float, value: float) -> None:
        if self._times_s[-1:] != [second_s]:
            self._times_s.append(second_s)
            self._values.append(0.0)
            self._count = 0
        self._count += 1
        self._values[-1] += (value - self._values[-1]) / self._count
        self._latest = value

    def since(self, oldest_s: float) -> Series:
        """Return the seconds after a Unix time, and delete earlier ones."""
        first = bisect_right(self._times_s, oldest_s)
        del self._times_s[:first], self._values[:first]
        return Series(self._times_s[:], self._values[:], self._latest)
