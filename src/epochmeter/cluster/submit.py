"""Submit the runs of a sweep that are not completed, as arrays of Slurm jobs."""

from __future__ import annotations

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from epochmeter.cluster.submissions import Submission, SubmissionLog, attempt_id, has_started
from epochmeter.cluster.task import RunTask, check_constraint
from epochmeter.config.installation import IMPORT_PATH, display_path
from epochmeter.config.job import ROOT
from epochmeter.machine import slurm
from epochmeter.results.reuse import READ_ERRORS
from epochmeter.run.nodes import exec_train
from epochmeter.shared.record import CHECKPOINT, Record

NOTICE_S = 90
"""Time before a job's limit at which it gets SIGTERM, to restore device settings and write its summary."""
CANCEL_LIMIT_S = 60.0
"""Time limit for canceled jobs to end; Slurm's KillWait is 30 s by default."""

Notify = Callable[[str], None]
"""Prints a line."""


def submit_missing(
    tasks: Sequence[RunTask], log: SubmissionLog, launcher: Mapping[str, Any], notify: Notify
) -> dict[int, str]:
    """Submit the runs of a sweep that are neither completed nor submitted.

    Returns:
        Run number -> job ID of the jobs to wait for, submitted now or by an earlier command.

    Raises:
        ValueError: No node has the features of a device, or an active job has another configuration.
        RuntimeError: Slurm or submitit is missing, or Slurm refuses the jobs.
    """
    cluster_nodes = slurm.list_nodes(launcher["partition"])
    for task in tasks:
        check_constraint(task, cluster_nodes)
    jobs = slurm.list_jobs(log.name)
    cancel_untracked(jobs, log, launcher["poll_s"], notify)
    entries = log.entries()
    awaited: dict[int, str] = {}
    earlier: dict[int, Submission] = {}
    missing, unreported = [], []
    for task in tasks:
        entry, record = entries.get(task.number, Submission()), Record(task.folder)
        is_completed = entry.digest == task.digest and record.is_completed()
        is_unreported = bool(entry.job) and not entry.reported and has_started(record, entry)
        if is_active(entry, jobs, task) or (is_completed and is_unreported):
            awaited[task.number] = entry.job
        elif is_completed and is_still_valid(record, task):
            earlier[task.number] = replace(entry, earlier=True)
        else:
            missing.append(task)
            unreported += [task.number] if is_unreported else []
    log.write(earlier)
    if awaited:
        notify(f"{format_count(len(awaited), 'run')} submitted earlier: not submitted again.")
    if unreported:
        numbers = ", ".join(map(str, unreported))
        notify(f"Runs submitted earlier that did not complete: {numbers}; archived and submitted again.")
    return {**awaited, **submit_tasks(missing, log, launcher, cluster_nodes, notify)}


def is_active(entry: Submission, jobs: Mapping[str, slurm.SlurmJob], task: RunTask) -> bool:
    """Return whether the job of a task has not ended; ValueError if it has another configuration."""
    if entry.job not in jobs or jobs[entry.job].has_ended:
        return False
    if entry.digest != task.digest:
        raise ValueError(
            f"run {task.number} is still active as job {entry.job}, submitted before a default was changed\n"
            f"  hint: wait for it, or cancel it: scancel {entry.job}"
        )
    return True


def is_still_valid(record: Record, task: RunTask) -> bool:
    """Return whether a completed run needs no check by its node: it is no rehearsal, and its dataset is unchanged."""
    with suppress(*READ_ERRORS):
        run = record.run()
        return not run["rehearsal"] and task.dataset in (None, run["dataset"]["digest"])
    return False


def cancel_untracked(jobs: Mapping[str, slurm.SlurmJob], log: SubmissionLog, poll_s: float, notify: Notify) -> None:
    """Cancel jobs of this sweep that are not in the log, as a command was killed between submitting and logging.

    Waits until they have ended, since they write to the folders of their runs; RuntimeError after `CANCEL_LIMIT_S`.
    """
    logged = {entry.job for entry in log.entries().values()}
    ids = {job.job_id for job in jobs.values() if not job.has_ended and job.job_id not in logged}
    if not ids:
        return
    notify(f"{format_count(len(ids), 'job')} of an earlier command that was killed while submitting: canceled.")
    slurm.cancel(ids)
    until = time.monotonic() + CANCEL_LIMIT_S
    while any(job.job_id in ids and not job.has_ended for job in slurm.list_jobs(log.name).values()):
        if time.monotonic() > until:
            raise RuntimeError(
                f"canceled jobs did not end within {CANCEL_LIMIT_S:g} s: {', '.join(sorted(ids))}\n"
                f"  hint: run the same command again once `squeue --name={log.name}` is empty"
            )
        time.sleep(poll_s)


