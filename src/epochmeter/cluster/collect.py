"""Collect and publish the results of runs on a cluster's nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochmeter.cluster.submissions import SubmissionLog, has_started
from epochmeter.config.job import RunRequest, recorded_job
from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal, display_path
from epochmeter.console.tables import state_name
from epochmeter.machine import slurm
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import recorded_status
from epochmeter.run.finish import build_summary, note_links
from epochmeter.run.plan import remove_empty_folders
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.tracking.client import LONG_TIMEOUT_S, destination_of, load_mlflow
from epochmeter.tracking.publisher import make_tracker

PUBLISH_LIMIT_S = 300.0
"""Time limit for publishing one run: a server is slow while many clients publish."""

FAILURES_BY_STATE = {
    "NODE_FAIL": ("node", "its node {node} failed"),
    "TIMEOUT": ("timeout", "it exceeded its time limit on {node}; raise `hydra.launcher.time`"),
    "DEADLINE": ("timeout", "it exceeded its deadline"),
    "OUT_OF_MEMORY": ("oom", "it exceeded its memory limit on {node}; raise `hydra.launcher.mem`"),
    "CANCELLED": ("stopped", "it was canceled"),
    "PREEMPTED": ("stopped", "it was preempted by another job"),
    "BOOT_FAIL": ("node", "its node {node} did not start"),
    slurm.GONE: ("node", "Slurm no longer lists it, and it wrote no result"),
}
"""Slurm's job state -> failure and its reason, for a run whose record has no end."""


def collect_result(order: RunRequest, terminal: Terminal) -> RunResult:
    """Return and publish the result of a run on a node: from its record, or else from Slurm's job state."""
    outcome = RunResult(order.number, order.overrides, order.of_sweep, order.folder)
    record, ledger = Record(order.folder), SubmissionLog(order.folder.parent)
    entry = ledger[order.number]
    if entry["earlier"]:
        return outcome.was_completed(record)
    if not has_started(record, entry):
        if (
            record.is_completed() and entry["state"] == "COMPLETED"
        ):  # the node has checked that it would measure the same
            outcome.was_completed(record)
        else:
            outcome.set_failed(*not_started_error(entry, ledger.folder))
            remove_empty_folders(order)
    else:
        if recorded_status(record) is None:
            record_failure(record, entry, outcome)
        outcome.update_from_record(record)
        publish(record, order.job.tracking.to_dict(), outcome)
    ledger.update({order.number: {"reported": True}})
    terminal.info(f"run {order.number} {state_name(outcome)}" + (f" on {entry['node']}" if entry["node"] else ""))
    return outcome


def publish(record: Record, tracking: Mapping[str, Any], outcome: RunResult) -> None:
    """Publish the run; nothing is measured here, so the time limit is longer than during a run.

    The node ran with `tracking=none`. Its record gets the sweep's tracking keys, and the run stays in the publish queue
    until it is published.
    """
    run = {**record.run(), "of_sweep": True}
    record.describe({**record.job(), "tracking": redact_tree(tracking)}, run)
    queue.enqueue(record, run["record_id"])
    if destination_of(tracking):
        load_mlflow(LONG_TIMEOUT_S)
    note_links(make_tracker(record, **tracking).close(PUBLISH_LIMIT_S, ended=outcome.state), outcome)


def record_failure(record: Record, entry: Mapping[str, Any], outcome: RunResult) -> None:
    """Write the summary of a run that could not write it: its node failed, or its process was killed."""
    kind, why = FAILURES_BY_STATE.get(entry["state"], ("killed", "its process ended without an error message"))
    outcome.set_failed(kind, f"{why.format(**entry)} (Slurm job {entry['job']}: {entry['state']})")
    job, run = recorded_job(record.job()), record.run()
    record.write_summary(build_summary(record, job, run, outcome), run["identity"], run.get("configuration"))


def not_started_error(entry: Mapping[str, Any], logs: Path) -> tuple[str, str]:
    """Return failure and reason of a job without a record: from Slurm's job state, or the last error in its log."""
    job, state = entry["job"], entry["state"]
    if state in FAILURES_BY_STATE and state != slurm.GONE:
        kind, why = FAILURES_BY_STATE[state]
        return kind, f"before the run began, {why.format(**entry)} (Slurm job {job}: {state})"
    log = logs / f"{job}_0_log.out"
    if not log.exists():
        return (
            "job",
            f"job {job} ended ({state}) without a log\n  hint: check that {display_path(logs)} is shared with its node",
        )
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("submitit ")] or ["no output"]
    errors = [place for place, line in enumerate(lines) if line.startswith("error: ")]
    last = " ".join(line.strip() for line in lines[errors[0] :]) if errors else lines[-1]
    return "job", f"{last} (Slurm job {job}: {state})\n  hint: see its log, {display_path(log)}"
