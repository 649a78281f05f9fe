"""A process that works for a command while the command does something else, and ends with it."""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from epochmeter.shared.lifetime import die_with_parent


def start_helper(work: Callable[[Connection], None]) -> tuple[SpawnProcess, Connection]:
    """Start a process that calls `work` with one end of a pipe; return the process and the other end.

    Ctrl-C does not reach it, also while Python starts, so that it prints no traceback.
    """
    spawning = get_context("spawn")
    own, others = spawning.Pipe()
    process = spawning.Process(target=_work, args=(work, others, os.getpid()), daemon=True)
    resource_tracker.ensure_running()  # started later, it would reset the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # which the new process inherits
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    others.close()
    return process, own


def _work(work: Callable[[Connection], None], pipe: Connection, parent: int) -> None:
    die_with_parent()  # a request to a server may take for ever
    if os.getppid() == parent:  # it did not end before
        work(pipe)
