"""Free disk space, and errors of writing to a disk."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


def check_free_space(folder: Path, needed_bytes: float, content: str, setting: str = "dataset.root") -> None:
    """Raise RuntimeError if the disk of `folder` has too little free space.

    For the message, `content` names the data, and `setting` the key that moves it to another disk.
    """
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise RuntimeError(
            f"not enough disk space in {folder}: {content} needs {needed_bytes / 1e6:,.1f} MB, and "
            f"{free_bytes / 1e6:,.1f} MB are free. Free disk space, or set {setting}= to another folder."
        )


@contextmanager
def explain_write_errors(folder: Path, content: str, setting: str = "dataset.root") -> Iterator[None]:
    """Create `folder`, and turn errors of writing to it into a RuntimeError with a remedy; see `check_free_space`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        is_full = error.errno in DISK_FULL_ERRORS
        remedy = "Free disk space" if is_full else "Check that its disk is writable and healthy"
        free = f" ({shutil.disk_usage(folder).free / 1e6:,.1f} MB are free)" if is_full else ""
        raise RuntimeError(
            f"cannot write {content} to {folder}: {error}{free}. {remedy}, or set {setting}= to another folder."
        ) from error
