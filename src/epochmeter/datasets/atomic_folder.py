"""A folder comes to its place whole or not at all: filled beside it, on the same disk, then moved there in one step."""

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], object]

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def locked(folder: Path, say: Say) -> Iterator[None]:
    """Holds the right to make what is in `folder`; the kernel gives it back however this process ends."""
    with open(_beside(folder, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another start is making {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A new folder to fill; it is on the medium, and is `folder`, when this ends well, and is gone when it does not."""
    clear(folder)
    partial = _beside(folder, "partial")
    partial.mkdir()
    try:
        with flushed(partial):
            yield partial
        if folder.exists():
            folder.rename(_beside(folder, "old"))
        partial.rename(folder)
        with flushed(folder.parent):
            pass
    finally:
        clear(folder)


def clear(folder: Path) -> None:
    """Removes what a start that was killed left beside a folder; it is for whoever holds the lock."""
    for kind in ("partial", "old"):
        shutil.rmtree(_beside(folder, kind), ignore_errors=True)


def discard(folder: Path) -> None:
    """Removes a folder: first from its place, in one step."""
    if folder.exists():
        folder.rename(_beside(folder, "old"))
    clear(folder)


@contextmanager
def flushed(folder: Path) -> Iterator[None]:
    """What is written within is on the medium at the end, and OSError tells of what did not get there.

    One syncfs(2) for all: an fsync for each of thousands of files takes minutes on an SD card. It tells of errors
    since the descriptor was opened (Linux 5.8; before, the medium's errors in writing back stay unheard).
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}")
