"""Limits of a machine that a job may exceed: the number of processes and the free disk space."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from epochmeter.config.errors import input_error
from epochmeter.config.schema import Dataset, Job, Storage
from epochmeter.datasets.ready import peek_manifest, training_folder

PROCESSES_PER_CORE = 16
MAX_AUTO_WORKERS = 4
"""Most DataLoader workers per rank that `workers=auto` starts."""
MIN_PROCESSES = 64
"""This many are allowed on any number of cores, so that a sweep may include too many."""
BLOCK_BYTES = 4096
"""Smallest disk space of a file."""


def check_capacity(job: Job, root: Path) -> None:
    """Refuse a job that this machine cannot hold: too many processes, a dataset too large, or one that is not there.

    Raises:
        InputError: States the need of the job and the limit of the machine.
    """
    check_processes(worker_count(job.workers), job.strategy.ranks or 1, usable_cores())
    check_dataset_exists(job.dataset, root)
    check_dataset_fits(job.dataset, job.storage, root)


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def worker_count(workers: int | str) -> int:
    """Return the DataLoader workers per rank: a given number unchanged; for `auto` one per usable core, at most 4."""
    return min(MAX_AUTO_WORKERS, usable_cores()) if isinstance(workers, str) else workers


def check_processes(workers: int, ranks: int, cores: int) -> None:
    """Refuse too many ranks and DataLoader workers for the number of cores; InputError."""
    most = max(MIN_PROCESSES, PROCESSES_PER_CORE * cores)
    if max(ranks, ranks * workers) > most:
        what = f"`workers={workers}`" + (f" for each of {ranks:,} ranks" if ranks > 1 else "")
        raise input_error(
            f"{what} is too many: this machine has {cores} cores, and each worker is a process that needs tens of MB",
            f"give at most workers={max(0, most // ranks)}; more than one worker per core rarely helps"
            if most >= ranks
            else f"give at most strategy.ranks={most}",
        )


def check_dataset_exists(dataset: Dataset, root: Path) -> None:
    """Refuse a dataset that is a folder of one's own, and is not there; InputError."""
    if dataset.make or not dataset.adopt:
        return
    if dataset.root is None:
        raise input_error(f"dataset={dataset.name} is a folder of your own", "give it: dataset.root=/folder")
    if not (root / Path(dataset.root).expanduser()).is_dir():
        how = "mount its medium, or give a folder of samples"
        raise input_error(f"`dataset.root={dataset.root}` is no folder", how)


def check_dataset_fits(dataset: Dataset, storage: Storage, root: Path) -> None:
    """Refuse a dataset that has yet to be made and is larger than the free disk space; InputError."""
    needed, folder = space_bytes(dataset), training_folder(dataset, storage, root)
    if needed is None or folder is None or peek_manifest(dataset, storage, root):
        return
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise input_error(
            f"dataset={dataset.name} needs {needed / 1e9:,.1f} GB; {folder.parent} has {free / 1e9:,.1f} GB free",
            "free disk space, name another disk by dataset.root=, or use a smaller dataset",
        )


def space_bytes(dataset: Dataset) -> int | None:
    """Return the least disk space that a dataset needs, in bytes; None if it is not known beforehand."""
    if dataset.space_bytes is not None:
        return dataset.space_bytes
    if dataset.count is not None and "file_bytes" in dataset.spec:
        return dataset.count * ((dataset.spec["file_bytes"] or 0) + BLOCK_BYTES)
    if dataset.count is not None and dataset.length is not None:  # a line of digits for each pair
        return dataset.count * 4 * dataset.length
    return None
