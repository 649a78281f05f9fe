"""Atomic creation of folders: filled under a temporary name on the same disk, then renamed."""

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochmeter.datasets.progress import Notify
from epochmeter.shared.atomic_files import fsync_folder
from epochmeter.shared.problem import machine_error

DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def creation_lock(path: Path, say: Notify) -> Iterator[None]:
    """Lock the creation of a folder or file, waiting for other processes; a process that dies releases its lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(_sibling(path, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that prepares {path}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def create_atomically(folder: Path, resumes: bool = False) -> Iterator[Path]:
    """Yield a new folder to fill. It replaces `folder` on success, flushed to disk, and is deleted on failure.

    With `resumes` it is kept on failure, and yielded again, with what a failed or killed process has left in it.
    """
    partial = _sibling(folder, "partial")
    _remove_leftovers(folder, keeps_partial=resumes)
    partial.mkdir(exist_ok=resumes)
    try:
        with synced(partial):
            yield partial
        if folder.exists():
            folder.rename(_sibling(folder, "old"))
        partial.rename(folder)
        fsync_folder(folder.parent)
    finally:
        _remove_leftovers(folder, keeps_partial=resumes and partial.exists())


@contextmanager
def synced(folder: Path) -> Iterator[None]:
    """Flush everything written below `folder` to disk at the end; OSError for errors since the start (from Linux 5.8).

    One syncfs(2) for all: an fsync for each of thousands of files takes minutes on an SD card.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


@contextmanager
def explain_errors(action: str) -> Iterator[None]:
    """Turn an OSError of an action, such as `read FOLDER`, into a RuntimeError with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = "free disk space" if error.errno in DISK_FULL_ERRORS else "check its permissions and its disk"
        hint = f"{remedy}, or set another folder: dataset.root= or storage.root="
        raise machine_error(f"cannot {action}: {error}", hint, file=str(error.filename or "")) from error


def _remove_leftovers(folder: Path, keeps_partial: bool) -> None:
    """Delete the leftovers of a killed process next to a folder; requires the lock.

    If the process was killed between the two renames that replace the folder, the earlier folder is restored.
    """
    if not folder.exists() and (old := _sibling(folder, "old")).exists():
        old.rename(folder)
    shutil.rmtree(_sibling(folder, "old"), ignore_errors=True)
    if not keeps_partial:
        shutil.rmtree(_sibling(folder, "partial"), ignore_errors=True)
        _sibling(folder, "partial.json").unlink(missing_ok=True)  # what a function that resumes notes about it


def _sibling(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}")
