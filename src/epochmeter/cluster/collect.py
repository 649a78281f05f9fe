"""Collect and publish the results of runs on a cluster's nodes."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from epochmeter.cluster.slurm_energy import check_slurm_energy
from epochmeter.cluster.submissions import Submission, SubmissionLog, has_started, log_of
from epochmeter.config.installation import display_path
from epochmeter.config.request import RunRequest
from epochmeter.config.schema import Job
from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal
from epochmeter.console.tables import state_name
from epochmeter.machine import slurm
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.run_info import read_run
from epochmeter.results.run_result import STOPPED, RunResult
from epochmeter.results.run_status import FAILED, KILLED
from epochmeter.run.finish import remove_empty_folders, set_links
from epochmeter.run.record_end import write_summary
from epochmeter.shared.problem import CODES, Place, Problem, problem_of, read_problem
from epochmeter.shared.record import Record
from epochmeter.shared.record_files import read_document
from epochmeter.tracking import queue
from epochmeter.tracking.client import LONG_TIMEOUT_S, destination_of, load_mlflow
from epochmeter.tracking.publisher import make_tracker

PUBLISH_LIMIT_S = 300.0  # for one run: a server is slow while many clients publish
CONSEQUENCES = {
    "NODE_FAIL": CODES,
    "OUT_OF_MEMORY": ("killed", "stopped"),
    "TIMEOUT": ("stopped",),
    "DEADLINE": ("stopped",),
    "PREEMPTED": ("stopped",),
}
"""Slurm's job state -> codes of the failures of a run that follow from it."""
SUBMITIT = "submitit "  # begins the lines of submitit in the log of a job
MAX_LOG = 300  # characters of the end of a log that are shown


def collect_result(request: RunRequest, terminal: Terminal) -> RunResult:
    """Return and publish the result of a run on a node: from its record, or else from Slurm's job state."""
    result = RunResult(request.number, request.overrides, request.of_sweep, request.folder)
    record, log = Record(request.folder), log_of(request.folder.parent)
    submission = log[request.number]
    if submission.earlier:
        result.set_completed_earlier(record)
        return result
    if has_started(record, submission):
        try:
            if RunFolder(record.folder).recorded_end is None:  # its node failed, or its process was killed
                result.set_failed(job_problem(submission))
                job, run = Job.from_dict(record.job()), read_run(record)
                write_summary(record, job, run, result)
            else:
                name_cause(record, submission)
            check_slurm_energy(record, submission.job)
            result.set_from_record(record)
        except READ_ERRORS as error:
            message = f"its record cannot be read: {problem_of(error).message}"
            hint = "run the same command again to measure it again"
            result.set_failed(Problem(message, hint, "node", Place(file=str(record.folder), host=submission.node)))
        else:
            publish_result(record, request.job.tracking.to_dict(), result)
    elif record.is_completed() and submission.state == "COMPLETED":
        # The node has checked that it would measure the same.
        result.set_completed_earlier(record)
    else:
        result.set_failed(not_started_problem(request.number, log))
        remove_empty_folders(request)
    log.update(request.number, reported=True)
    terminal.info(f"run {request.number} {state_name(result)}" + (f" on {submission.node}" if submission.node else ""))
    return result


def publish_result(record: Record, tracking: Mapping[str, Any], result: RunResult) -> None:
    """Publish the run, whose node ran with `tracking=none`; it stays in the queue until it is published."""
    run = replace(read_run(record), of_sweep=True)
    record.describe({**record.job(), "tracking": redact_tree(tracking)}, run.document())
    queue.enqueue(record, run.record_id)
    if destination_of(tracking):
        load_mlflow(LONG_TIMEOUT_S)
    tracker = make_tracker(record, **tracking)
    set_links(tracker.close(PUBLISH_LIMIT_S, ended=result.state), tracker.exported, result)


def name_cause(record: Record, submission: Submission) -> None:
    """Record the end of a run's job by Slurm as the cause of the failure that the run has recorded itself.

    It could not know that cause: if a node fails, the script on another one ends with an error of its connection.
    """
    summary = record.summary() or {}
    failure = read_problem(summary.get("failure"))
    if failure is None or failure.code not in CONSEQUENCES.get(submission.state, ()):
        return
    cause = job_problem(submission)
    if failure.code != cause.code:
        cause = cause._replace(message=f"{cause.message}, and the run ended: {failure.message}")
        state = KILLED if cause.code == STOPPED else FAILED
        record.write_summary({**summary, "state": state, "failure": cause.to_fields()}, read_run(record).identity)


def job_problem(submission: Submission, context: str = "") -> Problem:
    """Return the problem of a run's job, by the state in which Slurm ended it."""
    return slurm.end_problem(slurm.SlurmJob(submission.job, submission.state, submission.node), context)


def not_started_problem(number: int, log: SubmissionLog) -> Problem:
    """Return the problem of a job without a record: Slurm's job state, why its run was refused, or the end of its log.

    The log has the output of other programs, as of the node's shell, which is shown as it is.
    """
    submission = log[number]
    if submission.state in slurm.PROBLEMS and submission.state != slurm.GONE:
        return job_problem(submission, "before the run began, ")
    slurm_job = f"(Slurm job {submission.job}: {submission.state})"
    output = log.folder / f"{submission.job}_0_log.out"
    where = Place(file=str(output), host=submission.node or "")
    with suppress(*READ_ERRORS):
        if problem := read_problem(read_document(log.refusal(number))):
            return problem._replace(message=f"{problem.message} {slurm_job}", code="job", where=where)
    if not output.exists():
        hint = f"share {display_path(log.folder)} with its node"
        return Problem(f"it ended without a log {slurm_job}", hint, "job", where)
    lines = output.read_text(errors="replace").splitlines()
    text = "\n".join(line for line in lines if not line.startswith(SUBMITIT)).strip()[-MAX_LOG:]
    return Problem(f"{text or 'no output'} {slurm_job}", f"see its log, {display_path(output)}", "job", where)
