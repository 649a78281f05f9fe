"""How a record stands: under way, or ended, and how."""

from __future__ import annotations

import socket
from datetime import datetime
from pathlib import Path

import psutil

from trainmeter.record import Record, read_json

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CLOCK_SLACK_S = 60.0
"""A host's clock may be set while a run is under way: times nearer than this are the same time."""


def state(record: Record) -> str:
    """The state of the record's run, in MLflow's words; a run that never said how it ended was killed."""
    if record.is_whole():
        return "FINISHED"
    summary = record.summary() or {}
    said = {"failed": "FAILED", "killed": "KILLED"}.get(summary.get("state", ""))
    run = record.run()
    return said or ("RUNNING" if alive(run["host"], run["pid"], run["boot_id"], started_s(record)) else "KILLED")


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


def ended_s(record: Record) -> float:
    """When the run ended: as it said, or else when it last wrote anything."""
    if record.is_whole():
        return datetime.fromisoformat(read_json(record.folder / "whole.json")["finished"]).timestamp()
    return max(path.stat().st_mtime for path in files(record))


def files(record: Record) -> list[Path]:
    """Every file of the record that is written to its end."""
    return sorted(path for path in record.folder.iterdir() if path.is_file() and not path.name.startswith("."))
