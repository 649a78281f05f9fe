"""The checkpoint from which an interrupted run can resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from epochmeter.config.schema import Job
from epochmeter.shared.record import CHECKPOINT, Record

KEPT_KEYS = ("record_id", "started", "clock")
"""Metadata that a resumed run keeps."""


class ResumePoint(NamedTuple):
    """Where a run can resume: the number of completed epochs (None: it cannot), and the interrupted run's metadata.

    `reason` says why the checkpoint cannot be used; it is empty if there is none of this run.
    """

    epochs: int | None = None
    run: Mapping[str, Any] = {}
    reason: str = ""


def find_resume_point(record: Record, job: Job, run: Mapping[str, Any]) -> ResumePoint:
    """Return where a run can resume.

    Without a reason it cannot if it is completed, or if the record is of another configuration, or if only one of the
    two is a rehearsal.
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
    checkpoint = record.checkpoint(verify=True)
    if checkpoint is None:
        return ResumePoint(reason="the file is damaged")
    if checkpoint["record_id"] != earlier["record_id"]:
        return ResumePoint(reason="it belongs to another run")
    epochs = checkpoint["epochs"]
    try:
        windows = [window for window in record.windows() if window["epoch"] < epochs]
        if not record.is_complete(windows, epochs, job.evaluate):
            return ResumePoint(reason="epochs before it are missing")
    except (OSError, ValueError, KeyError):
        return ResumePoint(reason="the epochs before it cannot be read")
    return ResumePoint(epochs, earlier)
