"""Room on a disk, for a maker that knows what it is going to write."""

import shutil
from pathlib import Path


def check(folder: Path, needed: float, what: str) -> None:
    """RuntimeError where the disk that `folder` is on has not `needed` bytes for `what`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RuntimeError(
            f"{folder.parent} has no room: {what} need {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free. Make "
            "room there, or give another folder with dataset.root=."
        )
