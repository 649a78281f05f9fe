"""When a run went from one stage to the next."""

import math
import os
import time
from contextlib import suppress
from pathlib import Path

from epochmeter.config.script import ATTACHED
from epochmeter.machine.suspension import suspended_ns
from epochmeter.results.run_info import Attempt, Clock, Moments, RunInfo
from epochmeter.shared.process_identity import start_ticks
from epochmeter.shared.record import (
    CHECKPOINT,
    JOB_FILE,
    PROGRESS,
    ROW_FILES,
    TIME_SERIES,
    WINDOWS_FILE,
    WORKER_LOG,
    Record,
)
from epochmeter.shared.units import NANOSECOND

WRITTEN_FILES = (JOB_FILE, WINDOWS_FILE, *ROW_FILES, *TIME_SERIES, PROGRESS, WORKER_LOG, CHECKPOINT)
"""Files that a run writes until it is interrupted: that of its progress twice per second."""


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
    return int(ticks) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - suspended_ns()


def ended_attempt(record: Record, earlier: RunInfo, epochs: int, now: RunInfo, resumed: Clock) -> Attempt:
    """Return an interrupted attempt of a run, which its next attempt resumes from the checkpoint of some epochs.

    Args:
        record: As the attempt has left it.
        earlier: Its metadata.
        now: Those of the attempt that resumes, with the moment of its command.
        resumed: The present time.
    """
    moments = moments_with_end(record, earlier, resumed if earlier.boot_id == now.boot_id else None)
    clock = resumed if earlier.boot_id == now.boot_id else earlier.start_of(math.inf).clock
    gap_s = -1.0
    if clock and "recorded_ns" in moments and "command_ns" in now.moments:
        gap_s = resumed.unix_s(now.moments["command_ns"]) - clock.unix_s(moments["recorded_ns"])
    return Attempt(moments=moments, epochs=epochs, gap_s=gap_s if gap_s >= 0 else None)


def moments_with_end(record: Record, run: RunInfo, now: Clock | None) -> Moments:
    """Return the moments of an ended attempt. If it has not recorded its end, that is when it last wrote to the record.

    `now` is the present time; None: the machine has been started again since then.
    """
    moments, clock = Moments(**run.moments), now or run.start_of(math.inf).clock
    if "recorded_ns" in moments or "command_ns" not in moments or clock is None:
        return moments
    first = run.resumed[-1].epoch if run.resumed else 0
    known_ns = [moments[key] for key in ("command_ns", "process_ns", "imported_ns") if key in moments]
    known_ns += [window.get("closed_ns", 0) for window in record.windows() if window["epoch"] >= first]
    written_ns = _last_written_ns(record, clock)
    if now:
        written_ns = min(written_ns, now.monotonic_ns)  # another clock may have timed the files
    ended_ns = max([written_ns, *known_ns])
    return {**moments, "ended_ns": ended_ns, "recorded_ns": ended_ns}


def _last_written_ns(record: Record, clock: Clock) -> int:
    """Return when the files of a run were last written, on the monotonic clock."""
    files = [path for name in WRITTEN_FILES if (path := record.folder / name).exists()]
    written_s = max(path.stat().st_mtime for path in files)
    return clock.monotonic_ns + round((written_s - clock.wall_s) / NANOSECOND)


def read_moment(path: Path) -> int | None:
    """Return the moment that another process has written to a file; None if there is none."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None
