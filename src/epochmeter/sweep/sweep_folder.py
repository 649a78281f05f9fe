"""A sweep's folder: `multirun/<date_time>-<command hash>`, with one run folder per number.

points.json   the overrides of each run by number; written before the first run
0, 1, ...     the run folders
slurm         what was submitted to a cluster, if anything
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.job import affects_measurement, hash_value
from epochmeter.config.secrets import redact_tree
from epochmeter.results.reuse import REFERENCE, referenced_record
from epochmeter.shared.atomic_files import lock_folder, read_json, write_json

SAMPLING_KEYS = ("sweep.sample", "sweep.order", "sweep.seed")
"""Keys that do not affect a run's measurement, but which points of a grid are run, and their numbers."""
REPEAT, REPEATS = "repeat", "sweep.repeats"
RECOMMENDED_REPEATS = "sweep.repeats=3 sweep.order=random"
"""Recommended repeats: rounds of all configurations, so that drift does not appear as a difference between them."""
SLURM_OVERRIDE = "hydra/launcher=slurm"
"""Runs on cluster nodes: the sweep is the same from all login nodes."""
POINTS_FILE = "points.json"
SEARCH_FILE = "search.json"
"""File with the objectives of a search."""
SUBMISSIONS_FILE = "slurm/jobs.json"
AGAIN_MARKER = ".again"
"""File that marks a sweep started with `sweep.again=true`, also for a later command that resumes it."""
TIME_FORMAT = "%Y-%m-%d_%H-%M-%S"
NAME_PATTERN = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:\.(\d+))?-")
"""Start of folder names: the time, and a counter within the second."""
_held_locks: list[int] = []
"""Locks of the folders that this process writes to, held until it ends."""
_created_folders: list[Path] = []
"""Folders that this process has created."""


def open_sweep_folder(multirun: Path, now: datetime, command: Sequence[str], many: bool, again: bool) -> Path:
    """Return the folder for this command's runs, created and locked for this process.

    Unless everything is measured `again`, the newest folder of the same command on this host that no other process uses
    is opened, to resume it. `many` says whether the command is a sweep.
    """
    multirun.mkdir(parents=True, exist_ok=True)
    key = command_hash(command, many)
    if not again:
        for earlier in sorted(multirun.glob(f"*-{key}"), key=lambda path: sort_key(path.name), reverse=True):
            if _lock_folder(earlier):
                return earlier
            print(f"Another process runs the same command in {earlier.name}; using another folder.")
    created = _create_folder(multirun, now.strftime(TIME_FORMAT), key)
    if again and many:
        (created / AGAIN_MARKER).touch()
    return created


def remove_empty() -> None:
    """Remove the folders that this process has created and that have no run, as after an invalid command."""
    for created in _created_folders:
        for folder in created.glob("*/"):
            with suppress(OSError):
                folder.rmdir()
        with suppress(OSError):
            if not any(path.is_dir() for path in created.iterdir()):
                for file in created.iterdir():  # points.json and search.json, without runs
                    file.unlink()
            created.rmdir()
        with suppress(OSError):
            created.parent.rmdir()


def command_hash(command: Sequence[str], many: bool) -> str:
    """Return the hash that identifies a command: its overrides, the host and whether it is a sweep.

    Overrides that affect neither measurements nor the grid are ignored, and the host if cluster nodes run it. The order
    matters only for overrides that are swept over, as it is the order of runs.
    """
    overrides, sampling = (normalize_command(command), SAMPLING_KEYS) if many else (command, ())
    relevant = [item for item in overrides if affects_measurement(key_of(item)) or key_of(item) in sampling]
    axes = [item for item in relevant if many and is_sweep_override(item)]
    host = "" if SLURM_OVERRIDE in command else platform.node()
    return hash_value([sorted(set(relevant) - set(axes)), axes, many, host])[:8]


def is_sweep_override(override: str) -> bool:
    """Whether an override may be swept over: a list or a function. Only Hydra knows exactly."""
    return any(sign in override.partition("=")[2] for sign in ",(")


def normalize_command(command: Sequence[str]) -> list[str]:
    """Return the canonical form of a command: `sweep.repeats=3` becomes a leading `repeat=0,1,2`."""
    counts = [override for override in command if key_of(override) == REPEATS]
    rest = [override for override in command if override not in counts]
    last = counts[-1].partition("=")[2] if counts else ""
    return [repeats_override(int(last)), *rest] if last.isdecimal() else rest


def repeats_override(count: int) -> str:
    """Return the override for `count` repeats of each point."""
    return f"{REPEAT}={','.join(map(str, range(count)))}"


def key_of(override: str) -> str:
    """Return an override's key."""
    return override.partition("=")[0]


def write_points(folder: Path, points: Sequence[Sequence[str]]) -> None:
    """Write the points of a sweep by number, for all processes that run or read it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / POINTS_FILE, {"points": redact_tree(points)})


class Points(NamedTuple):
    """The points of a sweep by number, as it started."""

    overrides: Sequence[Sequence[str]] = ()
    varied_keys: frozenset[str] = frozenset()  # overrides that not all points have
    completed: frozenset[int] = frozenset()  # numbers of the runs that were completed before


@lru_cache(maxsize=1)
def read_points(folder: Path) -> Points:
    """Return the points of a sweep; empty without points.json, as for a single run."""
    try:
        overrides = read_json(folder / POINTS_FILE)["points"]
    except (OSError, ValueError, KeyError):
        return Points()
    common = set(overrides[0]).intersection(*overrides)
    own = [path.parent for path in folder.glob("*/completed.json")]
    reused = [path.parent for path in folder.glob(f"*/{REFERENCE}") if referenced_record(path.parent)]
    completed = frozenset(int(run.name) for run in (*own, *reused) if run.name.isdecimal())
    return Points(overrides, frozenset(chain(*overrides)) - common, completed)


def reuses_none(folder: Path) -> bool:
    """Whether a sweep does not reuse runs that other commands measured."""
    return (folder / AGAIN_MARKER).exists()


def is_remote(folder: Path) -> bool:
    """Whether the runs of a sweep are submitted to a cluster."""
    return (folder / SUBMISSIONS_FILE).exists()


def sort_key(name: str) -> tuple[str, int]:
    """Return a sort key for folder names by creation time; a renamed folder sorts first."""
    match = NAME_PATTERN.match(name)
    return (match[1], int(match[2] or 1)) if match else ("", 0)


def _create_folder(multirun: Path, stamp: str, key: str) -> Path:
    """Create a folder, named after the newest of its command even if the clock was set back."""
    newest = max((sort_key(path.name) for path in multirun.glob(f"*-{key}")), default=("", 0))
    stamp, number = max((stamp, 1), newest)
    while True:
        created = multirun / f"{stamp}{f'.{number}' if number > 1 else ''}-{key}"
        with suppress(FileExistsError):
            created.mkdir()
            _created_folders.append(created)
            if _lock_folder(created):
                return created
        number += 1


def _lock_folder(path: Path) -> bool:
    """Lock a folder until this process ends; False if another process has it."""
    if (descriptor := lock_folder(path, wait=False)) is not None:
        _held_locks.append(descriptor)
    return descriptor is not None
