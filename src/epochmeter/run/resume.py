"""Whether a run goes on from the checkpoint that an earlier start of it has left, and what it keeps of that start."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from epochmeter.config.schema import Job
from epochmeter.shared.record import CHECKPOINT, INTERVALS, Record, has_all_windows, step_count

KEPT_KEYS = ("record_id", "started", "clock")
"""What stays of what is known of a run that goes on; its flags are those of the windows that stay."""


class ResumePoint(NamedTuple):
    """What an earlier start has left to go on from: so many epochs; None, and why, where there is nothing."""

    epochs: int | None = None
    run: Mapping[str, Any] = {}
    reason: str = ""


def find_resume_point(record: Record, job: Job, run: Mapping[str, Any]) -> ResumePoint:
    """What is left in the record of a run that is to be measured as `job` and `run` say.

    A completed run has nothing to go on from, and one that was of another job, or rehearsed what this one does, is
    another run; that is no reason to tell. That it was made on another host is, and that a checkpoint is damaged.
    """
    if not (record.folder / CHECKPOINT).exists() or record.is_completed():
        return ResumePoint()
    try:
        earlier = record.run()
    except (OSError, ValueError, KeyError):
        return ResumePoint(reason="its job.json cannot be read")
    if earlier.get("host") != run["host"]:
        return ResumePoint(reason=f"it was measured on another host, {earlier.get('host')}")
    if any(earlier.get(key) != run[key] for key in ("identity", "rehearsal")):
        return ResumePoint()
    reason = checkpoint_error(record, job, earlier)
    return ResumePoint(reason=reason) if reason else ResumePoint(record.checkpoint()["epochs"], earlier)


def checkpoint_error(record: Record, job: Job, earlier: Mapping[str, Any]) -> str:
    """Why a run cannot go on from its checkpoint: that, or what was measured before, is not all there; or nothing."""
    told = record.checkpoint()
    if told is None or not is_checkpoint_intact(record):
        return "the file is damaged"
    if told["record_id"] != earlier["record_id"]:
        return "it belongs to another run"
    try:
        kept = [window for window in record.windows() if window["epoch"] < told["epochs"]]
        measured = [(window["window"], window["epoch"]) for window in kept]
        rows = len(record.steps()) // len(INTERVALS), len(record.losses())
        lacking = min(rows) < step_count(kept)
    except (OSError, ValueError, KeyError):
        return "the epochs before it cannot be read"
    if lacking or not has_all_windows(measured, told["epochs"], job.evaluate):
        return "epochs before it are missing"
    return ""


def is_checkpoint_intact(record: Record) -> bool:
    """Whether all of the checkpoint is as it was written, by its checksums."""
    try:
        with zipfile.ZipFile(record.folder / CHECKPOINT) as archive:
            return archive.testzip() is None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False
