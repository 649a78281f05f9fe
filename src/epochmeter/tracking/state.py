"""A record's status in MLflow's terms, its start and end times, and its files to publish."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from epochmeter.results import run_status as states
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import CHECKPOINT, Record

EVENTS = "events.out.tfevents."
"""Prefix of TensorBoard's event files, which are derived from the record and not part of it."""
RUN_FILES = ("epochs.jsonl", "steps.bin", "power.csv", "worker.log")
"""Files written only during the run."""
MLFLOW_STATUS = {
    states.PLANNED: "SCHEDULED",
    states.RUNNING: "RUNNING",
    states.COMPLETED: "FINISHED",
    states.FAILED: "FAILED",
    states.KILLED: "KILLED",
}


def status_of(record: Record, ended: str | None = None) -> str:
    """Return the run's MLflow status, from `results.run_status`."""
    return MLFLOW_STATUS[states.status_of(record, ended)]


def started_s(record: Record) -> float:
    """Return the run's start, in seconds since 1970."""
    return datetime.fromisoformat(record.run()["started"]).timestamp()


def ended_s(record: Record) -> float:
    """Return the run's end, in seconds since 1970: as recorded, else the last write, as a dead run is closed late."""
    if record.is_completed():
        recorded = read_json(record.folder / "completed.json")["finished"]
    else:
        recorded = (record.summary() or {}).get("ended")
    if recorded:
        return datetime.fromisoformat(recorded).timestamp()
    written = [path.stat().st_mtime for path in complete_files(record) if path.name in RUN_FILES]
    return max(written, default=started_s(record))


def complete_files(record: Record) -> list[Path]:
    """Return the record's complete files, without the checkpoint, which is large and temporary, and derived files."""
    return sorted(
        path
        for path in record.folder.iterdir()
        if path.is_file() and not path.name.startswith((".", EVENTS)) and path.name != CHECKPOINT
    )
