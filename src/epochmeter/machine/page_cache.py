"""Page-cache control for a dataset's files: evict them, read them into the cache, and measure the cached fraction.

The kernel's interfaces, as tested:

    posix_fadvise  evicts a file's pages if the user may read it; dirty and mapped pages stay
    drop_caches    drops all pages, inodes and directory entries; root only
    mincore        lists the cached pages; for files you neither own nor may write, Linux >= 5.2 reports all as cached
"""

import ctypes
import heapq
import mmap
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from epochmeter.machine import privilege
from epochmeter.shared.problem import MachineError, problem_of
from epochmeter.shared.units import percent

CHUNK_BYTES = 1 << 20
MAX_FILES = 20_000  # largest random sample of the dataset's files: one takes about 15 us, twice per epoch
MAX_COLD_FRACTION, MIN_WARM_FRACTION = 0.01, 0.99  # limits of the cached fraction without a note
DROP_CACHES_FILE = Path("/proc/sys/vm/drop_caches")
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class Residency:
    """The fraction of a dataset's training files in the page cache; `reason` is why it is unknown."""

    def __init__(self, folder: Path) -> None:
        train, chance = folder / "train", random.Random(0)
        files = iter_files(train if train.is_dir() else folder)
        self._sample = heapq.nsmallest(MAX_FILES, files, key=lambda _: chance.random())
        self.reason: str | None = None

    def fraction(self) -> float | None:
        """Measure the cached fraction, 0 to 1; None if it is unknown."""
        try:
            fraction = resident_fraction(self._sample)
        except (OSError, ValueError) as error:  # such as a file that was removed or truncated meanwhile
            self.reason = f"the files cannot be examined: {error}"
            return None
        if fraction is None:
            self.reason = "the files belong to another user or are empty, so that the kernel does not report it"
        return fraction


def prepare_cache(cache: str, folder: Path, epoch: int = 0) -> str | None:
    """Prepare the page cache before an epoch, counted from 0; returns `cold`, `warm`, or None if nothing was done."""
    if cache == "cold_each_epoch" or (cache == "cold" and epoch == 0):
        evict(iter_files(folder))
        return "cold"
    if cache == "warm" and epoch == 0:
        read_into_cache(iter_files(folder))
        return "warm"
    return None


def residency_warning(expected: str | None, fraction: float | None, medium: str = "unknown") -> list[str]:
    """Return a note if the cached fraction is unknown or not the expected one (`cold`, `warm` or any)."""
    if expected == "cold" and medium == "ram":
        return ["page cache: cold is not possible, since the dataset is in memory."]
    if expected and fraction is None:
        return [f"page cache: cannot check that the dataset is {expected}."]
    if expected == "cold" and fraction and fraction > MAX_COLD_FRACTION:
        return [f"page cache: {percent(fraction)} of the dataset is cached instead of none (cold)."]
    if expected == "warm" and fraction is not None and fraction < MIN_WARM_FRACTION:
        cached = percent(fraction)
        return [f"page cache: only {cached} of the dataset is cached instead of all (warm); more does not fit."]
    return []


def iter_files(top: Path) -> Iterator[str]:
    """Iterate over all files below a folder, or yield a file itself; unreadable folders are skipped."""
    if os.path.isfile(top):
        yield str(top)
    visited: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(top, followlinks=True):
        status = os.stat(folder)
        if (identity := (status.st_dev, status.st_ino)) in visited:
            folders.clear()  # it was reached by another link
            continue
        visited.add(identity)
        yield from filter(os.path.isfile, (os.path.join(folder, name) for name in names))  # a pipe would block


def evict(paths: Iterable[str]) -> None:
    """Evict files from the page cache; files that cannot be opened are skipped."""
    os.sync()  # dirty pages would stay; one call for all, since fsync would flush the disk once per file
    for path in paths:
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def drop_caches() -> None:
    """Drop the kernel's caches of the machine, as root or by `sudo -n`; RuntimeError if neither is allowed."""
    os.sync()
    try:
        privilege.write_file(DROP_CACHES_FILE, "3")
    except RuntimeError as error:
        raise MachineError(problem_of(error).within("drop_caches=true")) from error


def read_into_cache(paths: Iterable[str]) -> None:
    """Read files completely, so that the page cache holds as many of them as fit; unreadable files are skipped."""
    buffer = bytearray(CHUNK_BYTES)
    for path in paths:
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def resident_fraction(paths: Iterable[str]) -> float | None:
    """The fraction of the files' pages in the page cache, 0 to 1; None if the kernel does not report it."""
    cached = pages = 0
    is_privileged = privilege.has_capability(privilege.CAP_FOWNER)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not is_privileged and status.st_uid != os.geteuid() and not os.access(path, os.W_OK):
                return None
            resident = _resident_pages(file.fileno(), status.st_size)
        cached += sum(resident)
        pages += len(resident)
    return cached / pages if pages else None


def _resident_pages(descriptor: int, size: int) -> bytes:
    """One byte per page of the file: 1 if it is cached."""
    if size == 0:
        return b""  # an empty file cannot be mapped
    resident = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        try:
            if LIBC.mincore(ctypes.addressof(first), size, resident):
                raise OSError(ctypes.get_errno(), "mincore failed")
        finally:
            del first  # the mapping cannot be closed while this exists
    return resident.raw
