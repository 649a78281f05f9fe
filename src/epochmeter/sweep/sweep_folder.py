"""A sweep's folder: `multirun/<date_time>-<command hash>`, with one run folder per number.

points.json   the overrides of each run by number; written before the first run
0, 1, ...     the run folders
slurm         what was submitted to a cluster, if anything
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.job import digest_of, measures
from epochmeter.config.secrets import redacted_tree
from epochmeter.results.reuse import REFERENCE, referenced_record
from epochmeter.shared.atomic_files import hold, read_json, write_json

DRAWS = ("sweep.sample", "sweep.order", "sweep.seed")
"""Keys that do not affect a run's measurement, but which points of a grid are run, and their numbers."""
REPEAT, REPEATS = "repeat", "sweep.repeats"
IN_ROUNDS = "sweep.repeats=3 sweep.order=random"
"""Recommended repeats: rounds of all configurations, so that drift does not appear as a difference between them."""
ELSEWHERE = "hydra/launcher=slurm"
"""Runs on cluster nodes: the sweep is the same from all login nodes."""
POINTS = "points.json"
SENT = "slurm/jobs.json"
AGAIN = ".again"
"""File that marks a sweep started with `sweep.again=true`, also for a later command that resumes it."""
STAMP = "%Y-%m-%d_%H-%M-%S"
STAMPED = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:\.(\d+))?-")
"""Start of folder names: the time, and a counter within the second."""
_held: list[int] = []
"""Locks of the folders that this process writes to, held until it ends."""
_new: list[Path] = []
"""Folders that this process has created."""


def folder(
    multirun: Path,
    now: datetime,
    command: Sequence[str],
    many: bool,
    again: bool,
    say: Callable[[str], None] = print,
) -> Path:
    """Return the folder for this command's runs, created and locked for this process.

    The newest folder of the same command on this host that no other process uses is opened again, to resume it.

    Args:
        multirun: Folder of all sweeps.
        now: Current time.
        command: The command's overrides.
        many: Whether the command is a sweep.
        again: Measure everything again, in a new folder.
        say: Receives messages.
    """
    multirun.mkdir(parents=True, exist_ok=True)
    key = command_hash(command, many)
    if not again:
        for earlier in sorted(multirun.glob(f"*-{key}"), key=lambda path: order_of(path.name), reverse=True):
            if _hold(earlier):
                return earlier
            say(f"Another process runs the same command in {earlier.name}; using another folder.")
    created = _made(multirun, now.strftime(STAMP), key)
    if again and many:
        (created / AGAIN).touch()
    return created


def remove_empty() -> None:
    """Remove the folders that this process has created and that have no run, as after an invalid command."""
    for created in _new:
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
    overrides = spelled(command) if many else command
    relevant = [item for item in overrides if measures(key_of(item)) or (many and key_of(item) in DRAWS)]
    axes = [item for item in relevant if many and is_axis(item)]
    host = "" if ELSEWHERE in command else platform.node()
    return digest_of([sorted(set(relevant) - set(axes)), axes, many, host])[:8]


def is_axis(override: str) -> bool:
    """Whether an override may be swept over: a list or a function. Only Hydra knows exactly."""
    return any(sign in override.partition("=")[2] for sign in ",(")


def spelled(command: Sequence[str]) -> list[str]:
    """Return the canonical form of a command: `sweep.repeats=3` becomes a leading `repeat=0,1,2`."""
    counts = [override for override in command if key_of(override) == REPEATS]
    rest = [override for override in command if override not in counts]
    last = counts[-1].partition("=")[2] if counts else ""
    return [repeated(int(last)), *rest] if last.isdecimal() else rest


def repeated(count: int) -> str:
    """Return the override for `count` repeats of each point."""
    return f"{REPEAT}={','.join(map(str, range(count)))}"


def key_of(override: str) -> str:
    """Return an override's key."""
    return override.partition("=")[0]


def keep_points(folder: Path, points: Sequence[Sequence[str]]) -> None:
    """Write the points of a sweep by number, for all processes that run or read it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / POINTS, {"points": redacted_tree(points)})


class Points(NamedTuple):
    """The points of a sweep by number, as it started.

    Attributes:
        typed: Overrides of each point.
        varied: Overrides that not all points have.
        whole: Numbers of the runs that were completed before.
    """

    typed: Sequence[Sequence[str]] = ()
    varied: frozenset[str] = frozenset()
    whole: frozenset[int] = frozenset()


@lru_cache(maxsize=1)
def points(folder: Path) -> Points:
    """Return the points of a sweep; empty without points.json, as for a single run."""
    try:
        typed = read_json(folder / POINTS)["points"]
    except (OSError, ValueError, KeyError):
        return Points()
    common = set(typed[0]).intersection(*typed)
    own = [path.parent for path in folder.glob("*/whole.json")]
    reused = [path.parent for path in folder.glob(f"*/{REFERENCE}") if referenced_record(path.parent)]
    completed = frozenset(int(run.name) for run in (*own, *reused) if run.name.isdecimal())
    return Points(typed, frozenset(chain(*typed)) - common, completed)


def reuses_none(folder: Path) -> bool:
    """Whether a sweep does not reuse runs that other commands measured."""
    return (folder / AGAIN).exists()


def is_sent(folder: Path) -> bool:
    """Whether the runs of a sweep are submitted to a cluster."""
    return (folder / SENT).exists()


def order_of(name: str) -> tuple[str, int]:
    """Return a sort key for folder names by creation time; a renamed folder sorts first."""
    match = STAMPED.match(name)
    return (match[1], int(match[2] or 1)) if match else ("", 0)


def _made(multirun: Path, stamp: str, key: str) -> Path:
    """Create a folder, named after the newest of its command even if the clock was set back."""
    newest = max((order_of(path.name) for path in multirun.glob(f"*-{key}")), default=("", 0))
    stamp, number = max((stamp, 1), newest)
    while True:
        created = multirun / f"{stamp}{f'.{number}' if number > 1 else ''}-{key}"
        with suppress(FileExistsError):
            created.mkdir()
            _new.append(created)
            if _hold(created):
                return created
        number += 1


def _hold(path: Path) -> bool:
    """Lock a folder until this process ends; False if another process has it."""
    descriptor = hold(path, wait=False)
    if descriptor is not None:
        _held.append(descriptor)
    return descriptor is not None