def submit_tasks(
    tasks: Sequence[RunTask],
    log: SubmissionLog,
    launcher: Mapping[str, Any],
    cluster_nodes: Sequence[slurm.SlurmNode],
    notify: Notify,
) -> dict[int, str]:
    """Submit the tasks, one array per kind of node, and log their jobs; all of them or, on an error, none."""
    if not tasks:
        return {}
    kinds = defaultdict(list)
    for task in tasks:
        kinds[task.python, tuple(sorted(task.options.items()))].append(task)
    max_array, entries = slurm.array_limit(), log.entries()
    jobs: dict[int, str] = {}
    try:
        for (_, items), kind in kinds.items():
            matching = slurm.matching_nodes(dict(items).get("constraint"), cluster_nodes)
            for first in range(0, len(kind), max_array):
                array = kind[first : first + max_array]
                previous = [archive_previous(task, entries.get(task.number, Submission())) for task in array]
                ids = submit_array(array, launcher["setup"], max(1, len(matching)), log)
                jobs |= {task.number: job for task, job in zip(array, ids, strict=True)}
                log.write({
                    task.number: Submission(job, task.digest, attempt)
                    for task, job, attempt in zip(array, ids, previous, strict=True)
                })  # fmt: skip
                notify(array_message(array, ids[0].partition("_")[0], matching))
    except BaseException:
        cancel_jobs(jobs.values(), log, notify)
        raise
    notify(f"Logs: {display_path(log.folder)}/*_log.out")
    return jobs


def array_message(array: Sequence[RunTask], job: str, matching: Sequence[slurm.SlurmNode]) -> str:
    """Return the message that an array was submitted, with the nodes that match it and are not in use."""
    runs, nodes = format_count(len(array), "run"), format_count(len(matching), "node")
    devices = ", ".join(dict.fromkeys(task.device for task in array))
    down = ", ".join(f"{node.name} is {node.state}" for node in matching if not node.is_in_use)
    return f"{runs} for device={devices}: job {job}, on {nodes}{f', of which {down}' if down else ''}."


def cancel_jobs(job_ids: Collection[str] | None, log: SubmissionLog, notify: Notify) -> bool:
    """Cancel these jobs, or all active jobs of a sweep; return whether Slurm accepted it, else print a warning."""
    try:
        if job_ids is None:
            job_ids = [job.job_id for job in slurm.list_jobs(log.name).values() if not job.has_ended]
        if job_ids:
            notify(f"Canceling {format_count(len(job_ids), 'job')} (scancel --name={log.name}).")
            slurm.cancel(job_ids)
    except RuntimeError as error:
        notify(f"warning: {error}; jobs may continue\n  hint: once Slurm answers: scancel --name={log.name}")
        return False
    return True


def submit_array(array: Sequence[RunTask], setup: Sequence[str], at_once: int, log: SubmissionLog) -> list[str]:
    """Submit tasks of one kind as a job array; return their job IDs."""
    try:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError
    except ImportError as error:
        raise RuntimeError(
            "`hydra/launcher=slurm` needs submitit, which is not installed\n"
            "  hint: pip install submitit (here and for the Python of each node)"
        ) from error
    # `exec`, so that Slurm's signals reach the command. Without srun, whose steps have one core by default.
    path = f"{shlex.quote(str(IMPORT_PATH))}${{PYTHONPATH:+:$PYTHONPATH}}"
    executor = SlurmExecutor(log.folder, python=f"exec env PYTHONPATH={path} {array[0].python}")
    executor.update_parameters(
        job_name=log.name,
        time=None,  # submitit's default is 5 minutes
        wckey=None,
        setup=list(setup),
        use_srun=False,
        stderr_to_stdout=True,
        array_parallelism=at_once,
        additional_parameters={"signal": f"B:TERM@{NOTICE_S}", "no-requeue": True, **array[0].options},
    )
    try:
        with executor.batch():
            jobs = [executor.submit(exec_train, str(ROOT), task.arguments) for task in array]
    except FailedJobError as error:
        raise RuntimeError(
            f"Slurm refuses the runs for device={array[0].device}: {str(error).rstrip('.')}\n"
            "  hint: if the number of jobs is limited, set another `hydra.launcher.qos=`, or split the sweep"
        ) from error
    return [job.job_id for job in jobs]


def archive_previous(task: RunTask, entry: Submission) -> str | None:
    """Archive an earlier attempt, unless it is of the same task and completed or resumable: its node decides then.

    Returns the identifier of an attempt that stays, so that its result is not taken for the new job's.
    """
    record = Record(task.folder)
    if not record.folder.exists():
        return None
    is_same = attempt_id(record) is not None and entry.digest == task.digest
    if not (is_same and (record.is_completed() or (record.folder / CHECKPOINT).exists())):
        record.archive_attempt()
    return attempt_id(record)


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
