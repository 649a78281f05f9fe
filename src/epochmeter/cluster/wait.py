"""Wait for the jobs of a sweep, and report each run when it ends."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from epochmeter.cluster.submissions import SubmissionLog, has_started
from epochmeter.cluster.submit import CANCEL_LIMIT_S, Notify, cancel_jobs, format_count, submit_missing
from epochmeter.cluster.task import RunTask
from epochmeter.console.console import Terminal
from epochmeter.machine import slurm
from epochmeter.results.sweep_files import read_points
from epochmeter.shared.record import Record

FILE_VISIBILITY_S = 10.0
"""Time until files written on a node are visible on other hosts (NFS caches)."""
NORMAL_PENDING_REASONS = ("None", "Resources", "Priority", "JobArrayTaskLimit", "Cleaning", "Prolog")
"""Slurm's reasons of jobs that only wait for their turn."""
SIGNAL_EXIT_BASE = 128
"""Exit codes above it are of a process ended by a signal."""


def run_on_cluster(
    tasks: Sequence[RunTask], sweep: Path, launcher: Mapping[str, Any], report: Callable[[int], object]
) -> None:
    """Run the tasks on Slurm's nodes and report each run when it ends, or at once if it was completed before.

    Ctrl-C cancels all jobs that have not ended and reports those that had started; so does the end of a sweep by
    `sweep.max_failures`. After any other signal the jobs continue. Raises the errors of `submit_missing`.
    """
    log, terminal, poll_s = SubmissionLog(sweep), Terminal(), launcher["poll_s"]
    awaited: dict[int, str] = {}
    try:
        awaited |= submit_missing(tasks, log, launcher, terminal.info)
        for task in tasks:
            if task.number not in awaited:
                report(task.number)
        for number in iter_ended(awaited, log, poll_s, terminal.info):
            report(number)
    except KeyboardInterrupt:
        if cancel_jobs(None, log, terminal.warn):
            started = {
                number: job for number, job in awaited.items() if has_started(Record(sweep / str(number)), log[number])
            }
            for number in iter_ended(started, log, poll_s, terminal.info, CANCEL_LIMIT_S):
                report(number)
        raise
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > SIGNAL_EXIT_BASE:
            jobs = format_count(len(awaited), "job")
            terminal.warn(f"left in Slurm: {jobs}\n  hint: run the same command again to collect the results")
        else:  # a reported failure ended the sweep
            cancel_jobs(None, log, terminal.warn)
        raise


def iter_ended(
    awaited: dict[int, str], log: SubmissionLog, poll_s: float, notify: Notify, limit_s: float = math.inf
) -> Iterator[int]:
    """Yield the numbers of runs when they end, and remove them from `awaited`; stop after `limit_s`.

    The log has the job's final state before its number is yielded.
    """
    monitor, until = JobMonitor(log, poll_s, notify), time.monotonic() + limit_s
    ended_s: dict[int, float] = {}
    while True:
        for number, job in monitor.jobs(awaited).items():
            if not job.has_ended:
                monitor.announce(number, job)
            elif is_visible(number, log, ended_s.setdefault(number, time.monotonic())):
                del awaited[number]
                log.update(number, state=job.state, node=job.node)
                yield number
        if not awaited or time.monotonic() > until:
            return
        time.sleep(poll_s)


class JobMonitor:
    """Reads the state of a sweep's jobs from Slurm, and prints each change once."""

    def __init__(self, log: SubmissionLog, poll_s: float, notify: Notify) -> None:
        self._name, self._poll_s, self._notify = log.name, poll_s, notify
        self._points = read_points(log.sweep)
        self._running: set[int] = set()
        self._printed_reasons = {*NORMAL_PENDING_REASONS}
        self._has_failed = False

    def jobs(self, awaited: Mapping[int, str]) -> dict[int, slurm.SlurmJob]:
        """Return the jobs by run number; none if Slurm does not answer."""
        try:
            jobs = slurm.list_jobs(self._name)
        except RuntimeError as error:
            if not self._has_failed:
                self._notify(f"warning: {error}. The jobs continue; asking again every {self._poll_s:g} s.")
            self._has_failed = True
            return {}
        self._has_failed = False
        return {number: jobs.get(job_id, slurm.SlurmJob(job_id, slurm.GONE)) for number, job_id in awaited.items()}

    def announce(self, number: int, job: slurm.SlurmJob) -> None:
        """Print that a job has started, or an unusual reason why it has not."""
        if job.state == "RUNNING" and number not in self._running:
            self._running.add(number)
            self._notify(f"{job.node}: {self._points.label(number) or f'run {number}'}")
        elif job.is_waiting and job.reason not in self._printed_reasons:
            self._printed_reasons.add(job.reason)
            self._notify(f"run {number} is waiting in Slurm: {job.reason}")


def is_visible(number: int, log: SubmissionLog, ended_s: float) -> bool:
    """Return whether a run's summary is visible here, or `FILE_VISIBILITY_S` has passed since its job ended."""
    record = Record(log.sweep / str(number))
    if record.folder.is_dir():
        os.listdir(record.folder)  # makes NFS refresh its cache
    has_summary = (record.folder / "summary.json").exists() and has_started(record, log[number])
    return has_summary or time.monotonic() > ended_s + FILE_VISIBILITY_S
