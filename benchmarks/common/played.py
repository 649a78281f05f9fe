"""Plays a power curve in the sensor files of a board, in real time.

`python played.py` is the process that writes the files.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from boards import Tree

from epochmeter.machine.recorded import player

Curve = Sequence[tuple[float, float]]  # (seconds since the start, fraction of the board's watts from then on)


def ramp(low: float, high: float, *, seconds: float, every_s: float = 0.005) -> Curve:
    """Return a linear change, in steps that are shorter than any sampling period."""
    stairs = round(seconds / every_s)
    return [(stair * every_s, low + (high - low) * (stair + 0.5) / stairs) for stair in range(stairs)]


def square(low: float, high: float, *, seconds: float, cycle_s: float = 0.12) -> Curve:
    """Return a power that alternates, as batches do while training."""
    return [(half * cycle_s / 2, low if half % 2 else high) for half in range(round(2 * seconds / cycle_s))]


class PlayedPower:
    """The true total power of a played board: its changes, with their times by CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []
        self.watts: list[float] = []
        self.joules: list[float] = []

    def add(self, at_ns: int, watts: float) -> None:
        """Add a change of the power."""
        self.joules.append(self.joules_at(at_ns) if self.times_ns else 0.0)
        self.times_ns.append(at_ns)
        self.watts.append(watts)

    def energy_j(self, opened_ns: int, closed_ns: int) -> float:
        """The energy between two moments, both after the first change."""
        return self.joules_at(closed_ns) - self.joules_at(opened_ns)

    def joules_at(self, at_ns: int) -> float:
        last = bisect_right(self.times_ns, at_ns) - 1
        if last < 0:
            raise ValueError("no power is known before this moment")
        return self.joules[last] + (at_ns - self.times_ns[last]) * 1e-9 * self.watts[last]


@contextmanager
def play(tree: Tree, curve: Curve) -> Iterator[PlayedPower]:
    """Rewrite the board's power files along a curve, by another process, until the block ends.

    Yields:
        The true power, filled at the end of the block with the written values and their times.
    """
    files = [path for _, some in tree.channels() for path in some]
    last = [""] * len(files)
    changes = []
    for at_s, share in curve:
        texts = [text for _, some in tree.channels(share) for text in some.values()]
        changed = [(file, text) for file, text in enumerate(texts) if text != last[file]]
        changes.append((at_s, tree.board.total_w(share), changed))
        last = texts
    played = PlayedPower()
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as player:
        print(json.dumps([[str(path) for path in files], changes]), file=player.stdin, flush=True)
        player.stdout.readline()  # the first change is made
        try:
            yield played
        finally:
            output, _ = player.communicate()  # it ends when its input is closed
            for at_ns, watts in json.loads(output):
                played.add(at_ns, watts)


def _rewrite(files: Sequence[str], changes: Sequence[tuple[float, float, Sequence[tuple[int, str]]]]) -> None:
    """Make each change at its time, then print the actual times."""
    handles = {path: os.open(path, os.O_WRONLY) for path in files}
    made: list[tuple[int, float]] = []

    def is_stopped(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    def write(path: str, text: str | None) -> None:
        os.pwrite(handles[path], (text or "").encode(), 0)

    at_times = ((at_s, [(files[file], text) for file, text in texts]) for at_s, _, texts in changes)
    played = player.play(at_times, time.monotonic(), is_stopped, write)
    for (_, total_w, _), at_ns in zip(changes, played, strict=False):
        made.append((at_ns, total_w))
        if len(made) == 1:
            print(flush=True)
    sys.stdin.read()
    print(json.dumps(made))


if __name__ == "__main__":
    _rewrite(*json.loads(sys.stdin.readline()))
