"""The kernel's mount table, and the mount of a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """A line of the mount table.

    Attributes:
        number: Device number `major:minor`.
        point: Mount point.
        filesystem: Type of the file system.
        source: Device or other source.
        options: Options in order; an overlay repeats one for each layer.
    """

    number: str
    point: str
    filesystem: str
    source: str
    options: list[tuple[str, str]]


def mount_of(number: str, folder: Path, root: Path) -> Mount | None:
    """Find the mount of a folder: the innermost one with the folder's device number.

    Files of btrfs have the number of their subvolume, which the table lacks; then it is the innermost mount of all.
    """
    parents = [mount for mount in reversed(_mounts(root)) if folder.is_relative_to(mount.point)]
    candidates = [mount for mount in parents if mount.number == number] or parents
    return max(candidates, key=lambda mount: len(mount.point), default=None)  # the last mount at a point comes first


def _mounts(root: Path) -> list[Mount]:
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        entry, _, system = line.partition(" - ")
        _, _, number, _, point, *_ = entry.split(" ")
        filesystem, source, options = [*system.split(" "), "", ""][:3]
        pairs = [(key, _unescape(value)) for key, _, value in (option.partition("=") for option in options.split(","))]
        mounts.append(Mount(number, _unescape(point), filesystem, _unescape(source), pairs))
    return mounts


def _unescape(text: str) -> str:
    """Decode a path, in which the kernel writes blanks and similar characters as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
