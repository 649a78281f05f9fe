"""Runs -> jobs: what has not been measured is sent to nodes of its kind, once."""

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
"""How long before its time limit a job is asked to end, so that it puts its knobs back and says how it ended."""
CANCEL_LIMIT_S = 60.0
"""How long canceled jobs may take to end: Slurm gives them 30 s unless its KillWait says otherwise."""
SUBMIT_LIMIT_ERROR = re.compile(r"SubmitJob|submit limit|temporarily")
"""How Slurm says that it takes no more jobs at once."""

Notify = Callable[[str], None]


def submit_missing(
    errands: Sequence[RunTask],
    ledger: SubmissionLog,
    launcher: Mapping[str, Any],
    settle: Callable[[dict[int, str]], object],
    say: Notify,
) -> dict[int, str]:
    """The jobs to wait for, by the numbers of their runs: sent now, or by an earlier start that was ended.

    `settle` is given the jobs that ended while no one waited, of runs that are to be measured again: it has the end of
    each told before its record is the next attempt's.

    ValueError for a device that no node has the feature of, RuntimeError where Slurm or submitit is not there or
    refuses.
    """
    there = slurm.list_nodes(launcher["partition"])
    for each in errands:
        check_constraint(each, there)
    known = slurm.list_jobs(ledger.name)
    cancel_untracked(known, ledger, launcher["poll_s"], say)
    entries, awaited, untold, unsent, earlier = ledger.entries(), {}, {}, [], {}
    for each in errands:
        entry, record = entries.get(each.number, {}), Record(each.folder)
        same = entry.get("digest") == each.digest
        job = known.get(entry.get("job", ""))
        under_way = job is not None and not job.has_ended
        if under_way and not same:
            raise ValueError(
                f"run {each.number} is under way as job {entry['job']}, sent before a default was changed: "
                f"wait for it, or end it: scancel {entry['job']}"
            )
        is_untold = bool(entry) and not entry["told"] and has_started(record, entry)
        whole = same and record.is_completed()
        if under_way or (whole and is_untold):
            awaited[each.number] = entry["job"]
        elif whole and is_still_valid(record, each):
            earlier[each.number] = {"earlier": True}
        else:
            unsent.append(each)
            if is_untold:
                untold[each.number] = entry["job"]
    ledger.update(earlier)
    if awaited:
        say(f"{format_count(len(awaited), 'run')} submitted earlier: not submitted again.")
    if untold:
        say(f"{format_count(len(untold), 'run')} submitted earlier ended meanwhile: reported now and submitted again.")
        settle(untold)
    return {**awaited, **submit_tasks(unsent, ledger, launcher, there, say)}


def is_still_valid(record: Record, asked: RunTask) -> bool:
    """Whether a whole run is what would be measured now, as far as that is known here: nothing of it was rehearsed, and
    its dataset is what it was. Of any other its node is the judge."""
    with suppress(*READ_ERRORS):
        run = record.run()
        return not run["rehearsal"] and asked.dataset in (None, run["dataset"]["digest"])
    return False


def cancel_untracked(known: Mapping[str, slurm.SlurmJob], ledger: SubmissionLog, poll_s: float, say: Notify) -> None:
    """Cancels jobs of this sweep that were sent, but never written down, by a start that was killed in between.

    They have ended when this returns: until then they write to the folders of their runs. RuntimeError if they do not.
    """
    ours = {entry.get("job") for entry in ledger.entries().values()}
    strays = [job.job_id for job in known.values() if not job.has_ended and job.job_id not in ours]
    if strays:
        say(f"{format_count(len(strays), 'job')} of an earlier command that was killed while submitting: canceled.")
        slurm.cancel(strays)
        await_end(strays, ledger.name, poll_s)


def await_end(job_ids: Sequence[str], name: str, poll_s: float) -> None:
    """Waits until canceled jobs of that name have ended; RuntimeError if they have not within the time that takes."""
    until = time.monotonic() + CANCEL_LIMIT_S
    while left := [job for job in slurm.list_jobs(name).values() if job.job_id in job_ids and not job.has_ended]:
        if time.monotonic() > until:
            raise RuntimeError(
                f"{format_count(len(left), 'job')} canceled {CANCEL_LIMIT_S:g} s ago did not end: "
                f"{', '.join(f'{job.job_id} is {job.state}' for job in left)}\n"
                f"  hint: run the same command again once `squeue --name={name}` is empty"
            )
        time.sleep(poll_s)


