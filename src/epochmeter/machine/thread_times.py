"""The time that threads ran on a core, and waited for one on a run queue, by the kernel's counters of each thread."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

NOT_COUNTED = "the kernel does not count how long threads wait for a core (CONFIG_SCHED_INFO)"
READING_NS = 50_000_000  # longest time that a reading of all threads takes


class ThreadTime(NamedTuple):
    """Time of one thread, or of several together, in nanoseconds."""

    ran_ns: int = 0
    waited_ns: int = 0  # ready to run, while no core was free for it


def read_thread_times(pids: Iterable[int], proc: Path = Path("/proc")) -> dict[int, ThreadTime]:
    """Return the times of all threads of processes by thread ID; empty if the kernel does not count them."""
    times: dict[int, ThreadTime] = {}
    for pid in pids:
        with suppress(OSError):  # the process has ended
            for thread in os.listdir(f"{proc}/{pid}/task"):
                with suppress(OSError, ValueError), open(f"{proc}/{pid}/task/{thread}/schedstat", "rb") as file:
                    ran_ns, waited_ns, _ = map(int, file.read().split())
                    times[int(thread)] = ThreadTime(ran_ns, waited_ns)
    return times if any(map(any, times.values())) else {}


def increase(before: Mapping[int, ThreadTime], now: Mapping[int, ThreadTime], between_ns: int) -> ThreadTime:
    """Return the time of all threads between two readings, without the last time of those that have ended.

    Threads that were not read before have begun since then. One whose counters say that it is older is left out.
    """
    increases = []
    for thread, time in now.items():
        earlier = before.get(thread, ThreadTime())
        since = ThreadTime(time.ran_ns - earlier.ran_ns, time.waited_ns - earlier.waited_ns)
        if min(since) < 0:  # another thread had this number
            since = time
        if thread in before or sum(since) <= between_ns + READING_NS:
            increases.append(since)
    return ThreadTime(*map(sum, zip(*increases, strict=True))) if increases else ThreadTime()
