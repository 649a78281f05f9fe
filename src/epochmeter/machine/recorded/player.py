"""Plays recorded values in files, in real time: `python -m epochmeter.machine.recorded.player FOLDER`.

It is a process of its own, so that it is on time while the controller computes, and ends with it. The files are
replaced, never changed in place: a reader gets the value before or after a change.
"""

import heapq
import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.recorded.inventory import COUNTERS
from epochmeter.machine.recorded.series import IsCounter, Repeated, Series
from epochmeter.machine.recorded.table_types import list_of, mapping, times_s
from epochmeter.shared.types import Document

Changes = Sequence[tuple[str, str | None]]  # files with their new texts; None: it can no longer be read
PARENT_CHECK_S = 1.0  # how often it is checked whether the process that started this one still exists
NEW = ".new"


def replace_text(file: str, text: str | None) -> None:
    """Replace the text of a file, with its permissions."""
    if text is None:
        with suppress(FileNotFoundError):
            os.unlink(file)
        return
    mode = 0o644
    with suppress(FileNotFoundError):
        mode = os.stat(file).st_mode & 0o777
    new = file + NEW
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(text.encode("utf-8", "surrogateescape"))
    os.chmod(new, mode)
    os.replace(new, file)


def play(
    changes: Iterable[tuple[float, Changes]],
    begun_s: float,
    is_stopped: Callable[[float], bool],
    write: Callable[[str, str | None], None] = replace_text,
) -> Iterator[int]:
    """Make each change at its time in seconds since `begun_s`, and yield when it was made, in ns of CLOCK_MONOTONIC.

    Args:
        is_stopped: Waits for some seconds, and returns whether to end before.
        write: Writes the text of a file.
    """
    for at_s, files in changes:
        while (left_s := begun_s + at_s - time.monotonic()) > 0:
            if is_stopped(left_s):
                return
        if is_stopped(0):
            return
        for file, text in files:
            write(file, text)
        yield time.monotonic_ns()


def repeated_files(fields: Mapping[str, Document], root: Path, duration_s: float) -> dict[str, Repeated]:
    """Return the series of files by path; ValueError if one is damaged or not of a file below the root."""
    series = {}
    for path, recorded in mapping(fields, "files").items():
        file = root / path
        if file.is_symlink() or not file.is_file() or not file.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"`{path}` is no file in it")
        modulus = None
        if file.name == "energy_uj":
            with suppress(OSError, ValueError):
                modulus = int((file.parent / "max_energy_range_uj").read_text())
        values = Series(times_s(recorded, duration_s), recorded["values"])
        if not list_of(lambda value: isinstance(value, str | None))(values.values):
            raise ValueError(f"`{path}` has other values than texts")
        series[path] = Repeated(values, duration_s, is_counter=counter_rule(path), modulus=modulus)
    return series


def counter_rule(path: str) -> IsCounter | None:
    """Return which numbers in a file are counters; None if none is."""
    least = next((least for pattern, least in COUNTERS if re.search(pattern, path)), None)
    return None if least is None else lambda place, first: first >= least


def all_changes(series: Mapping[str, Repeated], root: Path) -> Iterator[tuple[float, Changes]]:
    """Yield the changes of all files in the order of their times, without end."""
    playing = [(file.times_s[0], path, 0) for path, file in series.items()]
    heapq.heapify(playing)
    while playing:
        at_s, path, count = heapq.heappop(playing)
        file = series[path]
        repetition, number = divmod(count, len(file))
        yield at_s, [(str(root / path), file.value(number, repetition))]
        repetition, number = divmod(count + 1, len(file))
        heapq.heappush(playing, (repetition * file.duration_s + file.times_s[number], path, count + 1))


def without_late(changes: Iterator[tuple[float, Changes]], begun_s: float) -> Iterator[tuple[float, Changes]]:
    """Yield the changes; if it is late, only the last one of each file, so that it is not late any longer."""
    at_s, files = next(changes)
    while True:
        due = dict(files)
        next_s, files = next(changes)
        while next_s < time.monotonic() - begun_s:
            due |= dict(files)
            at_s, (next_s, files) = next_s, next(changes)
        yield at_s, list(due.items())
        at_s = next_s


def main() -> None:
    """Play the files that the first line of the input names, until the input ends.

    When they are read, a line is printed. The second line of the input is the time of the begin.
    """
    parent, task = os.getppid(), json.loads(sys.stdin.readline())
    root = Path(task["root"])
    series = repeated_files(task["files"], root, task["duration_s"])

    def is_stopped(seconds: float) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], min(seconds, PARENT_CHECK_S))
        return bool(ready) or os.getppid() != parent

    print(flush=True)
    begun_s = float(sys.stdin.readline() or "nan")
    with suppress(OSError):  # the folder was removed
        for _ in play(without_late(all_changes(series, root), begun_s), begun_s, is_stopped):
            pass


if __name__ == "__main__":
    main()
