"""Time limits of calls to MLflow, whose own timeout is that of one read: a server that trickles never reaches it."""

import ctypes
import threading

LAST_READ_S = 2.5  # after an interruption, wait for the read of a socket that has begun


class DeadlinePassed(BaseException):
    """The time for a call is over. Not an Exception, so that handlers of MLflow's errors let it pass."""


def interrupt(thread: threading.Thread) -> None:
    """Raise DeadlinePassed in a thread as soon as it executes Python again; wait up to `LAST_READ_S` for its end."""
    if thread.ident and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(DeadlinePassed))
        thread.join(LAST_READ_S)
