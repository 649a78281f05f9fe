"""Signals that ask this process to stop.

SIGINT is sent by Ctrl-C, SIGQUIT by Ctrl-\\, SIGTERM by kill and Slurm, SIGHUP by a closed terminal.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
ONE_STOP_S = 1.0
"""Signals within this time of the previous one are the same stop, as of a key that is held down."""


class Stop:
    """Signal handler that ends this process by an exception, so that all contexts are closed.

    It raises KeyboardInterrupt for Ctrl-C and SystemExit with 128 + the signal's number for the others of STOPPING.
    """

    def __init__(self) -> None:
        self._last_s = -ONE_STOP_S

    def install(self) -> None:
        """Handle the signals, except ignored ones: nohup ignores SIGHUP, a script's background job SIGINT."""
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before_s, self._last_s = self._last_s, time.monotonic()
        if self._last_s - before_s < ONE_STOP_S:
            return
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def default() -> None:
    """Let the signals end this process at once, without a traceback; all contexts have been closed."""
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class Gate:
    """Stands before the handlers of the signals that would stop this process: they wait while it is shut.

    Masking the signals would not do: the kernel gives them to another thread, and Python's main one acts on them. To
    shut and to open is one assignment, which no signal can halve; one that is left standing open changes nothing.
    """

    def __init__(self, end: CodeType | None = None) -> None:
        self.shut = False
        self.came: list[int] = []
        """The signals that came while it was shut, for who acts on them."""
        self._end = end  # of a function before whose first line it counts as shut
        self._handlers: dict[int, Any] = {}

    def stand(self) -> None:
        for number in STOPPING:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):
                self._handlers[number] = handler
                signal.signal(number, self._hear)

    def leave(self) -> None:
        self.shut = False
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.shut or (frame and frame.f_code is self._end):
            self.came.append(number)
        elif callable(handler := self._handlers[number]):
            handler(number, frame)
        else:
            signal.signal(number, handler)
            signal.raise_signal(number)


@contextmanager
def held_off() -> Iterator[list[int]]:
    """Signals that would stop this process wait while within: the list has those that came, for who acts on them."""
    gate = Gate()
    gate.stand()
    gate.shut = True
    try:
        yield gate.came
    finally:
        gate.leave()


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


@contextmanager
def foremost() -> Iterator[None]:
    """A stop goes on in place of an error that it met on its way out.

    It is raised wherever the program happens to be, and what it breaks off there may not be fit to be left: a lock
    that was let go to wait, say, cannot be let go once more.
    """
    try:
        yield
    except Exception as error:
        if stop := _behind(error):
            raise stop from None
        raise


def _behind(error: BaseException) -> BaseException | None:
    """The stop that was under way when an error was raised, if one was."""
    before = error.__context__
    while before and not isinstance(before, (KeyboardInterrupt, SystemExit)):
        before = before.__context__
    return before
