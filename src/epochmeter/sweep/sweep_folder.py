"""Open the folder of a command's runs, `multirun/<date_time>-<command hash>`; its files: results/sweep_files.py."""

import platform
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from epochmeter.config.arguments import undefer_key
from epochmeter.config.identity import affects_measurement, hash_value
from epochmeter.config.secrets import conceal_tree
from epochmeter.results.sweep_files import POINTS_FILE
from epochmeter.results.sweep_order import sort_key, start_key, write_start
from epochmeter.shared.atomic_files import try_lock_folder, write_json

SAMPLING_KEYS = ("sweep.sample", "sweep.order", "sweep.seed")
"""Keys that do not affect a run's measurement, but which points of a grid are run, and their numbers."""
REPEAT, REPEATS = "repeat", "sweep.repeats"
SLURM_OVERRIDE = "hydra/launcher=slurm"  # runs on cluster nodes: the sweep is the same from all login nodes
AGAIN_MARKER = ".again"
"""File that marks a sweep started with `sweep.again=true`, also for a later command that resumes it."""
TIME_FORMAT = "%Y-%m-%d_%H-%M-%S"
DATE_LENGTH = len("2026-11-20")
_held_locks: list[int] = []  # locks of the folders that this process writes to, held until it ends
_created_folders: list[Path] = []  # folders that this process has created


def open_sweep_folder(
    multirun: Path, now: datetime, command: Sequence[str], many: bool, again: bool, mode: int = 0o777
) -> Path:
    """Return the folder for this command's runs, locked for this process: a new one, or the newest to resume.

    A new one has the permissions `mode`. It is named after the newest of all if the clock is behind that one. A resumed
    one that is not the newest becomes that: the newest is the one that was started last.
    """
    multirun.mkdir(parents=True, exist_ok=True)
    key = command_hash(command, many)
    earlier = sorted(multirun.glob(f"*-{key}"), key=lambda path: sort_key(path.name), reverse=True)
    others = {path: start_key(path) for path in multirun.iterdir()}
    newest, counter = max(others.values(), default=("", 0))
    stamp, number = max((now.strftime(TIME_FORMAT), 1), (newest, counter + 1))
    for folder in [] if again else earlier:
        if _lock_folder(folder):
            if others.get(folder) != (newest, counter):
                with suppress(OSError):  # a full disk, which the run reports
                    write_start(folder, (stamp, number))
            return folder
        print(f"Another process runs the same command in {folder.name}; using another folder.")
    if stamp[:DATE_LENGTH] > now.strftime(TIME_FORMAT):
        print(f"The clock is behind the newest folder of runs, of {newest}: the new one is named after it.")
    while True:
        created = multirun / f"{stamp}{f'.{number}' if number > 1 else ''}-{key}"
        with suppress(FileExistsError):
            created.mkdir(mode)
            _created_folders.append(created)
            if _lock_folder(created):
                break
        number += 1
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
    """Return the hash of a command: overrides that affect measurements or the grid, host, and whether it is a sweep.

    The order matters only for overrides that are swept over, as it is the order of runs. `sweep.repeats=3` counts as a
    leading `repeat=0,1,2`.
    """
    items = {key_of(item): undefer_key(item) for item in command}  # of a key that is given twice, the last value counts
    count = items.pop(REPEATS, "").partition("=")[2]
    if many and count.isdecimal():
        items = {REPEAT: repeats_override(int(count)), **items}
    sampling = SAMPLING_KEYS if many else ()
    relevant = [item for key, item in items.items() if affects_measurement(key) or key in sampling]
    axes = [item for item in relevant if many and is_sweep_override(item)]
    host = "" if SLURM_OVERRIDE in command else platform.node()
    return hash_value([sorted(set(relevant) - set(axes)), axes, many, host])[:8]


def is_sweep_override(override: str) -> bool:
    """Whether an override may be swept over: a list or a function; an approximation of Hydra's rules."""
    return any(sign in override.partition("=")[2] for sign in ",(")


def repeats_override(count: int) -> str:
    return f"{REPEAT}={','.join(map(str, range(count)))}"


def key_of(override: str) -> str:
    return override.partition("=")[0]


def write_points(folder: Path, points: Sequence[Sequence[str]]) -> None:
    """Write the points of a sweep by number, for all processes that run or read it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / POINTS_FILE, {"points": conceal_tree(points)})


def reuses_none(folder: Path) -> bool:
    """Whether a sweep does not reuse runs that other commands measured."""
    return (folder / AGAIN_MARKER).exists()


def _lock_folder(path: Path) -> bool:
    """Lock a folder until this process ends; False if another process has it."""
    if (descriptor := try_lock_folder(path)) is not None:
        _held_locks.append(descriptor)
    return descriptor is not None
