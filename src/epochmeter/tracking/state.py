"""How a record stands, in MLflow's words; when its run began and ended; and the files of it that are shown."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from epochmeter.results import run_status as states
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import CHECKPOINT, Record

EVENTS = "events.out.tfevents."
"""What the names begin with of the files that TensorBoard reads: an index of the record, and no part of it."""
WRITTEN = ("epochs.jsonl", "steps.bin", "power.csv", "worker.log")
"""What the run itself adds to, and nobody after it."""
SHOWN = {
    states.PLANNED: "SCHEDULED",
    states.RUNNING: "RUNNING",
    states.WHOLE: "FINISHED",
    states.FAILED: "FAILED",
    states.KILLED: "KILLED",
}


def state(record: Record, ended: str | None = None) -> str:
    """The state of the record's run, as `results.run_status` tells it."""
    return SHOWN[states.state(record, ended)]


def said(record: Record) -> str | None:
    """The end that the record itself tells; None while it tells none."""
    told = states.said(record)
    return told and SHOWN[told]


def started_s(record: Record) -> float:
    return datetime.fromisoformat(record.run()["started"]).timestamp()


def ended_s(record: Record) -> float:
    """When the run ended: as it said, or else when it last wrote anything: who closes it for one that died is late."""
    if record.is_whole():
        told = read_json(record.folder / "whole.json")["finished"]
    else:
        told = (record.summary() or {}).get("ended")
    if told:
        return datetime.fromisoformat(told).timestamp()
    written = [path.stat().st_mtime for path in files(record) if path.name in WRITTEN]
    return max(written, default=started_s(record))


def files(record: Record) -> list[Path]:
    """Every file of the record that is written to its end, but for its checkpoint: large, and soon gone.

    What is made of the record, for TensorBoard, is none of it.
    """
    return sorted(
        path
        for path in record.folder.iterdir()
        if path.is_file() and not path.name.startswith((".", EVENTS)) and path.name != CHECKPOINT
    )
