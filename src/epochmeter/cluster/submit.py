"""Submit the runs of a sweep that are not completed, as arrays of Slurm jobs."""

from __future__ import annotations

import re
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from epochmeter.cluster.submissions import SubmissionLog, attempt_id, has_started
from epochmeter.cluster.task import RunTask, check_constraint
from epochmeter.config.job import ROOT
from epochmeter.console.console import display_path
from epochmeter.machine import slurm
from epochmeter.run import nodes
from epochmeter.shared.record import CHECKPOINT, Record
from epochmeter.tracking.queue import READ_ERRORS

NOTICE_S = 90
"""Time before a job's limit at which it gets SIGTERM, to restore device settings and write its summary."""
CANCEL_LIMIT_S = 60.0
"""Time limit for canceled jobs to end; Slurm's KillWait is 30 s by default."""
SUBMIT_LIMIT_ERROR = re.compile(r"SubmitJob|submit limit|temporarily")
"""Slurm's messages for a limit of submitted jobs."""

Notify = Callable[[str], None]


def submit_missing(
    tasks: Sequence[RunTask],
    ledger: SubmissionLog,
    launcher: Mapping[str, Any],
    settle: Callable[[dict[int, str]], object],
    say: Notify,
) -> dict[int, str]:
    """Submit runs that are neither completed nor submitted.

    Args:
        tasks: All runs of the sweep.
        ledger: The log of submitted jobs.
        launcher: Keys of the launcher.
        settle: Gets run number -> job ID of runs that ended unobserved and are submitted again; it reports each result
            before the next attempt replaces the record.
        say: Prints a line.

    Returns:
        Run number -> job ID of the jobs to wait for, submitted now or by an earlier command.

    Raises:
        ValueError: No node has the features of a device.
        RuntimeError: Slurm or submitit is missing, or Slurm refuses the jobs.
    """
    cluster_nodes = slurm.list_nodes(launcher["partition"])
    for task in tasks:
        check_constraint(task, cluster_nodes)
    jobs = slurm.list_jobs(ledger.name)
    cancel_untracked(jobs, ledger, launcher["poll_s"], say)
    entries, awaited, unreported, missing, earlier = ledger.entries(), {}, {}, [], {}
    for task in tasks:
        entry, record = entries.get(task.number, {}), Record(task.folder)
        same = entry.get("digest") == task.digest
        job = jobs.get(entry.get("job", ""))
        is_active = job is not None and not job.has_ended
        if is_active and not same:
            raise ValueError(
                f"run {task.number} is still active as job {entry['job']}, submitted before a default was changed\n"
                f"  hint: wait for it, or cancel it: scancel {entry['job']}"
            )
        is_unreported = bool(entry) and not entry["reported"] and has_started(record, entry)
        completed = same and record.is_completed()
        if is_active or (completed and is_unreported):
            awaited[task.number] = entry["job"]
        elif completed and is_still_valid(record, task):
            earlier[task.number] = {"earlier": True}
        else:
            missing.append(task)
            if is_unreported:
                unreported[task.number] = entry["job"]
    ledger.update(earlier)
    if awaited:
        say(f"{format_count(len(awaited), 'run')} submitted earlier: not submitted again.")
    if unreported:
        runs = format_count(len(unreported), "run")
        say(f"{runs} submitted earlier ended meanwhile: reported now and submitted again.")
        settle(unreported)
    return {**awaited, **submit_tasks(missing, ledger, launcher, cluster_nodes, say)}


def is_still_valid(record: Record, task: RunTask) -> bool:
    """Return whether a completed run needs no check by its node: it is no rehearsal, and its dataset is unchanged."""
    with suppress(*READ_ERRORS):
        run = record.run()
        return not run["rehearsal"] and task.dataset in (None, run["dataset"]["digest"])
    return False


def cancel_untracked(jobs: Mapping[str, slurm.SlurmJob], ledger: SubmissionLog, poll_s: float, say: Notify) -> None:
    """Cancel jobs of this sweep that are not in the log, as the command was killed between submitting and logging.

    Waits until they have ended, since they write to the folders of their runs.

    Raises:
        RuntimeError: They do not end in time.
    """
    logged = {entry.get("job") for entry in ledger.entries().values()}
    strays = [job.job_id for job in jobs.values() if not job.has_ended and job.job_id not in logged]
    if strays:
        say(f"{format_count(len(strays), 'job')} of an earlier command that was killed while submitting: canceled.")
        slurm.cancel(strays)
        await_end(strays, ledger.name, poll_s)


def await_end(job_ids: Sequence[str], name: str, poll_s: float) -> None:
    """Wait until these canceled jobs have ended.

    Raises:
        RuntimeError: They have not ended after `CANCEL_LIMIT_S`.
    """
    until = time.monotonic() + CANCEL_LIMIT_S
    while remaining := [job for job in slurm.list_jobs(name).values() if job.job_id in job_ids and not job.has_ended]:
        if time.monotonic() > until:
            raise RuntimeError(
                f"{format_count(len(remaining), 'job')} canceled {CANCEL_LIMIT_S:g} s ago did not end: "
                f"{', '.join(f'{job.job_id} is {job.state}' for job in remaining)}\n"
                f"  hint: run the same command again once `squeue --name={name}` is empty"
            )
        time.sleep(poll_s)


