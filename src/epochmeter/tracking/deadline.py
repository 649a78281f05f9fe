"""Time limits of calls to MLflow, whose own timeout is that of one read: a server that trickles never reaches it."""

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

LAST_READ_S = 2.5  # after an interruption, wait for the read of a socket that has begun
T = TypeVar("T")


class DeadlinePassed(BaseException):
    """The time for a call is over. Not an Exception, so that handlers of MLflow's errors let it pass."""


def interrupt(thread: threading.Thread) -> None:
    """Raise DeadlinePassed in a thread as soon as it executes Python again; wait up to `LAST_READ_S` for its end."""
    if thread.ident and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(DeadlinePassed))
        thread.join(LAST_READ_S)


def call_within(limit_s: float, call: Callable[[], T]) -> T:
    """Return the result of a call, or raise its error; TimeoutError if it takes longer."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        with suppress(DeadlinePassed):
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=run, name="mlflow", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if results:
        return results[0]
    interrupt(thread)
    raise TimeoutError(f"no answer within {limit_s:g} s")
