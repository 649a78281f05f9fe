"""Limits of a machine that a job may exceed: the number of processes and the free disk space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochmeter.config.errors import input_error
from epochmeter.datasets.ready import known, place

PROCESSES_PER_CORE = 16
MAX_AUTO_WORKERS = 4
"""Most DataLoader workers per rank that `workers=auto` starts."""
LEAST_PROCESSES = 64
"""This many are allowed on any number of cores, so that a sweep may include too many."""
BLOCK_BYTES = 4096
"""Smallest disk space of a file."""


def check(job: Mapping[str, Any], root: Path) -> None:
    """Refuse a job that this machine cannot hold: too many processes, a dataset too large, or one that is not there.

    Raises:
        InputError: States the need of the job and the limit of the machine.
    """
    check_processes(worker_count(job["workers"]), job["strategy"].get("ranks") or 1, usable_cores())
    check_there(job["dataset"], root)
    check_room(job["dataset"], job["storage"], root)


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def worker_count(workers: int | str) -> int:
    """Return the DataLoader workers per rank: a given number unchanged; for `auto` one per usable core, at most 4."""
    return min(MAX_AUTO_WORKERS, usable_cores()) if isinstance(workers, str) else workers


def check_processes(workers: int, ranks: int, cores: int) -> None:
    """Refuse too many ranks and DataLoader workers for the number of cores; InputError."""
    most = max(LEAST_PROCESSES, PROCESSES_PER_CORE * cores)
    if max(ranks, ranks * workers) > most:
        what = f"`workers={workers}`" + (f" for each of {ranks:,} ranks" if ranks > 1 else "")
        raise input_error(
            f"{what} is too many: this machine has {cores} cores, and each worker is a process that needs tens of MB",
            f"give at most workers={max(0, most // ranks)}; more than one worker per core rarely helps"
            if most >= ranks
            else f"give at most strategy.ranks={most}",
        )


def check_there(dataset: Mapping[str, Any], root: Path) -> None:
    """Refuse a dataset that is a folder of one's own, and is not there; InputError."""
    if dataset.get("make") or not dataset.get("adopt"):
        return
    if dataset.get("root") is None:
        raise input_error(f"dataset={dataset['name']} is a folder of your own", "give it: dataset.root=/folder")
    if not (root / Path(dataset["root"]).expanduser()).is_dir():
        raise input_error(
            f"`dataset.root={dataset['root']}` is no folder", "mount its medium, or give a folder of samples"
        )


def check_room(dataset: Mapping[str, Any], storage: Mapping[str, Any], root: Path) -> None:
    """Refuse a dataset that has yet to be made and is larger than the free disk space; InputError."""
    needed, folder = space_bytes(dataset), place(dict(dataset), dict(storage), root)
    if needed is None or folder is None or known(dict(dataset), dict(storage), root):
        return
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise input_error(
            f"dataset={dataset['name']} needs {needed / 1e9:,.1f} GB; {folder.parent} has {free / 1e9:,.1f} GB free",
            "free disk space, name another disk by dataset.root=, or use a smaller dataset",
        )


def space_bytes(dataset: Mapping[str, Any]) -> int | None:
    """Return the least disk space that a dataset needs, in bytes; None if it is not known beforehand."""
    if dataset.get("space_bytes") is not None:
        return int(dataset["space_bytes"])
    if "count" in dataset and "file_bytes" in dataset:
        return int(dataset["count"]) * ((dataset["file_bytes"] or 0) + BLOCK_BYTES)
    if "count" in dataset and "words" in dataset:  # a line of digits for each pair
        return int(dataset["count"]) * 4 * int(dataset["length"])
    return None
