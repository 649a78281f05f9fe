"""Processor time that other processes, and other virtual machines on the same host, take from a run."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.marks import Marks
from epochmeter.shared.process_identity import read_stat
from epochmeter.shared.units import percent

MIN_TICKS = 50  # shortest time of all cores together, in clock ticks (usually 10 ms), in which a few ticks are noise
CONTENDED, MAX_IDLE = 0.1, 0.1
"""Fractions of the time of all cores: others take processor time from a run if they use at least `CONTENDED` of it,
and at most `MAX_IDLE` of it is idle."""
CHILDREN = "/proc/thread-self/children"  # a kernel without this file (CONFIG_PROC_CHILDREN) does not list descendants


class Ticks(NamedTuple):
    """Clock ticks of all cores since boot."""

    total: int
    idle: int
    own: int  # of the run's processes


class CpuLoad:
    """The use of the processor between readings; `own_pids` and their descendants belong to the run."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.own_pids = {os.getpid()}
        self._stat = root / "proc/stat"
        self._marks: Marks[Ticks] = Marks()

    def mark(self) -> None:
        """Read the counters, at a border of a window."""
        if os.path.exists(CHILDREN) and 0 not in self.own_pids:  # 0: of another PID namespace
            with suppress(OSError, ValueError):
                counts = [int(count) for count in self._stat.read_text().split(maxsplit=9)[1:9]]
                ticks = Ticks(sum(counts), counts[3] + counts[4], sum(map(used_ticks, set(family(self.own_pids)))))
                self._marks.add(time.monotonic_ns(), ticks)

    def others(self, opened_ns: int, closed_ns: int) -> tuple[float | None, str]:
        """Return the fraction of the cores' time that others used in a window, and a note if no core was free.

        None if it is unknown, or if the time is too short.
        """
        borders = self._marks.at_borders(opened_ns, closed_ns)
        if borders is None:
            return None, ""
        total, idle, of_run = (last - first for first, last in zip(*borders, strict=True))
        if total < MIN_TICKS:
            return None, ""
        fraction = min(1.0, max(0, total - idle - max(0, of_run)) / total)
        note = f"other processes used {percent(fraction)} of the processor time, and no core was free"
        return fraction, note if fraction >= CONTENDED and idle <= MAX_IDLE * total else ""

    def discard_before(self, before_ns: int) -> None:
        """Discard the readings before a moment except the last of them."""
        self._marks.discard_before(before_ns)


def family(pids: Iterable[int]) -> Iterator[int]:
    """Yield the processes and all their descendants."""
    for pid in pids:
        yield pid
        for children in glob(f"/proc/{pid}/task/*/children"):
            with suppress(OSError):  # the thread has ended
                yield from family(map(int, Path(children).read_text().split()))


def used_ticks(pid: int) -> int:
    """Return the clock ticks that a process has used, with those of children that it has waited for."""
    with suppress(OSError):
        return sum(map(int, read_stat(pid)[11:15]))
    return 0
