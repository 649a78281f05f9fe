"""Waits for the jobs of a sweep, and tells of each run as it ends."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from epochmeter.cluster.submissions import Ledger, has_begun
from epochmeter.cluster.submit import LEAVING_S, Say, call_back, counted, taken_up
from epochmeter.cluster.task import Errand
from epochmeter.console.console import Terminal
from epochmeter.machine import slurm
from epochmeter.shared.record import Record
from epochmeter.sweep.progress import Course
from epochmeter.sweep.sweep_folder import points

SETTLING_S = 10.0
"""How long what a node has written may take to be seen on another host."""
USUAL = ("None", "Resources", "Priority", "JobArrayTaskLimit", "Cleaning", "Prolog")
"""Why a job waits that only has to wait its turn."""
SIGNALED = 128
"""Above it, an exit code tells the signal that this process was ended by."""


def carry_out(
    errands: Sequence[Errand],
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
    ledger, terminal = Ledger(sweep), Terminal()
    poll_s = launcher["poll_s"]
    awaited: dict[int, str] = {}

    def settle(over: dict[int, str]) -> None:
        for number in ended(over, ledger, poll_s, terminal.say):
            learn(number)

    try:
        awaited |= taken_up(errands, ledger, launcher, settle, terminal.say)
        for each in errands:
            if each.number not in awaited:
                tell(each.number)
        for number in ended(awaited, ledger, poll_s, terminal.say):
            tell(number)
    except KeyboardInterrupt:
        if recall(ledger, terminal.warn):
            entries = ledger.entries()
            begun = {
                number: job
                for number, job in awaited.items()
                if has_begun(Record(sweep / str(number)), entries.get(number, {}))
            }
            for number in ended(begun, ledger, poll_s, terminal.say, LEAVING_S):
                tell(number)
        raise
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > SIGNALED:
            jobs = counted(len(awaited), "job")
            terminal.warn(f"left in Slurm: {jobs}\n  hint: run the same command again to collect the results")
        else:  # what was told has ended the sweep
            recall(ledger, terminal.warn)
        raise


def ended(awaited: dict[int, str], ledger: Ledger, poll_s: float, say: Say, limit_s: float = math.inf) -> Iterator[int]:
    """The numbers of runs as they end, each taken from `awaited`; those still there after a limit are left there.

    How a job ended is in the ledger when its number comes.
    """
    course = Course(points(ledger.folder.parent))
    until = time.monotonic() + limit_s
    began: set[int] = set()
    reasons = {*USUAL}
    over: dict[int, float] = {}
    silent = False
    while True:
        try:
            known = slurm.jobs(ledger.name)
        except RuntimeError as error:
            if not silent:
                say(f"warning: {error}. The jobs continue; asking again every {poll_s:g} s.")
            silent = True
        else:
            silent = False
            for number, job_id in list(awaited.items()):
                job = known.get(job_id, slurm.Job(job_id, slurm.GONE))
                if not job.has_ended:
                    if job.state == "RUNNING" and number not in began:
                        began.add(number)
                        say(f"{job.node}: {course.place(number) or f'run {number}'}")
                    elif job.is_waiting and job.why not in reasons:
                        reasons.add(job.why)
                        say(f"run {number} is waiting in Slurm: {job.why}")
                elif seen(number, ledger, over.setdefault(number, time.monotonic())):
                    del awaited[number]
                    ledger.note({number: {"state": job.state, "node": job.node}})
                    yield number
        if not awaited or time.monotonic() > until:
            return
        time.sleep(poll_s)


def seen(number: int, ledger: Ledger, ended_s: float) -> bool:
    """Whether a run's end is to be seen here, or has had the time that a shared file system may take."""
    record = Record(ledger.folder.parent / str(number))
    if record.folder.is_dir():
        os.listdir(record.folder)  # which has NFS look again
    told = (record.folder / "summary.json").exists() and has_begun(record, ledger[number])
    return told or time.monotonic() > ended_s + SETTLING_S


def recall(ledger: Ledger, say: Say) -> bool:
    """Cancels what was sent and has not ended, after saying so; where Slurm does not tell what has, all of which no end
    was told. Whether Slurm answers, so that how they end can be waited for."""
    answers = True
    try:
        left = [job.job_id for job in slurm.jobs(ledger.name).values() if not job.has_ended]
    except RuntimeError as error:
        say(f"{error}.")
        left, answers = [entry["job"] for entry in ledger.entries().values() if not entry["told"]], False
    if left:
        say(
            f"Canceling {counted(len(left), 'job')} (scancel --name={ledger.name}). "
            "To resume, run the same command again: completed runs are skipped."
        )
        answers = call_back(left, ledger, say) and answers
    return answers
