"""Collect and publish the results of runs on a cluster's nodes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochmeter.cluster.submissions import Submission, SubmissionLog, has_started
from epochmeter.config.installation import display_path
from epochmeter.config.job import recorded_job
from epochmeter.config.request import RunRequest
from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal
from epochmeter.console.tables import state_name
from epochmeter.machine import slurm
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import recorded_status
from epochmeter.run.finish import remove_empty_folders, set_links, write_summary
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.tracking.client import LONG_TIMEOUT_S, destination_of, load_mlflow
from epochmeter.tracking.publisher import make_tracker

PUBLISH_LIMIT_S = 300.0  # for one run: a server is slow while many clients publish
FAILURES_BY_STATE = {
    "NODE_FAIL": ("node", "its node {node} failed"),
    "BOOT_FAIL": ("node", "its node {node} did not start"),
    "TIMEOUT": ("timeout", "it exceeded its time limit on {node}; raise `hydra.launcher.time`"),
    "OUT_OF_MEMORY": ("oom", "it exceeded its memory limit on {node}; raise `hydra.launcher.mem`"),
    "CANCELLED": ("stopped", "it was canceled"),
    "PREEMPTED": ("stopped", "it was preempted by another job"),
    slurm.GONE: ("node", "Slurm no longer lists it, and it wrote no result"),
}
"""Slurm's job state -> failure and its reason, for a run whose record has no end."""


def collect_result(request: RunRequest, terminal: Terminal) -> RunResult:
    """Return and publish the result of a run on a node: from its record, or else from Slurm's job state."""
    result = RunResult(request.number, request.overrides, request.of_sweep, request.folder)
    record, log = Record(request.folder), SubmissionLog(request.folder.parent)
    entry = log[request.number]
    if entry.earlier:
        result.set_completed_earlier(record)
        return result
    if has_started(record, entry):
        if recorded_status(record) is None:  # its node failed, or its process was killed
            kind, reason = FAILURES_BY_STATE.get(entry.state, ("killed", "its process ended without an error message"))
            result.set_failed(kind, f"{reason.format(**entry._asdict())} (Slurm job {entry.job}: {entry.state})")
            job, run = recorded_job(record.job()), record.run()
            write_summary(record, job, run, result)
        result.set_from_record(record)
        publish_result(record, request.job.tracking.to_dict(), result)
    elif record.is_completed() and entry.state == "COMPLETED":  # its node has checked that it would measure the same
        result.set_completed_earlier(record)
    else:
        result.set_failed(*not_started_error(entry, log.folder))
        remove_empty_folders(request)
    log.update(request.number, reported=True)
    terminal.info(f"run {request.number} {state_name(result)}" + (f" on {entry.node}" if entry.node else ""))
    return result


def publish_result(record: Record, tracking: Mapping[str, Any], result: RunResult) -> None:
    """Publish the run, whose node ran with `tracking=none`; it stays in the queue until it is published."""
    run = {**record.run(), "of_sweep": True}
    record.describe({**record.job(), "tracking": redact_tree(tracking)}, run)
    queue.enqueue(record, run["record_id"])
    if destination_of(tracking):
        load_mlflow(LONG_TIMEOUT_S)
    set_links(make_tracker(record, **tracking).close(PUBLISH_LIMIT_S, ended=result.state), result)


def not_started_error(entry: Submission, logs: Path) -> tuple[str, str]:
    """Return failure and reason of a job without a record: from Slurm's job state, or the last error in its log."""
    slurm_job = f"(Slurm job {entry.job}: {entry.state})"
    if entry.state in FAILURES_BY_STATE and entry.state != slurm.GONE:
        kind, reason = FAILURES_BY_STATE[entry.state]
        return kind, f"before the run began, {reason.format(**entry._asdict())} {slurm_job}"
    log = logs / f"{entry.job}_0_log.out"
    if not log.exists():
        return "job", f"it ended without a log {slurm_job}\n  hint: share {display_path(logs)} with its node"
    text = "\n".join(line for line in log.read_text(errors="replace").splitlines() if not line.startswith("submitit "))
    message = " ".join(text[max(text.find("error: "), 0) :].split()) if "error: " in text else text.strip()[-300:]
    return "job", f"{message or 'no output'} {slurm_job}\n  hint: see its log, {display_path(log)}"
