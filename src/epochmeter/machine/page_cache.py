"""The page cache's part in a dataset: files put out of it, taken into it, and the share of them it holds.

What the kernel offers for each, as it was found to be:

    posix_fadvise  puts a file's pages out, for whoever may read it; dirty pages and mapped ones stay
    drop_caches    all files' pages, inodes and directories at once, for root alone
    mincore        which pages of a file are cached; to whoever could not write it, Linux >= 5.2 says that all are
    cachestat      the same in one call (Linux >= 6.5), but 0 for every file of an overlay, as a container sees them
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

CHUNK = 1 << 20
MOST_FILES = 20_000
"""How many files the cached share is taken from: a look at one takes some 15 us, and a million are not looked at twice
for every epoch."""
STAYED, FITS = 0.01, 0.99
"""The share of a cold dataset that may be cached without a word, and that of a warm one that has to be."""
DROP = "/proc/sys/vm/drop_caches"
LIMIT_S = 120
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class Residency:
    """The share of a dataset's training files that the page cache holds, looked at time and again."""

    def __init__(self, folder: Path) -> None:
        train = folder / "train"
        self._sample = sampled(files(train if train.is_dir() else folder), MOST_FILES)
        self.reason: str | None = None
        """Why the share is not known."""

    def share(self) -> float | None:
        """0 to 1; None where the kernel would not say, or nothing can be read."""
        try:
            found = cached_share(self._sample)
        except OSError as error:
            self.reason = f"they cannot be looked at: {error}"
            return None
        if found is None:
            self.reason = "the files are another user's, or empty: the kernel tells nothing of their pages"
        return found


def prepare(cache: str, folder: Path, epoch: int = 0) -> str | None:
    """Does before an epoch what `cache` asks, `keep`, `cold`, `cold_each_epoch` or `warm`; whether the files are to be
    `cold` or `warm` now, or None where nothing was done."""
    if cache == "cold_each_epoch" or (cache == "cold" and epoch == 0):
        evict(files(folder))
        return "cold"
    if cache == "warm" and epoch == 0:
        warm(files(folder))
        return "warm"
    return None


def missed(asked: str | None, share: float | None, medium: str = "unknown") -> list[str]:
    """A note where the cached share is not what was asked for, `cold` or `warm`, or is not known to be, of a dataset
    on that medium."""
    if asked == "cold" and medium == "ram":
        return ["page cache: the dataset lies in memory: it cannot be cold, though cold was asked for."]
    if asked and share is None:
        return [f"page cache: whether the dataset is {asked} cannot be known here."]
    if asked == "cold" and share and share > STAYED:
        return [f"page cache: {share:.0%} of the dataset stayed in it, though cold was asked for."]
    if asked == "warm" and share is not None and share < FITS:
        return [f"page cache: {share:.0%} of the dataset is in it, though warm was asked for: it has no room for more."]
    return []


def files(folder: Path) -> Iterator[str]:
    """Every file below the folder, links followed as loaders of images do, no folder gone through twice.

    A folder that cannot be read is passed over, such as the lost+found of a card: nobody trains on it.
    """
    below, gone_through = [str(folder)], set()
    while below:
        place = below.pop()
        try:
            status = os.stat(place)
            if (status.st_dev, status.st_ino) in gone_through:
                continue  # a link that leads back
            gone_through.add((status.st_dev, status.st_ino))
            with os.scandir(place) as entries:
                for entry in entries:
                    linked = entry.is_symlink()
                    if os.path.isdir(entry.path) if linked else entry.is_dir():
                        below.append(entry.path)
                    elif os.path.isfile(entry.path) if linked else entry.is_file():  # not a pipe: that would block
                        yield entry.path
        except OSError:
            continue


def sampled(paths: Iterable[str], most: int) -> list[str]:
    """At most so many of the paths, each as likely as any other, the same ones each time."""
    chance = random.Random(0)
    chosen: list[str] = []
    for count, path in enumerate(paths):
        if count < most:
            chosen.append(path)
        elif (place := chance.randrange(count + 1)) < most:
            chosen[place] = path
    return chosen


def evict(paths: Iterable[str]) -> None:
    """Puts files out of the page cache; pages that a process has mapped stay.

    Needs no more than the right to read them; a file that cannot be opened is left to whoever trains on it.
    """
    os.sync()  # a dirty page would stay; one call for all, as an fsync flushes the disk for every file
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def drop_caches() -> None:
    """Has the kernel drop its caches: the pages of all files on the machine, and inodes and directories as well.

    As root, or by `sudo -n`; RuntimeError where neither is allowed.
    """
    os.sync()
    try:
        with open(DROP, "w") as control:
            control.write("3")
        return
    except OSError as error:
        refused = str(error)
    try:
        tee = subprocess.run(["sudo", "-n", "tee", DROP], input="3", capture_output=True, text=True, timeout=LIMIT_S)
        if tee.returncode == 0:
            return
        refused += f"; sudo: {tee.stderr.strip()}"
    except (OSError, subprocess.TimeoutExpired) as error:
        refused += f"; sudo: {error}"
    raise RuntimeError(
        f"drop_caches=true was asked for, and this user may not ({refused}). Allow it with a line in sudoers, "
        f"`{_user()} ALL=(root) NOPASSWD: /usr/bin/tee {DROP}`, or leave it out: cache=cold evicts the dataset's own "
        "files without it."
    )


def warm(paths: Iterable[str]) -> None:
    """Reads files whole, so that the page cache holds what it has room for.

    A file that cannot be read is left to whoever trains on it.
    """
    buffer = bytearray(CHUNK)
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        except OSError:
            continue


def cached_share(paths: Iterable[str]) -> float | None:
    """The share of the files' pages that the page cache holds, 0 to 1; None where the kernel would not say."""
    cached = pages = 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() and not os.access(path, os.W_OK):
                return None
            resident = _resident(file.fileno(), status.st_size)
        cached += sum(resident)
        pages += len(resident)
    return cached / pages if pages else None


def _resident(descriptor: int, size: int) -> bytes:
    """A byte for each page of the file: 1 where it is in memory."""
    if size == 0:
        return b""  # nothing that could be mapped
    resident = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = LIBC.mincore(ctypes.addressof(first), size, resident)
        finally:
            del first  # as long as it lives, the mapping cannot be closed
    if failed:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return resident.raw


def _user() -> str:
    return os.environ.get("USER", "USER")
