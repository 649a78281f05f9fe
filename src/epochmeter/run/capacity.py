"""Limits of the machine: number of processes, and existence of the dataset's folder."""

from __future__ import annotations

import os
from pathlib import Path

from epochmeter.config.errors import input_error
from epochmeter.config.schema import Dataset, Job

PROCESSES_PER_CORE = 16
MAX_AUTO_WORKERS = 4
"""Most DataLoader workers per rank that `workers=auto` starts."""
MIN_PROCESSES = 64
"""Number of processes that is allowed on any machine, so that a sweep may include more workers than cores."""


def check_capacity(job: Job, root: Path) -> None:
    """Refuse a job with too many processes, or with a dataset folder that is missing; raises InputError."""
    check_processes(worker_count(job.workers), job.strategy.ranks or 1, usable_cores())
    check_dataset_exists(job.dataset, root)


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def worker_count(workers: int | str) -> int:
    """Return the number of DataLoader workers per rank; `auto` is one per usable core, at most 4."""
    return min(MAX_AUTO_WORKERS, usable_cores()) if isinstance(workers, str) else workers


def check_processes(workers: int, ranks: int, cores: int) -> None:
    """Refuse too many ranks or DataLoader workers for the number of cores; raises InputError."""
    limit = max(MIN_PROCESSES, PROCESSES_PER_CORE * cores)
    if max(ranks, ranks * workers) <= limit:
        return
    request = f"`workers={workers}`" + (f" for each of {ranks:,} ranks" if ranks > 1 else "")
    if ranks > limit:
        remedy = f"give at most `strategy.ranks={limit}`"
    else:
        remedy = f"give at most `workers={limit // ranks}`; more than one worker per core rarely helps"
    raise input_error(f"{request} is too many: this machine has {cores} cores; each worker needs tens of MB", remedy)


def check_dataset_exists(dataset: Dataset, root: Path) -> None:
    """Refuse a dataset in a user's folder that is not given or does not exist; raises InputError."""
    if dataset.make or not dataset.adopt:
        return
    if dataset.root is None:
        raise input_error(f"`dataset={dataset.name}` needs the folder of your data", "set `dataset.root=/folder`")
    if not (root / Path(dataset.root).expanduser()).is_dir():
        remedy = "mount its storage device, or give another folder"
        raise input_error(f"`dataset.root={dataset.root}` is not a folder", remedy)
