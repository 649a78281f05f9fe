"""State of a run, from its folder: planned, running, and then completed, failed or killed.

It is planned without a job.json, running if the process that measures it is alive, and completed with a completed.json.
Otherwise it failed or was killed according to summary.json, or was killed if its process is gone.
"""

from epochmeter.shared.process_identity import is_alive, recorded_process
from epochmeter.shared.record import Record

PLANNED, RUNNING, COMPLETED, FAILED, KILLED = "planned", "running", "completed", "failed", "killed"


def status_of(record: Record, ended: str | None = None) -> str:
    """Return the state of a run; `ended` is its end as the controller knows it, if the record could not be written."""
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
