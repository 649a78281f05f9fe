"""Folders in the temporary directory. If their process is killed, the next one that needs such a folder removes them.

A folder is locked by its process, and the kernel releases the lock when that ends, also in another container.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "epochmeter-run-"


@contextmanager
def temporary_folder(parent: str | None = None) -> Iterator[Path]:
    """Create a folder in the temporary directory, or in `parent`, and remove it at the end of the `with` block."""
    folder, lock = create_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def create_folder(parent: str | None = None) -> tuple[Path, int]:
    """Create such a folder; return it, and the descriptor of its lock, which has to stay open as long as it is used."""
    remove_abandoned(Path(parent or tempfile.gettempdir()))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: the folder is never seen as abandoned
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # else another process has removed it, before it was locked
            return folder, lock
        os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user whose processes have ended."""
    with os.scandir(parent) as entries:
        own_folders = [child.path for child in entries if child.name.startswith(PREFIX) and _is_own_folder(child)]
    for folder in own_folders:
        with suppress(OSError):  # another process has the lock, or has removed the folder
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _is_own_folder(path: "os.DirEntry[str]") -> bool:
    with suppress(OSError):  # it is gone
        return path.is_dir(follow_symlinks=False) and path.stat(follow_symlinks=False).st_uid == os.geteuid()
    return False
