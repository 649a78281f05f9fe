"""Waits for the jobs of a sweep, and tells of each run as it ends."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from epochmeter.cluster.submissions import SubmissionLog, has_started
from epochmeter.cluster.submit import CANCEL_LIMIT_S, Notify, cancel_submitted, format_count, submit_missing
from epochmeter.cluster.task import RunTask
from epochmeter.console.console import Terminal
from epochmeter.machine import slurm
from epochmeter.shared.record import Record
from epochmeter.sweep.progress import SweepProgress
from epochmeter.sweep.sweep_folder import read_points

FILE_VISIBILITY_S = 10.0
"""How long what a node has written may take to be seen on another host."""
NORMAL_PENDING_REASONS = ("None", "Resources", "Priority", "JobArrayTaskLimit", "Cleaning", "Prolog")
"""Why a job waits that only has to wait its turn."""
SIGNAL_EXIT_BASE = 128
"""Above it, an exit code tells the signal that this process was ended by."""


def run_on_cluster(
    errands: Sequence[RunTask],
    sweep: Path,
    launcher: Mapping[str, Any],
    learn: Callable[[int], object],
    tell: Callable[[int], object],
) -> None:
    """Has Slurm's nodes make these runs, and tells of each as it ends, or at once where it was whole before.

    `learn` takes over the end of an attempt that is no outcome of this command: the run is sent again.

    Ctrl-C cancels what has not ended, and goes on once those that had begun are told of; so does a sweep that is to
    end. A signal leaves them: they need no one here. Raises as `taken_up` does.
    """
    ledger, terminal = SubmissionLog(sweep), Terminal()
    poll_s = launcher["poll_s"]
    awaited: dict[int, str] = {}

    def settle(over: dict[int, str]) -> None:
        for number in iter_ended(over, ledger, poll_s, terminal.info):
            learn(number)

    try:
        awaited |= submit_missing(errands, ledger, launcher, settle, terminal.info)
        for each in errands:
            if each.number not in awaited:
                tell(each.number)
        for number in iter_ended(awaited, ledger, poll_s, terminal.info):
            tell(number)
    except KeyboardInterrupt:
        if cancel_all(ledger, terminal.warn):
            entries = ledger.entries()
            begun = {
                number: job
                for number, job in awaited.items()
                if has_started(Record(sweep / str(number)), entries.get(number, {}))
            }
            for number in iter_ended(begun, ledger, poll_s, terminal.info, CANCEL_LIMIT_S):
                tell(number)
        raise
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > SIGNAL_EXIT_BASE:
            jobs = format_count(len(awaited), "job")
            terminal.warn(f"left in Slurm: {jobs}\n  hint: run the same command again to collect the results")
        else:  # what was told has ended the sweep
            cancel_all(ledger, terminal.warn)
        raise


def iter_ended(
    awaited: dict[int, str], ledger: SubmissionLog, poll_s: float, say: Notify, limit_s: float = math.inf
) -> Iterator[int]:
    """The numbers of runs as they end, each taken from `awaited`; those still there after a limit are left there.

    How a job ended is in the ledger when its number comes.
    """
    course = SweepProgress(read_points(ledger.folder.parent))
    until = time.monotonic() + limit_s
    began: set[int] = set()
    reasons = {*NORMAL_PENDING_REASONS}
    over: dict[int, float] = {}
    silent = False
    while True:
        try:
            known = slurm.list_jobs(ledger.name)
        except RuntimeError as error:
            if not silent:
                say(f"warning: {error}. The jobs continue; asking again every {poll_s:g} s.")
            silent = True
        else:
            silent = False
            for number, job_id in list(awaited.items()):
                job = known.get(job_id, slurm.SlurmJob(job_id, slurm.GONE))
                if not job.has_ended:
                    if job.state == "RUNNING" and number not in began:
                        began.add(number)
                        say(f"{job.node}: {course.label(number) or f'run {number}'}")
                    elif job.is_waiting and job.reason not in reasons:
                        reasons.add(job.reason)
                        say(f"run {number} is waiting in Slurm: {job.reason}")
                elif is_visible(number, ledger, over.setdefault(number, time.monotonic())):
                    del awaited[number]
                    ledger.update({number: {"state": job.state, "node": job.node}})
                    yield number
        if not awaited or time.monotonic() > until:
            return
        time.sleep(poll_s)


def is_visible(number: int, ledger: SubmissionLog, ended_s: float) -> bool:
    """Whether a run's end is to be seen here, or has had the time that a shared file system may take."""
    record = Record(ledger.folder.parent / str(number))
    if record.folder.is_dir():
        os.listdir(record.folder)  # which has NFS look again
    told = (record.folder / "summary.json").exists() and has_started(record, ledger[number])
    return told or time.monotonic() > ended_s + FILE_VISIBILITY_S


def cancel_all(ledger: SubmissionLog, say: Notify) -> bool:
    """Cancels what was sent and has not ended, after saying so; where Slurm does not tell what has, all of which no end
    was told. Whether Slurm answers, so that how they end can be waited for."""
    answers = True
    try:
        left = [job.job_id for job in slurm.list_jobs(ledger.name).values() if not job.has_ended]
    except RuntimeError as error:
        say(f"{error}.")
        left, answers = [entry["job"] for entry in ledger.entries().values() if not entry["told"]], False
    if left:
        say(
            f"Canceling {format_count(len(left), 'job')} (scancel --name={ledger.name}). "
            "To resume, run the same command again: completed runs are skipped."
        )
        answers = cancel_submitted(left, ledger, say) and answers
    return answers
