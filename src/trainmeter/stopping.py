"""Signals that ask this process to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_off() -> Iterator[list[int]]:
    """Signals that would stop this process wait while within: the list has those that came, for who acts on them."""
    came: list[int] = []
    numbers = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """What must not be left half done: a signal that came while within acts at its end."""
    came: list[int] = []
    try:
        with held_off() as came:
            yield
    finally:
        if came:
            signal.raise_signal(came[0])
