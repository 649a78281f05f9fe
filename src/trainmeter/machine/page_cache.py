"""The page cache's part in a dataset: files put out of it, taken into it, and the share of them it holds."""

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

CHUNK = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def prepare(cache: str, folder: Path, epoch: int = 0) -> list[str]:
    """Does before an epoch what `cache` asks, `keep`, `cold`, `cold_each_epoch` or `warm`; what is to be said of it:
    a cache that is called cold is looked at, and one that could not be emptied is not passed over in silence."""
    if cache == "cold_each_epoch" or (cache == "cold" and epoch == 0):
        evict(files(folder))
        return unevicted(cached_share(files(folder)))
    if cache == "warm" and epoch == 0:
        warm(files(folder))
    return []


def unevicted(share: float | None) -> list[str]:
    """A note where the share of a dataset that stayed in the page cache is not known, or is more than a hundredth."""
    if share is None:
        return ["page cache: whether the dataset left it cannot be known here: its files are another user's."]
    return [f"page cache: {share:.0%} of the dataset stayed in it, though cold was asked for."] if share > 0.01 else []


def files(folder: Path) -> Iterator[str]:
    """Every file below the folder."""
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names)


def evict(paths: Iterable[str]) -> None:
    """Puts files out of the page cache; pages that a process has mapped stay.

    Needs no more than the right to read them.
    """
    os.sync()  # a dirty page would stay; one call for all, as an fsync flushes the disk for every file
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(paths: Iterable[str]) -> None:
    """Reads files whole, so that the page cache holds what it has room for."""
    buffer = bytearray(CHUNK)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def cached_share(paths: Iterable[str]) -> float | None:
    """The share of the files' pages that the page cache holds, 0 to 1; None where the kernel would not say.

    By mincore: cachestat (Linux >= 6.5) saves 5 microseconds a file, but says 0 of every file of an overlay,
    which is what a container sees. To whoever could not write a file, Linux >= 5.2 says that all is cached.
    """
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
        failed = LIBC.mincore(ctypes.addressof(first), size, resident)
        del first  # as long as it lives, the mapping cannot be closed
    if failed:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return resident.raw
