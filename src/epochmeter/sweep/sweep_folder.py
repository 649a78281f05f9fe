"""A sweep's folder: `multirun/<date_time>-<command hash>`, which holds a run's folder for each number.

points.json   the overrides of each of its runs, by their numbers; written before the first
0, 1, ...     the runs' records
slurm         what was sent to the nodes of a cluster, if any was
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
"""Keys that change no run's measurement, but which of a grid's points there is a run for, and under which number."""
REPEAT, REPEATS = "repeat", "sweep.repeats"
IN_ROUNDS = "sweep.repeats=3 sweep.order=random"
"""Recommended repeats: rounds of all configurations, so that drift does not appear as a difference between them."""
ELSEWHERE = "hydra/launcher=slurm"
"""Has nodes make the runs: it is the same sweep from any of a cluster's login nodes."""
POINTS = "points.json"
SENT = "slurm/jobs.json"
AGAIN = ".again"
"""File that marks a sweep started with `sweep.again=true`, also for a later command that resumes it."""
STAMP = "%Y-%m-%d_%H-%M-%S"
STAMPED = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:\.(\d+))?-")
"""How the names of folders begin: the stamp, and which of its second."""
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
    """The folder for this command's runs, made and held for this process alone.

    The newest folder of the same command on this host, of `many` runs or of one, in which no other process is at work
    is opened again, unless all is to be measured `again`.
    """
    multirun.mkdir(parents=True, exist_ok=True)
    key = command_hash(command, many)
    if not again:
        for earlier in sorted(multirun.glob(f"*-{key}"), key=lambda path: order_of(path.name), reverse=True):
            if _hold(earlier):
                return earlier
            say(f"Another process is at work on the same in {earlier.name}, which is left to it.")
    made = _made(multirun, now.strftime(STAMP), key)
    if again and many:
        (made / AGAIN).touch()
    return made


def remove_empty() -> None:
    """Remove the folders that this process has created and that have no run, as after an invalid command."""
    for made in _new:
        for folder in made.glob("*/"):
            with suppress(OSError):
                folder.rmdir()
        with suppress(OSError):
            if not any(path.is_dir() for path in made.iterdir()):
                for described in made.iterdir():  # the points of runs that there are not, and how they were asked for
                    described.unlink()
            made.rmdir()
        with suppress(OSError):
            made.parent.rmdir()


def command_hash(command: Sequence[str], many: bool) -> str:
    """What makes two commands one: their overrides, less those that change no measurement and no grid, and the host,
    unless it has others make the runs.

    They are in any order, but for those of a grid that may be swept over: their order is that of its runs.
    """
    typed = spelled(command) if many else command
    kept = [each for each in typed if measures(key_of(each)) or (many and key_of(each) in DRAWS)]
    axes = [each for each in kept if many and is_axis(each)]
    host = "" if ELSEWHERE in command else platform.node()
    return digest_of([sorted(set(kept) - set(axes)), axes, many, host])[:8]


def is_axis(override: str) -> bool:
    """Whether an override may be one that is swept over, which Hydra alone can tell: of a list, or a function's."""
    return any(sign in override.partition("=")[2] for sign in ",(")


def spelled(command: Sequence[str]) -> list[str]:
    """The same in the one way that folders know: `sweep.repeats=3` is `repeat=0,1,2` before all else."""
    counts = [override for override in command if key_of(override) == REPEATS]
    others = [override for override in command if override not in counts]
    last = counts[-1].partition("=")[2] if counts else ""
    return [repeated(int(last)), *others] if last.isdecimal() else others


def repeated(count: int) -> str:
    """The override that runs each point so many times."""
    return f"{REPEAT}={','.join(map(str, range(count)))}"


def key_of(override: str) -> str:
    return override.partition("=")[0]


def keep_points(folder: Path, points: Sequence[Sequence[str]]) -> None:
    """Notes what the runs of a sweep are, by their numbers, for all that are at work in it or look at it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / POINTS, {"points": redacted_tree(points)})


class Points(NamedTuple):
    """What the runs of a sweep are, by their numbers, as it began."""

    typed: Sequence[Sequence[str]] = ()
    """The overrides of each."""
    varied: frozenset[str] = frozenset()
    """Those of them that not all have."""
    whole: frozenset[int] = frozenset()
    """The numbers of those that were measured to their end before."""


@lru_cache(maxsize=1)
def points(folder: Path) -> Points:
    """The points of a sweep; none where they are not noted, as of a single run."""
    try:
        typed = read_json(folder / POINTS)["points"]
    except (OSError, ValueError, KeyError):
        return Points()
    alike = set(typed[0]).intersection(*typed)
    own = [path.parent for path in folder.glob("*/whole.json")]
    reused = [path.parent for path in folder.glob(f"*/{REFERENCE}") if referenced_record(path.parent)]
    whole = frozenset(int(run.name) for run in (*own, *reused) if run.name.isdecimal())
    return Points(typed, frozenset(chain(*typed)) - alike, whole)


def reuses_none(folder: Path) -> bool:
    """Whether a sweep does not reuse runs that other commands measured."""
    return (folder / AGAIN).exists()


def is_sent(folder: Path) -> bool:
    """Whether the runs of a sweep are made by the nodes of a cluster."""
    return (folder / SENT).exists()


def order_of(name: str) -> tuple[str, int]:
    """By which folders are in the order in which they were made, told by their names; one that was renamed is before
    them."""
    told = STAMPED.match(name)
    return (told[1], int(told[2] or 1)) if told else ("", 0)


def _made(multirun: Path, stamp: str, key: str) -> Path:
    """A new folder, the newest of its command by its name too where the clock has been set back."""
    newest = max((order_of(path.name) for path in multirun.glob(f"*-{key}")), default=("", 0))
    stamp, number = max((stamp, 1), newest)
    while True:
        made = multirun / f"{stamp}{f'.{number}' if number > 1 else ''}-{key}"
        with suppress(FileExistsError):
            made.mkdir()
            _new.append(made)
            if _hold(made):
                return made
        number += 1


def _hold(path: Path) -> bool:
    descriptor = hold(path, wait=False)
    if descriptor is not None:
        _held.append(descriptor)
    return descriptor is not None
