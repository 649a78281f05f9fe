"""The source of an epoch's samples: page cache and disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from epochmeter.config.schema import Job
from epochmeter.machine.disk import Disk, ReadCounters, describe, disk_of, read_counters
from epochmeter.machine.page_cache import Residency, drop_caches, prepare_cache, residency_warning

Notify = Callable[[str], object]
NO_DATA = "the files that the script reads are not known: `measure.data=` names them"


class DataSource:
    """Samples in memory, so that no storage is involved, or unknown.

    Attributes:
        metadata: Its description in the record.
        devices: The block devices that count its reads.
    """

    devices: tuple[str, ...] = ()

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self.metadata = metadata

    def prepare(self, epoch: int) -> list[str]:
        """Bring the page cache into the configured state before an epoch, and return notes on it."""
        return []

    def mark(self) -> None:
        """Read the disk's counters, just outside of a window."""

    def window(self, name: str, seconds: float) -> dict[str, float]:
        """Return the metrics of the window between the last two marks: `epoch` or `val`, and its duration."""
        return {}


class FileSource(DataSource):
    """The files of a dataset, on a disk and partly in the page cache."""

    def __init__(self, folder: Path, cache: str, drop_caches: bool, say: Notify) -> None:
        self._folder, self._cache, self._drop, self._say = folder, cache, drop_caches, say
        self._disk: Disk = disk_of(folder)
        self.devices = self._disk.devices
        self._residency = Residency(folder)
        self._before: float | None = None
        self._readings: list[ReadCounters | None] = []
        super().__init__(describe(self._disk))

    def prepare(self, epoch: int) -> list[str]:
        if self._cache == "warm" and epoch == 0:
            self._say(f"Reading {self._folder} into the page cache.")
        state = prepare_cache(self._cache, self._folder, epoch)
        self._before = self._residency.fraction()
        if self._drop and state == "cold":
            drop_caches()  # last, because measuring the residency loads inodes
        notes = residency_warning(state, self._before, self._disk.medium)
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
        metrics: dict[str, float] = {}
        if read:
            metrics["read_bytes"] = read.bytes
        if name != "epoch":
            return metrics
        if read:
            metrics |= {"read_iops": read.count / seconds, "read_bytes_per_s": read.bytes / seconds}
        fractions = {
            "page_cache_residency_before": self._before,
            "page_cache_residency_after": self._residency.fraction(),
        }
        return metrics | {key: fraction for key, fraction in fractions.items() if fraction is not None}


def read_between(before: ReadCounters | None, after: ReadCounters | None) -> ReadCounters | None:
    """Return the reads of a disk between two readings; None if it was absent or was connected again in between."""
    if before is None or after is None or after.count < before.count or after.bytes < before.bytes:
        return None
    return ReadCounters(after.count - before.count, after.bytes - before.bytes)


def open_data_source(job: Job, folder: str | None, say: Notify) -> DataSource:
    """Return the source of a job's samples; `folder` is that of the prepared dataset, None if it has no files."""
    if job.measure.command:
        data = job.measure.data
        return FileSource(Path(data), job.cache, job.drop_caches, say) if data else DataSource({"reason": NO_DATA})
    if folder is None or is_in_memory(job):
        return DataSource({"medium": "memory"})
    return FileSource(Path(folder), job.cache, job.drop_caches, say)


def is_in_memory(job: Job) -> bool:
    """Return whether training reads nothing from storage."""
    return job.synthetic_batches or job.dataset.layout != "files"
