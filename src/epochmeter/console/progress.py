"""Progress of long work: a live line in a terminal, a few plain lines in a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")
REFRESHES_PER_S = 1
"""Refresh rate of a live line during a stage: low, as the work may run on the same cores."""
STAGE_DELAY_S = 1.0
"""Time after which running work is shown, in seconds."""


def is_live(console: Console) -> bool:
    """Whether a console can redraw a line."""
    return console.is_terminal and not console.is_dumb_terminal


def track_items(
    items: Sequence[Item], what: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Item]:
    """Yield items and show the number of started ones.

    In a file, the first line is printed after `STAGE_DELAY_S`, and the time between lines doubles: short work prints
    nothing, and long work prints few lines.

    Args:
        items: the items.
        what: the activity, such as "Composing configurations".
        console: where to show it; standard output by default.
        clock: seconds of a monotonic clock.
    """
    console = console or Console(highlight=False)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    live = Progress(*columns, console=console, transient=True, disable=not is_live(console))
    task = live.add_task(what, total=len(items))
    wait_s = STAGE_DELAY_S
    due_s = clock() + wait_s
    with live:
        for count, item in enumerate(items):
            if not is_live(console) and clock() >= due_s:
                console.print(f"{what} {count}/{len(items)}", soft_wrap=True)
                wait_s *= 2
                due_s = clock() + wait_s
            yield item
            live.advance(task)


class Stage:
    """Shows the running activity once it has lasted for `STAGE_DELAY_S`: live in a terminal, as one line in a file.

    There is one stage at a time. End it before anything else draws live lines on the same console.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._live: Progress | None = None

    def begin(self, what: str) -> None:
        """End the previous stage and begin another.

        Args:
            what: the activity, such as "Starting the training process".
        """
        self.end()
        self._timer = threading.Timer(STAGE_DELAY_S, self._say, (what,))
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """End the stage, if there is one, and erase its live line."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
            if self._live:
                self._live.stop()
            self._timer = self._live = None

    def _say(self, what: str) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():  # ended meanwhile
                return
            if not is_live(self._console):
                self._console.print(f"{what} ...", soft_wrap=True)
                return
            columns = (TextColumn("{task.description}"), TimeElapsedColumn())
            self._live = Progress(*columns, console=self._console, transient=True, refresh_per_second=REFRESHES_PER_S)
            self._live.add_task(what, total=None)
            self._live.start()
