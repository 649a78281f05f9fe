"""Signs of life: a live line where a person watches a terminal, a few plain lines in a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")
REFRESHES_PER_S = 1
"""How often a live line is drawn while a stage lasts: rarely, as the work may be on the same cores."""
PATIENCE_S = 1.0
"""How long work may take before it is mentioned."""


def draws(console: Console) -> bool:
    """Whether a line can be drawn over and over again."""
    return console.is_terminal and not console.is_dumb_terminal


def counted(
    items: Sequence[Item], what: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Item]:
    """Yields items and shows how many were begun.

    In a file the first line comes after `PATIENCE_S` and each next one after twice as long as the one before: short
    work says nothing, and long work fills no log.

    Args:
        items: what is gone through.
        what: what is done to them, such as "Composing configurations".
        console: where to show it; standard output by default.
        clock: seconds of a monotonic clock.
    """
    console = console or Console(highlight=False)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    live = Progress(*columns, console=console, transient=True, disable=not draws(console))
    task = live.add_task(what, total=len(items))
    wait_s = PATIENCE_S
    due_s = clock() + wait_s
    with live:
        for count, item in enumerate(items):
            if not draws(console) and clock() >= due_s:
                console.print(f"{what} {count}/{len(items)}", soft_wrap=True)
                wait_s *= 2
                due_s = clock() + wait_s
            yield item
            live.advance(task)


class Stage:
    """Says what is under way once that has lasted for `PATIENCE_S`: live in a terminal, as one line in a file.

    There is one stage at a time. It has to be over before anything else draws live lines on the same console.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._live: Progress | None = None

    def begin(self, what: str) -> None:
        """Ends the stage before and begins another.

        Args:
            what: what is done in it, such as "Starting the training process".
        """
        self.end()
        self._timer = threading.Timer(PATIENCE_S, self._say, (what,))
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Ends the stage, if there is one; its live line vanishes."""
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
            if not draws(self._console):
                self._console.print(f"{what} ...", soft_wrap=True)
                return
            columns = (TextColumn("{task.description}"), TimeElapsedColumn())
            self._live = Progress(*columns, console=self._console, transient=True, refresh_per_second=REFRESHES_PER_S)
            self._live.add_task(what, total=None)
            self._live.start()
