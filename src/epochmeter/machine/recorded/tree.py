"""The files of a machine below its root, as entries of a recording: content, type, permissions, and links.

A pattern such as `sys/class/hwmon/hwmon*/name` leads through links. Each link is an entry of its own, so that the files
are found below the root of a replay by all of their paths.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from epochmeter.machine.recorded import inventory

MAX_FILE_BYTES = 1 << 20  # a larger file is not recorded
MAX_LINKS = 40  # of a path, as the kernel follows at most


@dataclass(frozen=True)
class Entry:
    """A file or a link.

    Attributes:
        path: Its path below the root, without links on the way.
        mode: Its permissions.
        content: The content of a file; None of a link, a folder, and a file that cannot be read.
        target: The target of a link, relative to its folder.
        access: What this user may do with a file: a part of `rw`.
        reason: Why a file could not be read; empty if it could.
    """

    path: str
    mode: int
    content: bytes | None = None
    target: str | None = None
    access: str = ""
    is_folder: bool = False
    reason: str = ""


@dataclass
class Tree:
    """The entries by path, and the files that could not be read, with the reason."""

    entries: dict[str, Entry] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def read_tree(root: Path) -> Tree:
    """Read the files of the inventory below a root."""
    root, tree = root.resolve(), Tree()
    for pattern in inventory.FILES:
        for path in _matching(root, pattern):
            if not _is_identifying(path):
                _add_file(tree, root, path)
    for pattern in inventory.FOLDERS:
        for path in _matching(root, pattern):
            place, links = resolve_below(root, path)
            if place and (root / place).is_dir():
                tree.entries.update({link.path: link for link in links})
                tree.entries.setdefault(place, Entry(place, 0o755, is_folder=True))
    return tree


def files_of(root: Path, tree: Tree, patterns: Iterable[str]) -> list[str]:
    """Return the readable files of a tree that patterns match, by their paths without links."""
    root, found = root.resolve(), dict[str, None]()
    for pattern in patterns:
        for path in _matching(root, pattern):
            place, _ = resolve_below(root, path)
            if place in tree.entries and tree.entries[place].content is not None:
                found[place] = None
    return list(found)


def _matching(root: Path, pattern: str) -> list[Path]:
    try:
        return sorted(root.glob(pattern))
    except OSError:  # a folder that may not be listed, or that was removed
        return []


def _is_identifying(path: Path) -> bool:
    is_gpu = path.name in inventory.GPU_FACTS and "drm" in path.parts
    return bool(re.search(inventory.IDENTIFYING, path.name)) and not is_gpu


def _add_file(tree: Tree, root: Path, path: Path) -> None:
    """Add a regular file, and the links on the way to it; other types are left out."""
    place, links = resolve_below(root, path)
    if place is None or place in tree.missing:
        return
    try:
        entry = tree.entries.get(place) or _file_entry(root / place, place)
    except OSError as error:
        tree.missing[place] = error.strerror or type(error).__name__
        return
    if entry is None:
        return
    tree.entries.update({each.path: each for each in (*links, entry)})
    if entry.reason:
        tree.missing[place] = entry.reason


def _file_entry(file: Path, place: str) -> Entry | None:
    """Return the entry of a regular file, None of another type. OSError if it was removed meanwhile."""
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        return None
    mode = stat.S_IMODE(status.st_mode) & 0o777
    access = "".join(letter for letter, way in (("r", os.R_OK), ("w", os.W_OK)) if _may(file, way))
    if not mode & 0o444:  # it takes commands only
        return Entry(place, mode, access=access)
    try:
        content = read_content(file)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Entry(place, mode, access=access if error.errno != errno.EACCES else "", reason=reason)
    if len(content) > MAX_FILE_BYTES:
        return Entry(place, mode, access=access, reason=f"larger than {MAX_FILE_BYTES} bytes")
    return Entry(place, mode, content, access=access)


def _may(file: Path, way: int) -> bool:
    return os.access(file, way, effective_ids=os.access in os.supports_effective_ids)


def read_content(file: str | Path) -> bytes:
    """Return the content of a file, up to somewhat more than `MAX_FILE_BYTES`; OSError if it cannot be read."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        return opened.read(MAX_FILE_BYTES + 1)


def resolve_below(root: Path, path: Path) -> tuple[str | None, list[Entry]]:
    """Follow the links on the way to a path below a root.

    The absolute target of a link, such as `/sys/devices/...`, is below the root.

    Returns:
        The place without links, None if it is outside of the root or a loop, and the links.
    """
    rest, place, links = [*path.relative_to(root).parts], PurePosixPath(), list[Entry]()
    while rest and len(links) <= MAX_LINKS:
        name = rest.pop(0)
        if name == "..":
            if not place.parts:
                return None, []
            place = place.parent
            continue
        here = place / name
        target = _target(root, here)
        if not target:
            place = here
            continue
        if target.startswith("/"):
            inside = PurePosixPath(target)
            inside = inside.relative_to(root if inside.is_relative_to(root) else "/")
            target, place = os.path.relpath("/" / inside, "/" / here.parent), PurePosixPath()
            rest = [*inside.parts, *rest]
        else:
            rest = [*PurePosixPath(target).parts, *rest]
        links.append(Entry(str(here), 0o777, target=target))
    return (None, []) if rest else (str(place), links)


def _target(root: Path, place: PurePosixPath) -> str:
    """Return the target of a link; empty if it is none. `proc/self` is no link here, as its target is a process ID."""
    try:
        return "" if place == PurePosixPath("proc/self") else os.readlink(root / place)
    except OSError:
        return ""
