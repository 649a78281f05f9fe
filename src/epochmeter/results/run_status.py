"""The state of a run, read from its folder: planned, running, and then whole, failed or killed.

planned   its folder is made, and no job.json tells of a run in it
running   job.json tells of it, and the process that measures it is there
whole     whole.json: it was measured to its end
failed    summary.json says so
killed    summary.json says so; or no end was told, and the process is gone
"""

from __future__ import annotations

from epochmeter.machine.process_identity import Process, lives
from epochmeter.shared.record import Record

PLANNED, RUNNING, WHOLE, FAILED, KILLED = "planned", "running", "whole", "failed", "killed"


def state(record: Record, ended: str | None = None) -> str:
    """The state of the record's run; one that never said how it ended was killed.

    `ended` is the end as the steward knows it (whole, failed or killed), for a record that could not be written.
    """
    if not (record.folder / "job.json").exists():
        return PLANNED
    told = said(record)
    if told:
        return told
    if ended is None and lives(process_of(record)):
        return RUNNING
    if record.summary():  # it was measured to its end, which was never written: the record is not whole
        return FAILED
    return KILLED if ended in (None, KILLED) else FAILED


def said(record: Record) -> str | None:
    """The end that the record itself tells; None while it tells none."""
    if record.is_whole():
        return WHOLE
    told = (record.summary() or {}).get("state")
    return told if told in (FAILED, KILLED) else None


def process_of(record: Record) -> Process:
    """The process that measures the run, or did."""
    run = record.run()
    return Process(run["host"], run["pid"], run["boot_id"], run.get("began"), run.get("numbers"))
