"""How a record stands: under way, or ended, and how."""

from __future__ import annotations

import socket
from datetime import datetime
from pathlib import Path

import psutil

from trainmeter.record import CHECKPOINT, Record, read_json

EVENTS = "events.out.tfevents."
"""What the names begin with of the files that TensorBoard reads: an index of the record, and no part of it."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CLOCK_SLACK_S = 60.0
"""A host's clock may be set while a run is under way: times nearer than this are the same time."""


def state(record: Record, ended: str | None = None) -> str:
    """The state of the record's run, in MLflow's words; a run that never said how it ended was killed.

    `ended` is the end as the steward knows it (whole, failed or killed), for a record that could not be written.
    """
    told = said(record)
    if told:
        return told
    run = record.run()
    if ended is None and alive(run["host"], run["pid"], run["boot_id"], begun_s(record)):
        return "RUNNING"
    if record.summary():  # it was measured to its end, which was never written: the record is not whole
        return "FAILED"
    return "KILLED" if ended in (None, "killed") else "FAILED"


def said(record: Record) -> str | None:
    """The end that the record itself tells, in MLflow's words; None while it tells none."""
    if record.is_whole():
        return "FINISHED"
    summary = record.summary() or {}
    return {"failed": "FAILED", "killed": "KILLED"}.get(summary.get("state", ""))


def alive(host: str, pid: int, boot_id: str | None, since_s: float) -> bool:
    """Whether the process that measures a run is there. On another host one cannot tell, and it is believed to be."""
    if host != socket.gethostname():
        return True
    if boot_id and BOOT_ID.exists() and boot_id != BOOT_ID.read_text().strip():
        return False
    try:
        process = psutil.Process(pid)
        reused = process.create_time() > since_s + CLOCK_SLACK_S
        return not reused and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def started_s(record: Record) -> float:
    return datetime.fromisoformat(record.run()["started"]).timestamp()


def begun_s(record: Record) -> float:
    """When the process began that measures it: later than the run where that was resumed."""
    run = record.run()
    return datetime.fromisoformat([run, *run.get("resumed", [])][-1]["started"]).timestamp()


def ended_s(record: Record) -> float:
    """When the run ended: as it said, or else when it last wrote anything."""
    if record.is_whole():
        return datetime.fromisoformat(read_json(record.folder / "whole.json")["finished"]).timestamp()
    return max(path.stat().st_mtime for path in files(record))


def files(record: Record) -> list[Path]:
    """Every file of the record that is written to its end, but for its checkpoint: large, and soon gone.

    What is made of the record, for TensorBoard, is none of it.
    """
    return sorted(
        path
        for path in record.folder.iterdir()
        if path.is_file() and not path.name.startswith((".", EVENTS)) and path.name != CHECKPOINT
    )