def submit_tasks(
    tasks: Sequence[RunTask],
    ledger: SubmissionLog,
    launcher: Mapping[str, Any],
    cluster_nodes: Sequence[slurm.SlurmNode],
    say: Notify,
) -> dict[int, str]:
    """Submit the tasks, one array per kind of node, and log their jobs; all of them or, on an error, none."""
    if not tasks:
        return {}
    kinds = defaultdict(list)
    for task in tasks:
        kinds[task.python, tuple(sorted(task.options.items()))].append(task)
    max_array, before = slurm.array_limit(), ledger.entries()
    jobs: dict[int, str] = {}
    try:
        for (python, items), alike in kinds.items():
            options = dict(items)
            matching = slurm.matching_nodes(options.get("constraint"), cluster_nodes)
            for first in range(0, len(alike), max_array):
                array = alike[first : first + max_array]
                previous = [archive_previous(task, before.get(task.number, {})) for task in array]
                ids = submit_array(array, python, options, launcher["setup"], max(1, len(matching)), ledger)
                jobs |= {task.number: job_id for task, job_id in zip(array, ids, strict=True)}
                ledger.update({
                    task.number: {"job": jobs[task.number], "digest": task.digest, "previous_attempt": attempt,
                                  "reported": False, "earlier": False}
                    for task, attempt in zip(array, previous, strict=True)
                })  # fmt: skip
                say(submission_message(array, ids, matching))
    except BaseException:
        cancel_submitted(jobs.values(), ledger, say)
        raise
    say(f"Logs: {display_path(ledger.folder)}/*_log.out")
    return jobs


def cancel_submitted(job_ids: Collection[str], ledger: SubmissionLog, say: Notify) -> bool:
    """Cancel these jobs; return whether Slurm accepted it, else print a warning with a hint."""
    try:
        slurm.cancel(job_ids)
    except RuntimeError as error:
        say(
            f"warning: {error}. {format_count(len(job_ids), 'job')} may continue\n"
            f"  hint: once Slurm answers: scancel --name={ledger.name}; or run the same command again"
        )
        return False
    return True


def submission_message(array: Sequence[RunTask], job_ids: Sequence[str], matching: Sequence[slurm.SlurmNode]) -> str:
    """Return a line on a submitted array: runs, device, job ID and nodes, with those that are not in use."""
    devices = ", ".join(dict.fromkeys(task.device for task in array))
    out = [node for node in matching if not node.is_in_use]
    waits = f", of which {', '.join(f'{node.name} is {node.state}' for node in out)}" if out else ""
    job = job_ids[0].partition("_")[0]
    runs, nodes = format_count(len(array), "run"), format_count(len(matching), "node")
    return f"{runs} for device={devices}: job {job}, on {nodes}{waits}."


def submit_array(array: Sequence[RunTask], python: str, options: Mapping[str, Any], setup: Sequence[str], at_once: int,
              ledger: SubmissionLog) -> list[str]:  # fmt: skip
    """Submit tasks of one kind as a job array; return their job IDs.

    Raises:
        RuntimeError: submitit is missing, or Slurm refuses the array.
    """
    try:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError
    except ImportError as error:
        raise RuntimeError(
            "`hydra/launcher=slurm` needs submitit, which is not installed\n"
            "  hint: pip install submitit (here and for the Python of each node)"
        ) from error
    # `exec`, so that Slurm's signals reach the command. Without srun, whose steps have one core by default.
    path = f"{shlex.quote(str(ROOT / 'src'))}${{PYTHONPATH:+:$PYTHONPATH}}"
    executor = SlurmExecutor(ledger.folder, python=f"exec env PYTHONPATH={path} {python}")
    executor.update_parameters(
        job_name=ledger.name,
        time=None,  # submitit's default is 5 minutes
        wckey=None,
        setup=list(setup),
        use_srun=False,
        stderr_to_stdout=True,
        array_parallelism=at_once,
        additional_parameters={"signal": f"B:TERM@{NOTICE_S}", "no-requeue": True, **options},
    )
    try:
        with executor.batch():
            jobs = [executor.submit(nodes.exec_train, str(ROOT), task.arguments) for task in array]
    except FailedJobError as error:
        raise RuntimeError(
            f"Slurm refuses the runs for device={array[0].device}: {submission_error(str(error))}"
        ) from error
    return [job.job_id for job in jobs]


def submission_error(why: str) -> str:
    """Return Slurm's error, with a hint if the number of jobs is limited."""
    if not SUBMIT_LIMIT_ERROR.search(why):
        return why
    return (
        f"{why.rstrip('.')}\n"
        "  hint: the number of jobs is limited by the account, the QOS or the cluster. Set another "
        "`hydra.launcher.account=` or `hydra.launcher.qos=`, or split the sweep."
    )


def archive_previous(task: RunTask, entry: Mapping[str, Any]) -> str | None:
    """Archive an earlier attempt, unless it is of the same task and completed or resumable: its node decides then.

    Returns:
        The identifier of an attempt that stays, so that its result is not taken for the new job's; None if none stays.
    """
    record = Record(task.folder)
    if not record.folder.exists():
        return None
    is_same = attempt_id(record) is not None and entry.get("digest") == task.digest
    if not (is_same and (record.is_completed() or (record.folder / CHECKPOINT).exists())):
        record.archive_attempt()
    return attempt_id(record)


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
