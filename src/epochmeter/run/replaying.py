"""A replayed run: when its epochs are known precisely enough, and the end of its script, which only measures."""

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

from epochmeter.config.schema import Job
from epochmeter.machine.cpu_load import family
from epochmeter.results.intervals import half_width
from epochmeter.results.summary import averaged_epochs
from epochmeter.shared.problem import Problem
from epochmeter.shared.process_identity import has_exited, start_ticks
from epochmeter.shared.record import WORKER_LOG, Record
from epochmeter.shared.units import percent

MIN_EPOCHS, MAX_EPOCHS = 3, 30  # after the warm-up, with which a replayed run ends: precise enough, or in any case
GRACE_S, POLL_S = 10.0, 0.05  # how long the processes of a script have to end themselves; period of looking
START = (
    f"with replayed batches, the script's output is written to {WORKER_LOG} of the run, and the script may be ended."
)
NOTE = "the loaders were replayed: this run has the speed without data stalls, and its losses and files are no results."
ENDED = "the replayed script was ended after {} epochs, whose mean time is known within {} (95 % interval)."
NONE_REPLAYED = Problem(
    "no epoch was replayed: in each one, a loader delivered batches itself",
    "make each DataLoader, or its dataset, once before the epochs; a replayed run needs an epoch after its warm-up",
)


def precision_of(record: Record, job: Job) -> tuple[int, float] | None:
    """Return the number of averaged epochs and the relative 95 % interval of their mean time, if they suffice."""
    times_s = [epoch["epoch/e2e_s"] for epoch in averaged_epochs(record.windows(), job.warmup_epochs)]
    if len(times_s) < MIN_EPOCHS:
        return None
    precision = half_width(times_s) * len(times_s) / sum(times_s)
    is_known = precision <= job.measure.replay_precision or len(times_s) >= MAX_EPOCHS
    return (len(times_s), precision) if is_known else None


def ended_note(epochs: int, precision: float) -> str:
    return ENDED.format(epochs, percent(precision, 1))


def end_processes(pids: Collection[int]) -> None:
    """End processes and all their descendants: they are asked to, and killed if they do not end in time."""
    asked: dict[int, str | None] = {}  # with their starts, since a PID may be that of another process later
    ended_s = time.monotonic() + GRACE_S
    while time.monotonic() < ended_s + GRACE_S:  # a process that waits for a driver may not even be killed
        new = {pid: start_ticks(pid) for pid in family(pids) if pid not in asked}
        running = [pid for pid, start in {**asked, **new}.items() if not has_exited(pid) and start_ticks(pid) == start]
        if not running:
            return
        is_late = time.monotonic() >= ended_s
        for pid in running if is_late else new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        asked.update(new)
        time.sleep(POLL_S)
