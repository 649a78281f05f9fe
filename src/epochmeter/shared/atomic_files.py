"""Atomic, durable file writes, and locks on folders: a crash or power cut at any time leaves readable files."""

import contextlib
import fcntl
import json
import os
import pathlib

LOCK_NAME = ".lock"  # lock file that `lock_folder` creates in a folder on a file system without folder locks


@contextlib.contextmanager
def append_to(path, durably=True):
    """Open a file to append bytes; if `durably`, content and the name of a new file are on disk at the end."""
    is_new = durably and not path.exists()
    with open(path, "ab") as file:
        yield file
        if durably:
            file.flush()
            os.fsync(file.fileno())
    if is_new:
        fsync_folder(path.parent)


def write_json(path, value):
    """Write `value` as JSON atomically: readers never see a partial file."""
    write_atomically(path, lambda file: file.write(json.dumps(value, indent=1) + "\n"))


def write_atomically(path, write):
    """Write a text file atomically with `write(file)`; after a power cut, it or its complete predecessor is on disk."""
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "w", encoding="utf-8") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        is_new = not path.exists()
        os.replace(partial, path)
        if is_new:
            fsync_folder(path.parent)
    except BaseException:
        if partial.exists():
            partial.unlink()
        raise


def lock_folder(folder, wait=True):
    """Lock a folder; return a descriptor to close, or None if another process has the lock and `wait` is False.

    NFS cannot lock folders: there, a file in the folder is locked. If nothing can be locked, every caller succeeds.
    """
    operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    for name, flags in ((".", os.O_RDONLY), (LOCK_NAME, os.O_RDWR | os.O_CREAT)):
        descriptor = os.open(os.path.join(folder, name), flags, 0o644)
        try:
            fcntl.flock(descriptor, operation)
            return descriptor
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
    return os.open(folder, os.O_RDONLY)


def fsync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)
