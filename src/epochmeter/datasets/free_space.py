"""Check of free disk space, for makers that know how much they write."""

import shutil
from pathlib import Path


def check_free_space(folder: Path, needed: float, what: str) -> None:
    """Raise RuntimeError if the disk of `folder` has less than `needed` bytes free for `what`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RuntimeError(
            f"not enough disk space in {folder.parent}: {what} need {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are "
            "free. Free disk space, or set dataset.root= to another folder."
        )
