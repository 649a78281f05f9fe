"""Files that a crash at any instant leaves readable, and that are on the disk once written; folders that one process
at a time has.

Runs on a board's own Python: 3.6 and the standard library.
"""

import contextlib
import fcntl
import json
import os
import pathlib

LOCK = ".lock"
"""What `hold` makes in a folder that cannot be locked itself."""


@contextlib.contextmanager
def added(path):
    """A file to add bytes to, on the disk in the end; so is its name, where it is new."""
    new = not path.exists()
    with open(str(path), "ab") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(path.parent)


def write_json(path, value):
    """Writes all of `value` or nothing: a reader never sees half a file."""

    def write(file):
        json.dump(value, file, indent=1)
        file.write("\n")

    write_whole(path, write)


def write_whole(path, write):
    """Has `write(file)` write all of a text file or nothing; it is on the disk when this returns.

    A power cut may yet bring back what it replaces, whole: that the new one stands in its place is not waited for.
    """
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(str(partial), "w", encoding="utf-8") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        new = not path.exists()
        os.replace(str(partial), str(path))
        if new:
            sync(path.parent)
    except BaseException:
        if partial.exists():
            partial.unlink()
        raise


def hold(folder, wait=True):
    """A descriptor that keeps a folder for this process until it is closed; None where another process has it, and
    that is not waited for.

    NFS locks no folder: there it is by a file in it. Where nothing can be locked, all who ask have it.
    """
    how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    for name, flags in ((".", os.O_RDONLY), (LOCK, os.O_RDWR | os.O_CREAT)):
        descriptor = os.open(os.path.join(str(folder), name), flags, 0o644)
        try:
            fcntl.flock(descriptor, how)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
    return os.open(str(folder), os.O_RDONLY)


def sync(folder):
    """Has a folder's list of files on the disk, as `fsync` has a file's content."""
    descriptor = os.open(str(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path):
    with open(str(path), encoding="utf-8") as file:
        return json.load(file)
