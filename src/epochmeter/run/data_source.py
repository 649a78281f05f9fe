"""What an epoch's samples come from: the page cache as it was asked for, and what really reached the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from epochmeter.config.schema import Job
from epochmeter.machine.disk import Disk, ReadCounters, describe, disk_of, read_counters
from epochmeter.machine.page_cache import Residency, drop_caches, prepare_cache, residency_warning

Notify = Callable[[str], object]


class DataSource(Protocol):
    """Where samples come from, looked at between windows and at their borders."""

    metadata: dict[str, Any]
    """What the record keeps of it."""

    def prepare(self, epoch: int) -> list[str]:
        """Brings the page cache to what the job asks for before an epoch; what there is to say of it."""

    def mark(self) -> None:
        """Looks at the disk's counters, just outside a window."""

    def window(self, name: str, seconds: float) -> dict[str, float]:
        """The metrics of the window that was closed last, an epoch or an evaluation; what is not known is absent."""


class FileSource:
    """A dataset's files: read from a disk, but for what the page cache holds of them."""

    def __init__(self, folder: Path, cache: str, drop_caches: bool, say: Notify) -> None:
        self._folder, self._cache, self._drop, self._say = folder, cache, drop_caches, say
        self._disk: Disk = disk_of(folder)
        self._residency = Residency(folder)
        self._before: float | None = None
        self._readings: list[ReadCounters | None] = []
        self.metadata = dict(describe(self._disk))

    def prepare(self, epoch: int) -> list[str]:
        if self._cache == "warm" and epoch == 0:
            self._say(f"Reading {self._folder} into the page cache.")
        asked = prepare_cache(self._cache, self._folder, epoch)
        self._before = self._residency.fraction()
        if self._drop and asked == "cold":
            drop_caches()  # last: to look at a file brings its inode back
        notes = residency_warning(asked, self._before, self._disk.medium)
        if epoch == 0:
            if self._before is None:
                notes.append(f"page-cache residency is unknown: {self._residency.reason}")
            if self._disk.reason:
                notes.append(f"disk reads are not counted: {self._disk.reason}")
        return notes

    def mark(self) -> None:
        self._readings = [*self._readings[-1:], read_counters(self._disk)]

    def window(self, name: str, seconds: float) -> dict[str, float]:
        read = read_between(*self._readings)
        if name != "epoch":
            return {"read_bytes": read.bytes} if read else {}
        of_disk = (
            {
                "read_bytes": read.bytes,
                "read_iops": read.count / seconds,
                "read_bytes_per_s": read.bytes / seconds,
            }
            if read
            else {}
        )
        shares = {"page_cache_residency_before": self._before, "page_cache_residency_after": self._residency.fraction()}
        return {**of_disk, **{key: share for key, share in shares.items() if share is not None}}


def read_between(before: ReadCounters | None, after: ReadCounters | None) -> ReadCounters | None:
    """What a disk read between two looks at it; None where it was not there, or came back in between."""
    if before is None or after is None or after.count < before.count or after.bytes < before.bytes:
        return None
    return ReadCounters(after.count - before.count, after.bytes - before.bytes)


class InMemorySource:
    """A dataset that is in memory before an epoch begins: no storage plays a part in it."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {"medium": "memory"}

    def prepare(self, epoch: int) -> list[str]:
        return []

    def mark(self) -> None:
        pass

    def window(self, name: str, seconds: float) -> dict[str, float]:
        return {}


def open_data_source(job: Job, folder: str | None, say: Notify) -> DataSource:
    """What a job's samples come from, its dataset being ready in `folder`, None where it has no files; `say` tells a
    person what takes long."""
    if folder is None or is_in_memory(job):
        return InMemorySource()
    return FileSource(Path(folder), job.cache.name, job.drop_caches, say)


def is_in_memory(job: Job) -> bool:
    """Whether nothing is read from a storage while a job trains."""
    return job.synthetic_batches or job.dataset.layout != "files"
