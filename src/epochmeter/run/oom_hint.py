"""The message of a run that ran out of memory: which batch size fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmeter.config.job import NON_MEASUREMENT_KEYS
from epochmeter.shared.record import Record

NON_MEMORY_KEYS = ("batch", "seed", "repeat", "power_limit", "clocks", "fan", "cache", "drop_caches", "machine")
"""Keys that do not change the memory needed per sample."""


def oom_message(message: str, record: Record) -> str:
    """Return the error with the largest batch size that fitted in the same sweep, if any did."""
    largest = largest_fitting_batch(record)
    if largest is None:
        return message
    what, *hint = message.split("\n", 1)
    fitted = f"{what.rstrip('.')}; the largest batch size that fitted in this sweep is batch={largest}."
    return "\n".join([fitted, *hint])


def largest_fitting_batch(record: Record) -> int | None:
    """Return the largest batch size of completed runs of the same sweep that need the same memory per sample."""
    siblings = (Record(path.parent) for path in record.folder.parent.glob("*/job.json"))
    jobs = [sibling.job() for sibling in siblings if sibling.folder.name.isdecimal() and sibling.is_completed()]
    same = _memory_keys(record.job())
    return max((job["batch"] for job in jobs if _memory_keys(job) == same), default=None)


def _memory_keys(job: Mapping[str, Any]) -> Mapping[str, object]:
    return {key: value for key, value in job.items() if key not in (*NON_MEMORY_KEYS, *NON_MEASUREMENT_KEYS)}
