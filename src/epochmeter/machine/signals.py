"""Signals that ask this process to stop.

SIGINT is sent by Ctrl-C, SIGQUIT by Ctrl-\\, SIGTERM by kill and Slurm, SIGHUP by a closed terminal.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
REPEATED_SIGNAL_S = 1.0  # signals within this time of the previous one are the same stop, as of a key that is held down
RETRY_S = 0.05  # a stop that Python ignored is raised again after this time


def signal_name(number: int) -> str:
    """Return the name of a signal; that of a real-time signal, for which Python has none, by its distance."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


class Stop:
    """Signal handler that ends this process by an exception, so that all contexts are closed.

    It raises KeyboardInterrupt for Ctrl-C and SystemExit with 128 + the signal's number for the others.
    """

    def __init__(self) -> None:
        self._last_s = -REPEATED_SIGNAL_S
        self._number = 0  # the signal of the last stop
        self._stop: BaseException | None = None  # the exception of the last stop

    def install(self) -> None:
        """Handle the signals, except ignored ones: nohup ignores SIGHUP, a script's background job SIGINT."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self)
        sys.unraisablehook = self._retry_ignored

    def _retry_ignored(self, ignored: "sys.UnraisableHookArgs") -> None:
        """Stop again a moment later if Python ignored the exception, as in a destructor or a callback of a fork."""
        if self._stop is None or ignored.exc_value is not self._stop:
            sys.__unraisablehook__(ignored)
            return
        self._last_s = -REPEATED_SIGNAL_S
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(self._number))
        signal.setitimer(signal.ITIMER_REAL, RETRY_S)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before_s, self._last_s = self._last_s, time.monotonic()
        if self._last_s - before_s < REPEATED_SIGNAL_S:
            return
        self._number = number
        self._stop = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        raise self._stop


def end_at_once(code: int) -> None:
    """Let a further signal end this process at once with its exit code: all contexts have been closed."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            # Ctrl-C is ignored, as it may be pressed several times; Python resets handlers when it exits.
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else lambda *_: os._exit(code))


class SignalDeferral:
    """Defers the signals that would stop this process while `is_deferring` is set; otherwise passes them on.

    Masked signals would reach another thread, and Python's main thread would handle them. Setting `is_deferring` is a
    single assignment, which no signal can interrupt.
    """

    def __init__(self, end: CodeType | None = None, notify: Callable[[int], object] = lambda _: None) -> None:
        """Signals are also deferred in the code `end`; `notify` is called for each deferred one."""
        self.is_deferring = False
        self.received: list[int] = []  # the deferred signals
        self._end, self._notify = end, notify
        self._handlers: dict[int, Any] = {}

    def install(self) -> None:
        for number in STOP_SIGNALS:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):
                self._handlers[number] = handler
                signal.signal(number, self._handle)

    def restore(self) -> None:
        self.is_deferring = False
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_deferring or (frame and frame.f_code is self._end):
            self.received.append(number)
            self._notify(number)
        elif callable(handler := self._handlers[number]):
            handler(number, frame)
        else:
            signal.signal(number, handler)
            signal.raise_signal(number)


@contextmanager
def deferred_signals(notify: Callable[[int], object] = lambda _: None) -> Iterator[list[int]]:
    """Defer signals that would stop this process; yields the list of those that arrive, each given to `notify`."""
    deferral = SignalDeferral(notify=notify)
    deferral.install()
    deferral.is_deferring = True
    try:
        yield deferral.received
    finally:
        deferral.restore()


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Protect a block from interruption: a signal that arrives within it is delivered at its end."""
    received: list[int] = []
    try:
        with deferred_signals() as received:
            yield
    finally:
        if received:
            signal.raise_signal(received[0])


@contextmanager
def prefer_stop() -> Iterator[None]:
    """Raise a stop rather than an error that followed from it, as in the cleanup of interrupted code."""
    try:
        yield
    except Exception as error:
        context = error.__context__
        while context and not isinstance(context, (KeyboardInterrupt, SystemExit)):
            context = context.__context__
        if context:
            raise context from None
        raise
