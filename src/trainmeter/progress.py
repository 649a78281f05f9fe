"""Signs of life: a live line where a person watches a terminal, a few plain lines in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")
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
