"""The files of a dataset: walked by batches, never listed whole, so that memory does not grow with their number.

Their digest is a sum, modulo 2**256, of each file's SHA-256 over its relative path, size and contents: no order is
in it, so files may be read in whatever order is fast, by several processes. It tells damage and other versions apart;
it is no signature, as sums of hashes can be forged by whoever sets out to.
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
"""The file at the top of a folder of ours that is none of its dataset's."""
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SAMPLES = (*IMAGES, ".tsv")
"""What files are called that samples are in."""
BATCH = 128
SORTED = 4096
"""Names of a folder that are brought into the order of their inodes: about that of the disk."""
FEW = 2
"""Batches that one process has done before others have begun."""
PROCESSES = min(4, len(os.sched_getaffinity(0)))
"""Threads would not do: with small files two of them wait for the interpreter's lock longer than one works."""
CHUNK_BYTES = 1 << 20
MODULUS = 1 << 256
PR_SET_PDEATHSIG = 1


class Batch(NamedTuple):
    """Some of the files of one folder; none, where a folder is empty."""

    within: str
    """The folder, relative to the top."""
    names: list[str]


class Sum(NamedTuple):
    """What files add up to."""

    files: int = 0
    bytes: int = 0
    digest: int = 0

    def plus(self, other: Sum) -> Sum:
        return Sum(self.files + other.files, self.bytes + other.bytes, (self.digest + other.digest) % MODULUS)

    @property
    def hexdigest(self) -> str:
        return f"{self.digest:064x}"


Act = Callable[[Batch], Sum]
"""Does something with a batch."""


_acts: list[Act] = []
"""What a process of the pool is there for: inherited, since it cannot be sent."""


def batches(top: str, images: bool = False) -> Iterator[Batch]:
    """All files below `top`, links followed; of a user's tree (`images`) only what is trained on.

    OSError for what cannot be listed, RuntimeError for what is neither file nor folder.
    """
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [(within, ()) for within in _tops(top, images)]
    while pending:
        within, above = pending.pop()
        status = os.stat(join(top, within))
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue  # a link that leads back to a folder it lies in
        found: list[tuple[int, str]] = []
        with os.scandir(join(top, within)) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir():
                    if not (images and name.startswith(".")):
                        pending.append((join(within, name), (*above, here)))
                elif name.lower().endswith(SAMPLES) and name[0] != "." if images else within or name != NAME:
                    if not entry.is_file():
                        raise RuntimeError(
                            f"{entry.path} is neither a file nor a folder, or links to nothing. Remove it."
                        )
                    found.append((entry.inode(), name))
                    if len(found) == SORTED:
                        yield from _batched(within, found)
                        found.clear()
        yield from _batched(within, found) if found else [Batch(within, [])]


def files(top: str, images: bool = False) -> Iterator[str]:
    """The path of each file, relative to `top`."""
    return (join(batch.within, name) for batch in batches(top, images) for name in batch.names)


def summed(found: Iterator[Batch], act: Act, tell: Callable[[Sum], object] = lambda _: None) -> Sum:
    """The sum of what `act` gives for each batch, by a few processes if there are many; `tell` hears how far it is."""
    total = Sum()
    first = list(islice(found, FEW + 1))
    if len(first) <= FEW:
        for batch in first:
            total = total.plus(act(batch))
            tell(total)
        return total
    others = active_children()
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
            for process in set(active_children()).difference(others):
                process.terminate()  # it may be at a file that takes long
            pool.shutdown(cancel_futures=True)  # none of them works on when this ends
            raise
    return total


def _begin(act: Act, parent: int) -> None:
    """A process of the pool: it is its parent that signals end, and it ends with its parent, however that ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _acts.append(act)


def _do(batch: Batch) -> Sum:
    return _acts[0](batch)


def sizes(top: str) -> Act:
    """Sums names and sizes: what can be known of files that are not read."""

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
    """Sums the contents too; `evict`: read from the medium, past what the page cache holds of clean pages."""

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
                digested = opened_digest(path, size)
                while chunk := os.read(descriptor, min(size + 1, CHUNK_BYTES)):
                    digested.update(chunk)
            finally:
                os.close(descriptor)
            total += size
            digest += int.from_bytes(digested.digest(), "big")
        return Sum(len(batch.names), total, digest)

    return act


def opened_digest(path: str, size: int) -> hashlib._Hash:
    """A file's SHA-256 before its contents are in it."""
    return hashlib.sha256(b"%s\0%d\0" % (os.fsencode(path), size))


def _tops(top: str, images: bool) -> list[str]:
    """Where to begin: of a user's folder with train/ only that and val/, as nothing else of it is trained on."""
    splits = [split for split in ("train", "val") if os.path.isdir(join(top, split))]
    return splits if images and "train" in splits else [""]


def _batched(within: str, found: list[tuple[int, str]]) -> Iterator[Batch]:
    found.sort()
    for first in range(0, len(found), BATCH):
        yield Batch(within, [name for _, name in found[first : first + BATCH]])