def submit_tasks(
    errands: Sequence[RunTask],
    ledger: SubmissionLog,
    launcher: Mapping[str, Any],
    there: Sequence[slurm.SlurmNode],
    say: Notify,
) -> dict[int, str]:
    """Sends errands, an array for each kind of node, and writes down what they became; all of them, or none."""
    if not errands:
        return {}
    kinds = defaultdict(list)
    for each in errands:
        kinds[each.python, tuple(sorted(each.options.items()))].append(each)
    at_most, before = slurm.array_limit(), ledger.entries()
    jobs: dict[int, str] = {}
    try:
        for (python, asked), alike in kinds.items():
            options = dict(asked)
            serving = slurm.matching_nodes(options.get("constraint"), there)
            for first in range(0, len(alike), at_most):
                array = alike[first : first + at_most]
                left = [archive_previous(each, before.get(each.number, {})) for each in array]
                ids = submit_array(array, python, options, launcher["setup"], max(1, len(serving)), ledger)
                jobs |= {each.number: job_id for each, job_id in zip(array, ids, strict=True)}
                ledger.update({
                    each.number: {"job": jobs[each.number], "digest": each.digest, "left": lies, "told": False,
                                  "earlier": False}
                    for each, lies in zip(array, left, strict=True)
                })  # fmt: skip
                say(submission_message(array, ids, serving))
    except BaseException:
        cancel_submitted(jobs.values(), ledger, say)
        raise
    say(f"Logs: {display_path(ledger.folder)}/*_log.out")
    return jobs


def cancel_submitted(job_ids: Collection[str], ledger: SubmissionLog, say: Notify) -> bool:
    """Has Slurm cancel these jobs; where it does not answer, that is said, and what is left to do."""
    try:
        slurm.cancel(job_ids)
    except RuntimeError as error:
        say(
            f"warning: {error}. {format_count(len(job_ids), 'job')} may continue\n"
            f"  hint: once Slurm answers: scancel --name={ledger.name}; or run the same command again"
        )
        return False
    return True


def submission_message(array: Sequence[RunTask], job_ids: Sequence[str], serving: Sequence[slurm.SlurmNode]) -> str:
    """What was sent, where to, and whether it has long to wait."""
    devices = ", ".join(dict.fromkeys(each.device for each in array))
    out = [each for each in serving if not each.is_in_use]
    waits = f", of which {', '.join(f'{each.name} is {each.state}' for each in out)}" if out else ""
    job = job_ids[0].partition("_")[0]
    runs, nodes = format_count(len(array), "run"), format_count(len(serving), "node")
    return f"{runs} for device={devices}: job {job}, on {nodes}{waits}."


def submit_array(array: Sequence[RunTask], python: str, asked: Mapping[str, Any], setup: Sequence[str], at_once: int,
              ledger: SubmissionLog) -> list[str]:  # fmt: skip
    """The ids of the jobs that errands of one kind became."""
    try:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError
    except ImportError as error:
        raise RuntimeError(
            "`hydra/launcher=slurm` needs submitit, which is not installed\n"
            "  hint: pip install submitit (here and for the Python of each node)"
        ) from error
    # The job becomes the command, so that Slurm's signals reach it and no one else's memory or time is metered; and not
    # by srun, whose steps have one core unless told otherwise.
    path = f"{shlex.quote(str(ROOT / 'src'))}${{PYTHONPATH:+:$PYTHONPATH}}"
    executor = SlurmExecutor(ledger.folder, python=f"exec env PYTHONPATH={path} {python}")
    executor.update_parameters(
        job_name=ledger.name,
        time=None,  # or 5 minutes, which is submitit's own
        wckey=None,
        setup=list(setup),
        use_srun=False,
        stderr_to_stdout=True,
        array_parallelism=at_once,
        additional_parameters={"signal": f"B:TERM@{NOTICE_S}", "no-requeue": True, **asked},
    )
    try:
        with executor.batch():
            jobs = [executor.submit(nodes.exec_train, str(ROOT), each.arguments) for each in array]
    except FailedJobError as error:
        raise RuntimeError(
            f"Slurm refuses the runs for device={array[0].device}: {submission_error(str(error))}"
        ) from error
    return [job.job_id for job in jobs]


def submission_error(why: str) -> str:
    """Why Slurm takes no job, and the way out where it takes no more of them."""
    if not SUBMIT_LIMIT_ERROR.search(why):
        return why
    return (
        f"{why.rstrip('.')}\n"
        "  hint: the number of jobs is limited by the account, the QOS or the cluster. Set another "
        "`hydra.launcher.account=` or `hydra.launcher.qos=`, or split the sweep."
    )


def archive_previous(asked: RunTask, entry: Mapping[str, Any]) -> str | None:
    """Sets aside what an earlier attempt left, but for what its node is to judge: an attempt at the very same run that
    is whole, or may go on. The one that stays, whose end is not to be taken for that of the next."""
    record = Record(asked.folder)
    if not record.folder.exists():
        return None
    is_same = attempt_id(record) is not None and entry.get("digest") == asked.digest
    if not (is_same and (record.is_completed() or (record.folder / CHECKPOINT).exists())):
        record.archive_attempt()
    return attempt_id(record)


def format_count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
