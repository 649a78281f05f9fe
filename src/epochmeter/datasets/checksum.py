"""Checksum of a dataset's files, computed in batches so that memory does not grow with their number.

It is the sum, modulo 2**256, of each file's SHA-256 over its relative path, size and contents. The sum does not depend
on the order, so files are read in whatever order is fast, by several processes. It detects damage and other versions
but is no signature: sums of hashes can be forged deliberately.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from multiprocessing import active_children, get_context
from os.path import join
from typing import NamedTuple

NAME = "manifest.json"
"""The manifest, at the top of a folder made by epochmeter; not part of the dataset."""
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SAMPLES = (*IMAGES, ".tsv")
"""Extensions of files that contain samples."""
BATCH = 128
SORTED = 4096
"""Number of names that are sorted by inode at a time: about their order on disk."""
FEW = 2
"""With at most this many batches, no pool of processes is started."""
PROCESSES = min(4, len(os.sched_getaffinity(0)))
"""Processes, as threads would mostly wait for the interpreter's lock with small files."""
CHUNK_BYTES = 1 << 20
MODULUS = 1 << 256
PR_SET_PDEATHSIG = 1


class Batch(NamedTuple):
    """Some files of one folder; no names if the folder is empty.

    Attributes:
        within: The folder, relative to the top.
        names: File names.
    """

    within: str
    names: list[str]


class Sum(NamedTuple):
    """Totals over files.

    Attributes:
        files: Number of files.
        bytes: Their size.
        digest: Sum of their SHA-256 modulo 2**256.
    """

    files: int = 0
    bytes: int = 0
    digest: int = 0

    def plus(self, other: Sum) -> Sum:
        """Return the totals of both."""
        return Sum(self.files + other.files, self.bytes + other.bytes, (self.digest + other.digest) % MODULUS)

    @property
    def hexdigest(self) -> str:
        """The checksum in 64 hexadecimal digits."""
        return f"{self.digest:064x}"


Act = Callable[[Batch], Sum]
"""Processes a batch and returns its totals."""


_acts: list[Act] = []
"""The pool process's function: inherited by fork, as it cannot be pickled."""


def batches(top: str, images: bool = False) -> Iterator[Batch]:
    """Yield all files below `top` in batches, following links.

    Args:
        top: The folder.
        images: For a user's folder: only files that are trained on.

    Raises:
        OSError: A folder cannot be listed.
        RuntimeError: An entry is neither a file nor a folder.
    """
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [(within, ()) for within in _tops(top, images)]
    while pending:
        within, ancestors = pending.pop()
        status = os.stat(join(top, within))
        identity = (status.st_dev, status.st_ino)
        if identity in ancestors:
            continue  # a link to one of its own parent folders
        names: list[tuple[int, str]] = []
        with os.scandir(join(top, within)) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir():
                    if not (images and name.startswith(".")):
                        pending.append((join(within, name), (*ancestors, identity)))
                elif name.lower().endswith(SAMPLES) and name[0] != "." if images else within or name != NAME:
                    if not entry.is_file():
                        raise RuntimeError(
                            f"{entry.path} is neither a file nor a folder, or is a broken link. Delete it."
                        )
                    names.append((entry.inode(), name))
                    if len(names) == SORTED:
                        yield from _batched(within, names)
                        names.clear()
        yield from _batched(within, names) if names else [Batch(within, [])]


def files(top: str, images: bool = False) -> Iterator[str]:
    """Yield the path of each file, relative to `top`."""
    return (join(batch.within, name) for batch in batches(top, images) for name in batch.names)


def summed(found: Iterator[Batch], act: Act, tell: Callable[[Sum], object] = lambda _: None) -> Sum:
    """Return the sum of `act` over all batches, computed by several processes if there are many.

    Args:
        found: The batches.
        act: Processes a batch and returns its totals.
        tell: Receives the totals so far.
    """
    total = Sum()
    first = list(islice(found, FEW + 1))
    if len(first) <= FEW:
        for batch in first:
            total = total.plus(act(batch))
            tell(total)
        return total
    other_processes = active_children()
    pending = deque[Future[Sum]]()
    with ProcessPoolExecutor(PROCESSES, get_context("fork"), _begin, (act, os.getpid())) as pool:
        try:
            for batch in chain(first, found):
                pending.append(pool.submit(_do, batch))
                if len(pending) > 4 * PROCESSES:
                    total = total.plus(pending.popleft().result())
                    tell(total)
            for future in pending:
                total = total.plus(future.result())
                tell(total)
        except BaseException:
            for process in set(active_children()).difference(other_processes):
                process.terminate()  # it may be reading a large file
            pool.shutdown(cancel_futures=True)  # wait until all have ended
            raise
    return total


def _begin(act: Act, parent: int) -> None:
    """Initialize a pool process: signals go to the parent, and it dies with the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _acts.append(act)


def _do(batch: Batch) -> Sum:
    return _acts[0](batch)


def sizes(top: str) -> Act:
    """Return a function that sums names and sizes, without reading contents."""

    def act(batch: Batch) -> Sum:
        total = 0
        digest = 0
        for name in batch.names:
            path = join(batch.within, name)
            size = os.stat(join(top, path)).st_size
            total += size
            digest += int.from_bytes(opened_digest(path, size).digest(), "big")
        return Sum(len(batch.names), total, digest)

    return act


def contents(top: str, evict: bool = False) -> Act:
    """Return a function that sums names, sizes and contents.

    Args:
        top: The folder.
        evict: Read from the storage device: drop clean pages from the page cache first.
    """

    def act(batch: Batch) -> Sum:
        total = 0
        digest = 0
        for name in batch.names:
            path = join(batch.within, name)
            descriptor = os.open(join(top, path), os.O_RDONLY)
            try:
                size = os.fstat(descriptor).st_size
                if evict:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                sha256 = opened_digest(path, size)
                while chunk := os.read(descriptor, min(size + 1, CHUNK_BYTES)):
                    sha256.update(chunk)
            finally:
                os.close(descriptor)
            total += size
            digest += int.from_bytes(sha256.digest(), "big")
        return Sum(len(batch.names), total, digest)

    return act


def opened_digest(path: str, size: int) -> hashlib._Hash:
    """Return a SHA-256 over a file's path and size, to be updated with its contents."""
    return hashlib.sha256(b"%s\0%d\0" % (os.fsencode(path), size))


def _tops(top: str, images: bool) -> list[str]:
    """Return where to start: only train/ and val/ of a user's folder that has train/, as only these are used."""
    splits = [split for split in ("train", "val") if os.path.isdir(join(top, split))]
    return splits if images and "train" in splits else [""]


def _batched(within: str, entries: list[tuple[int, str]]) -> Iterator[Batch]:
    entries.sort()
    for first in range(0, len(entries), BATCH):
        yield Batch(within, [name for _, name in entries[first : first + BATCH]])
