"""The use of the processor in windows: by a run, and by other processes and virtual machines on the same host."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.busy_processes import BusyProcess, BusyProcesses
from epochmeter.machine.marks import Marks
from epochmeter.machine.thread_times import NOT_COUNTED, ThreadTime, increase, read_thread_times
from epochmeter.shared.process_identity import read_stat
from epochmeter.shared.units import NANOSECOND, percent

MIN_TICKS = 50  # shortest time of all cores together, in clock ticks (usually 10 ms), in which a few ticks are noise
CONTENDED, MAX_IDLE = 0.1, 0.1
"""Fractions of the time of all cores: others take processor time from a run if they use at least `CONTENDED` of it,
and at most `MAX_IDLE` of it is idle."""
CHILDREN = "/proc/thread-self/children"  # a kernel without this file (CONFIG_PROC_CHILDREN) does not list descendants
NO_CHILDREN = "the kernel does not list the children of processes (CONFIG_PROC_CHILDREN)"
HIDDEN = "the training process is in another PID namespace"
NOT_READ = "/proc/stat cannot be read"


class Reading(NamedTuple):
    """Clock ticks of all cores since boot, and time of the run's threads since the first reading."""

    at_ns: int
    total: int
    idle: int
    own: int  # of the run's processes
    threads: ThreadTime | None  # without those of processes beside the run; None if it is not counted
    beside: int = 0  # of processes beside the run, which `own` includes


class CpuUse(NamedTuple):
    """The use of the processor in a window.

    Attributes:
        other_fraction: Fraction of the cores' time that others used; None if it is unknown, or the window is too short.
        is_contended: Whether others used much of it while no core was free.
        others: The processes of others that used most of it, as far as they are visible and named.
        wait_fraction: Of the time in which the run's threads ran or were ready to run, the fraction in which they
            waited for a core. Threads that ended in the window count as if they had not waited. None if it is unknown.
        runnable_threads: Mean number of the run's threads that ran or were ready to run, likewise.
    """

    other_fraction: float | None = None
    is_contended: bool = False
    others: Sequence[BusyProcess] = ()
    wait_fraction: float | None = None
    runnable_threads: float | None = None

    @property
    def note(self) -> str:
        """What others did, as a text; empty unless the processor was contended."""
        if not self.is_contended or self.other_fraction is None:
            return ""
        text = f"other processes used {percent(self.other_fraction)} of the processor time, and no core was free"
        return f"{text}: {describe(self.others)}" if self.others else text


UNKNOWN = CpuUse()


class CpuLoad:
    """The use of the processor between readings; `own_pids` and their descendants belong to the run.

    Of these, `background_pids` and their descendants work beside the run at a low priority: their time is not that of
    others, and they are none of the run's threads.
    With `always_names`, it names the processes of others also if cores are free, which is slower.
    """

    def __init__(self, root: Path = Path("/"), *, always_names: bool = False) -> None:
        self.own_pids = {os.getpid()}
        self.background_pids: set[int] = set()
        self._always_names = always_names
        self._proc = root / "proc"
        self._marks: Marks[Reading] = Marks()
        self._threads: Mapping[int, ThreadTime] = {}
        self._last: Reading | None = None
        self._busy = BusyProcesses(self._proc)

    @property
    def reason(self) -> str:
        """Why the waits of the run's threads are not known; empty if they are."""
        if 0 in self.own_pids:
            return HIDDEN
        if not os.path.exists(CHILDREN):
            return NO_CHILDREN
        if self._last is None:
            return NOT_READ
        return NOT_COUNTED if self._last.threads is None else ""

    def mark(self) -> None:
        """Read the counters, at a border of a window."""
        if not os.path.exists(CHILDREN) or 0 in self.own_pids:  # 0: of another PID namespace
            return
        with suppress(OSError, ValueError):
            counts = [int(count) for count in (self._proc / "stat").read_text().split(maxsplit=9)[1:9]]
            pids, at_ns = set(family(self.own_pids, self._proc)), time.monotonic_ns()
            own = sum(used_ticks(pid, self._proc) for pid in pids)
            background = pids.intersection(family(self.background_pids, self._proc))
            beside = sum(used_ticks(pid, self._proc) for pid in background)
            threads = self._thread_time(pids - background, at_ns)
            reading = Reading(at_ns, sum(counts), counts[3] + counts[4], own, threads, beside)
            before, self._last = self._last, reading
            self._marks.add(at_ns, reading)
            is_contended = before is not None and use_between(before, reading).is_contended
            if self._always_names or self._busy.is_due(at_ns, is_contended=is_contended):
                self._busy.mark(at_ns, pids)

    def window(self, opened_ns: int, closed_ns: int) -> CpuUse:
        """Return the use of the processor in a window."""
        borders = self._marks.at_borders(opened_ns, closed_ns)
        if borders is None:
            return UNKNOWN
        use = use_between(*borders)
        if self._always_names or use.is_contended:
            use = use._replace(others=self._busy.busiest(opened_ns, closed_ns))
        return use

    def discard_before(self, before_ns: int) -> None:
        """Discard the readings before a moment except the last of them."""
        self._marks.discard_before(before_ns)
        self._busy.discard_before(before_ns)

    def _thread_time(self, pids: Iterable[int], at_ns: int) -> ThreadTime | None:
        """Return the time of the run's threads since the first reading; that of ended ones is the last that was read.

        None if the kernel does not count it.
        """
        threads = read_thread_times(pids, self._proc)
        if not threads:
            return None
        before, self._threads = self._threads, threads
        if self._last is None or self._last.threads is None:
            return ThreadTime()
        since = increase(before, threads, at_ns - self._last.at_ns)
        return ThreadTime(*map(sum, zip(self._last.threads, since, strict=True)))


def use_between(before: Reading, now: Reading) -> CpuUse:
    """Return the use of the processor between two readings, without the names of others."""
    total, idle, of_run = now.total - before.total, now.idle - before.idle, now.own - before.own
    if total < MIN_TICKS:
        return UNKNOWN
    fraction = min(1.0, max(0, total - idle - max(0, of_run)) / total)
    use = CpuUse(fraction, is_contended=fraction >= CONTENDED and idle <= MAX_IDLE * total)
    if before.threads is None or now.threads is None:
        return use
    waited_ns = now.threads.waited_ns - before.threads.waited_ns
    # Ticks include the time of ended threads, without which the fraction would be too large.
    ticks = of_run - (now.beside - before.beside)
    ran_ns = max(now.threads.ran_ns - before.threads.ran_ns, ticks / os.sysconf("SC_CLK_TCK") / NANOSECOND)
    ready_ns = ran_ns + waited_ns
    if not ready_ns:
        return use
    return use._replace(wait_fraction=waited_ns / ready_ns, runnable_threads=ready_ns / (now.at_ns - before.at_ns))


def describe(processes: Iterable[BusyProcess]) -> str:
    """Return processes with the time that they used, as a text."""
    return ", ".join(f"{each.name} (pid {each.pid}) {percent(each.fraction)}" for each in processes)


def family(pids: Iterable[int], proc: Path = Path("/proc")) -> Iterator[int]:
    """Yield the processes and all their descendants."""
    for pid in pids:
        yield pid
        for children in glob(f"{proc}/{pid}/task/*/children"):
            with suppress(OSError):  # the thread has ended
                yield from family(map(int, Path(children).read_text().split()), proc)


def used_ticks(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the clock ticks that a process has used, with those of children that it has waited for."""
    with suppress(OSError):
        return sum(map(int, read_stat(pid, str(proc))[11:15]))
    return 0
