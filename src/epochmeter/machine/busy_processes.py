"""The processes outside of a run that use most processor time, by name and pid; their command lines are not read."""

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.printable import printable
from epochmeter.machine.sysfs import read_text
from epochmeter.shared.process_identity import read_stat
from epochmeter.shared.units import NANOSECOND

PERIOD_NS = 10_000_000_000  # age from which a reading is old
MAX_COST = 0.01  # largest fraction of the time that is spent on reading; hundreds of processes take milliseconds
MAX_NAMED = 3  # processes of a window
KEPT = 10  # processes of an interval between two readings, of which those of a window are the first
MIN_FRACTION = 0.01  # of the time of all cores, from which a process is named
KERNEL_THREADS = 2  # pid of the parent of all kernel threads, which nobody can end


class Usage(NamedTuple):
    """Processor time of a process so far."""

    started: str  # in clock ticks since boot: it tells a process from a later one with the same pid
    parent: int
    ticks: int  # with that of ended children for which it has waited


class BusyProcess(NamedTuple):
    """A process that used the processor: `fraction` of the time of all cores."""

    name: str
    pid: int
    fraction: float


class Interval(NamedTuple):
    """The ticks of processes between two readings, by name and pid."""

    begun_ns: int
    ended_ns: int
    ticks: dict[tuple[str, int], int]


class BusyProcesses:
    """The processes of a machine that used most processor time between readings."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._read_ns: int | None = None
        self._cost_ns = 0  # duration of the last reading
        self._usages: dict[int, Usage] = {}
        self._intervals: list[Interval] = []

    def is_due(self, at_ns: int, *, is_contended: bool) -> bool:
        """Return whether to read now: there is no reading, it is old, or the processor was contended since then."""
        if self._read_ns is None:
            return True
        age_ns = at_ns - self._read_ns
        return age_ns >= PERIOD_NS or (is_contended and self._cost_ns <= MAX_COST * age_ns)

    def mark(self, at_ns: int, own_pids: Collection[int]) -> None:
        """Read all processes but those of the run."""
        begun_ns, usages = time.monotonic_ns(), dict(read_usages(self._proc, own_pids))
        if self._read_ns is not None:
            used = Counter(used_ticks_since(self._usages, usages)).most_common(KEPT)
            ticks = {(self._name(pid), pid): count for pid, count in used}
            self._intervals.append(Interval(self._read_ns, at_ns, ticks))
        self._read_ns, self._usages, self._cost_ns = at_ns, usages, time.monotonic_ns() - begun_ns

    def busiest(self, opened_ns: int, closed_ns: int) -> list[BusyProcess]:
        """Return the processes that used most time of all cores in a window and since the last reading before it."""
        used: Counter[tuple[str, int]] = Counter()
        intervals = [each for each in self._intervals if each.begun_ns < closed_ns and each.ended_ns > opened_ns]
        for interval in intervals:
            used.update(interval.ticks)
        seconds = sum(interval.ended_ns - interval.begun_ns for interval in intervals) * NANOSECOND
        all_ticks = seconds * (os.cpu_count() or 1) * os.sysconf("SC_CLK_TCK")
        busiest = [BusyProcess(*who, min(1.0, ticks / all_ticks)) for who, ticks in used.most_common(MAX_NAMED)]
        return [process for process in busiest if process.fraction >= MIN_FRACTION]

    def discard_before(self, before_ns: int) -> None:
        """Discard the intervals that ended before a moment."""
        self._intervals = [interval for interval in self._intervals if interval.ended_ns > before_ns]

    def _name(self, pid: int) -> str:
        return printable(read_text(self._proc / str(pid) / "comm"))


def read_usages(proc: Path, own_pids: Collection[int]) -> Iterator[tuple[int, Usage]]:
    """Yield the visible processes, except those of the run and threads of the kernel."""
    for name in os.listdir(proc):
        if name.isdecimal() and (pid := int(name)) not in own_pids and pid != KERNEL_THREADS:
            with suppress(OSError, LookupError, ValueError):  # the process has ended
                stat = read_stat(pid, str(proc))
                if (parent := int(stat[1])) != KERNEL_THREADS:
                    yield pid, Usage(stat[19], parent, sum(map(int, stat[11:15])))


def used_ticks_since(before: dict[int, Usage], now: dict[int, Usage]) -> dict[int, int]:
    """Return the ticks that each process, with its ended children, used between two readings."""
    used = {pid: usage.ticks for pid, usage in now.items()}
    for pid, usage in before.items():
        heir = pid
        while heir in before and not (heir in now and now[heir].started == before[heir].started):
            heir = before[heir].parent  # an ended process has left all its ticks, also those of before, to its parent
        if heir in used:
            used[heir] -= usage.ticks
    return {pid: ticks for pid, ticks in used.items() if ticks > 0}
