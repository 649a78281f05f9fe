"""State of a run, from its folder: planned, running, and then completed, failed or killed.

planned   its folder exists without a job.json
running   job.json exists, and the process that measures it is alive
completed completed.json exists
failed    according to summary.json
killed    according to summary.json; or there is no end, and the process is gone
"""

from __future__ import annotations

from epochmeter.shared.process_identity import is_alive, recorded_process
from epochmeter.shared.record import Record

PLANNED, RUNNING, COMPLETED, FAILED, KILLED = "planned", "running", "completed", "failed", "killed"


def status_of(record: Record, ended: str | None = None) -> str:
    """Return the state of the record's run; a run without an end whose process is gone was killed.

    `ended` is the end as the controller knows it (completed, failed or killed), for a record that could not be written.
    """
    if not (record.folder / "job.json").exists():
        return PLANNED
    recorded = recorded_status(record)
    if recorded:
        return recorded
    run = record.run()
    if ended is None and is_alive(recorded_process(run)):
        return RUNNING
    if record.summary():  # measured completely, but `completed.json` could not be written
        return FAILED
    return KILLED if ended in (None, KILLED) else FAILED


def recorded_status(record: Record) -> str | None:
    """Return the end in the record itself; None if there is none."""
    if record.is_completed():
        return COMPLETED
    summary_state = (record.summary() or {}).get("state")
    return summary_state if summary_state in (FAILED, KILLED) else None
