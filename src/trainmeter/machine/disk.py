"""The disk that a folder lies on."""

from __future__ import annotations

import os
from pathlib import Path


def disk_of(folder: Path) -> str:
    """The name of the disk that a folder's files are read from, such as nvme0n1; ValueError where there is none."""
    number = os.stat(folder).st_dev
    if os.major(number):
        return _disk(number)
    kind, source = _mount(number)
    if source.startswith("/dev/"):  # btrfs and zfs have numbers of their own
        return _disk(os.stat(source).st_rdev)
    raise ValueError(f"{folder} lies on {kind}, and on no one disk of this machine.")


def _disk(number: int) -> str:
    """The disk of that number, or the one that a partition of that number is part of."""
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    return device.parent.name if (device / "partition").exists() else device.name


def _mount(number: int) -> tuple[str, str]:
    """The kind and the source of the file system of that number."""
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, system = line.partition(" - ")
        if mount.split()[2] == wanted:
            kind, source, *_ = system.split()
            return kind, source
    return "an unknown file system", ""
