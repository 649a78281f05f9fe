"""When a run went from one stage to the next."""

import os
import time
from contextlib import suppress
from pathlib import Path

from epochmeter.config.script import ATTACHED
from epochmeter.shared.process_identity import start_ticks


def command_ns(*, of_sweep: bool) -> int:
    """Return when the command of a run was started, on the monotonic clock; for a `Meter`, when its script was.

    A run of a sweep starts now.
    """
    started_ns = None if of_sweep else process_started_ns(os.getppid() if ATTACHED in os.environ else os.getpid())
    return time.monotonic_ns() if started_ns is None else started_ns


def process_started_ns(pid: int) -> int | None:
    """Return when a process was started, on the monotonic clock, to a clock tick (10 ms); None if it is not known."""
    ticks = start_ticks(pid)
    if ticks is None:
        return None
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return int(ticks) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - suspended_ns


def read_moment(path: Path) -> int | None:
    """Return the moment that another process has written to a file; None if there is none."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None
