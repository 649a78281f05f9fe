"""Atomic, durable file writes, and locks on folders: a crash or power cut at any time leaves readable files."""

import contextlib
import fcntl
import json
import os
import pathlib
from typing import Any, BinaryIO, Callable, Iterator, Optional, TextIO

from epochmeter.shared.types import StrPath

LOCK_NAME = ".lock"  # lock file that `lock_folder` creates in a folder on a file system without folder locks


@contextlib.contextmanager
def append_to(path: pathlib.Path, durably: bool = True) -> Iterator[BinaryIO]:
    """Open a file to append bytes; if `durably`, content and the name of a new file are on disk at the end."""
    is_new = durably and not path.exists()
    with open(path, "ab") as file:
        yield file
        if durably:
            file.flush()
            os.fsync(file.fileno())
    if is_new:
        fsync_folder(path.parent)


def write_json(path: StrPath, value: object, mode: int = 0o666, durably: bool = True) -> None:
    """Write `value` as JSON atomically: readers never see a partial file."""
    write_atomically(path, lambda file: file.write(json.dumps(value, indent=1) + "\n"), mode, durably)


def write_atomically(path: StrPath, write: Callable[[TextIO], object], mode: int = 0o666, durably: bool = True) -> None:
    """Write a text file atomically with `write(file)`: readers never see a part of it.

    After a power cut, it or its complete predecessor is on disk, unless it is not written `durably`: waiting for a
    memory card takes up to a tenth of a second. A link of this name is replaced, not followed. `mode` are the
    permissions of a new file, without those of the umask.
    """
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    if os.path.lexists(str(partial)):  # of a killed process with the same pid
        partial.unlink()
    try:
        with open(partial, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            write(file)
            if durably:
                file.flush()
                os.fsync(file.fileno())
        is_new = durably and not path.exists()
        os.replace(partial, path)
        if is_new:
            fsync_folder(path.parent)
    except BaseException as error:
        if partial.exists():
            partial.unlink()
        if isinstance(error, OSError) and str(error.filename) == str(partial):
            raise OSError(error.errno, error.strerror, str(path)) from error  # the file that the caller knows
        raise


def lock_folder(folder: StrPath) -> int:
    """Wait until no other process has the lock of a folder, lock it, and return a descriptor to close.

    NFS cannot lock folders: there, a file in the folder is locked. If nothing can be locked, every caller succeeds.
    """
    return _lock(folder, fcntl.LOCK_EX)


def try_lock_folder(folder: StrPath) -> Optional[int]:
    """Lock a folder as `lock_folder` does, but return None if another process has the lock."""
    try:
        return _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _lock(folder: StrPath, operation: int) -> int:
    for name, flags in ((".", os.O_RDONLY), (LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)):
        descriptor = os.open(os.path.join(folder, name), flags, 0o644)
        try:
            fcntl.flock(descriptor, operation)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:
            os.close(descriptor)
    return os.open(folder, os.O_RDONLY)


def fsync_folder(folder: StrPath) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: StrPath) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)
