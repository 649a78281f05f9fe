"""What did fit into memory in the same sweep, where a batch did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmeter.config.job import NON_MEASUREMENT_KEYS
from epochmeter.shared.record import Record

NON_MEMORY_KEYS = ("batch", "seed", "repeat", "power_limit", "clocks", "fan", "cache", "drop_caches")
"""What may differ between two jobs that, batch for batch, take the same memory."""


def oom_message(message: str, record: Record) -> str:
    """What to say of a run whose memory ran out, as `message` has it, with what fitted beside it and what to do.

    A message that is a whole sentence says already what to do.
    """
    if message.endswith("."):
        return message
    batch = record.job()["batch"]
    what = message if "batch=" in message else f"{message}, with batch={batch}"
    largest = largest_fitting_batch(record)
    if largest is None:
        return f"{what}. Reduce the batch size."
    return f"{what}; the largest batch size that fitted in this sweep is batch={largest}."


def largest_fitting_batch(record: Record) -> int | None:
    """The largest batch of the whole runs beside a record whose job is the same but for that; None without any."""
    asked = _memory_config(record.job())
    jobs = [beside.job() for beside in _sibling_records(record) if beside.is_completed()]
    return max((job["batch"] for job in jobs if _memory_config(job) == asked), default=None)


def _sibling_records(record: Record) -> list[Record]:
    runs = (run for run in record.folder.parent.iterdir() if run.name.isdecimal() and run != record.folder)
    return [Record(run) for run in runs if (run / "job.json").exists()]


def _memory_config(job: Mapping[str, Any]) -> dict[str, Any]:
    """What of a job decides how much memory each sample of a batch takes."""
    return {key: value for key, value in job.items() if key not in (*NON_MEMORY_KEYS, *NON_MEASUREMENT_KEYS, "machine")}
