"""The table of mounts: which of them a folder is reached through."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """A line of the table of mounts."""

    number: str
    point: str
    filesystem: str
    source: str
    options: list[tuple[str, str]]
    """As they are named there: an overlay has an option of the same name for each layer."""


def mount_of(number: str, folder: Path, root: Path) -> Mount | None:
    """The mount that a folder is reached through: of those of its file system the one nearest to it.

    Files of a btrfs have the number of their subvolume, which the table does not name: there the nearest of all.
    """
    above = [mount for mount in reversed(_mounts(root)) if folder.is_relative_to(mount.point)]
    found = [mount for mount in above if mount.number == number] or above
    return max(found, key=lambda mount: len(mount.point), default=None)  # of those at one point, the one mounted last


def _mounts(root: Path) -> list[Mount]:
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        ours, _, system = line.partition(" - ")
        _, _, number, _, point, *_ = ours.split(" ")
        filesystem, source, options = [*system.split(" "), "", ""][:3]
        pairs = [(key, _plain(value)) for key, _, value in (option.partition("=") for option in options.split(","))]
        mounts.append(Mount(number, _plain(point), filesystem, _plain(source), pairs))
    return mounts


def _plain(text: str) -> str:
    """A path as it is: the kernel writes blanks and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
