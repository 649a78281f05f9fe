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

MANIFEST_NAME = "manifest.json"
"""The manifest, at the top of a folder made by epochmeter; not part of the dataset."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SAMPLE_SUFFIXES = (*IMAGE_SUFFIXES, ".tsv")
"""Extensions of files that contain samples."""
FILES_PER_BATCH = 128
MAX_SORTED = 4096
"""Number of names that are sorted by inode at a time: about their order on disk."""
POOL_THRESHOLD = 2
"""With at most this many batches, no pool of processes is started."""
MAX_PROCESSES = min(4, len(os.sched_getaffinity(0)))
"""Processes, as threads would mostly wait for the interpreter's lock with small files."""
CHUNK_BYTES = 1 << 20
MODULUS = 1 << 256
PR_SET_PDEATHSIG = 1


class FileBatch(NamedTuple):
    """Some files of one folder; no names if the folder is empty.

    Attributes:
        within: The folder, relative to the top.
        names: File names.
    """

    subfolder: str
    names: list[str]


class Checksum(NamedTuple):
    """Totals over files.

    Attributes:
        files: Number of files.
        bytes: Their size.
        digest: Sum of their SHA-256 modulo 2**256.
    """

    files: int = 0
    bytes: int = 0
    digest: int = 0

    def add(self, other: Checksum) -> Checksum:
        """Return the totals of both."""
        return Checksum(self.files + other.files, self.bytes + other.bytes, (self.digest + other.digest) % MODULUS)

    @property
    def hexdigest(self) -> str:
        """The checksum in 64 hexadecimal digits."""
        return f"{self.digest:064x}"


BatchTask = Callable[[FileBatch], Checksum]
"""Processes a batch and returns its totals."""


_pool_tasks: list[BatchTask] = []
"""The pool process's function: inherited by fork, as it cannot be pickled."""


def iter_batches(top: str, images: bool = False) -> Iterator[FileBatch]:
    """Yield all files below `top` in batches, following links.

    Args:
        top: The folder.
        images: For a user's folder: only files that are trained on.

    Raises:
        OSError: A folder cannot be listed.
        RuntimeError: An entry is neither a file nor a folder.
    """
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [(within, ()) for within in _top_folders(top, images)]
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
                elif (
                    name.lower().endswith(SAMPLE_SUFFIXES) and name[0] != "."
                    if images
                    else within or name != MANIFEST_NAME
                ):
                    if not entry.is_file():
                        raise RuntimeError(
                            f"{entry.path} is neither a file nor a folder, or is a broken link. Delete it."
                        )
                    names.append((entry.inode(), name))
                    if len(names) == MAX_SORTED:
                        yield from _make_batches(within, names)
                        names.clear()
        yield from _make_batches(within, names) if names else [FileBatch(within, [])]


def iter_files(top: str, images: bool = False) -> Iterator[str]:
    """Yield the path of each file, relative to `top`."""
    return (join(batch.subfolder, name) for batch in iter_batches(top, images) for name in batch.names)


def sum_batches(
    found: Iterator[FileBatch], act: BatchTask, tell: Callable[[Checksum], object] = lambda _: None
) -> Checksum:
    """Return the sum of `act` over all batches, computed by several processes if there are many.

    Args:
        found: The batches.
        act: Processes a batch and returns its totals.
        tell: Receives the totals so far.
    """
    total = Checksum()
    first = list(islice(found, POOL_THRESHOLD + 1))
    if len(first) <= POOL_THRESHOLD:
        for batch in first:
            total = total.add(act(batch))
            tell(total)
        return total
    other_processes = active_children()
    pending = deque[Future[Checksum]]()
    with ProcessPoolExecutor(MAX_PROCESSES, get_context("fork"), _init_process, (act, os.getpid())) as pool:
        try:
            for batch in chain(first, found):
                pending.append(pool.submit(_run_task, batch))
                if len(pending) > 4 * MAX_PROCESSES:
                    total = total.add(pending.popleft().result())
                    tell(total)
            for future in pending:
                total = total.add(future.result())
                tell(total)
        except BaseException:
            for process in set(active_children()).difference(other_processes):
                process.terminate()  # it may be reading a large file
            pool.shutdown(cancel_futures=True)  # wait until all have ended
            raise
    return total


def _init_process(act: BatchTask, parent: int) -> None:
    """Initialize a pool process: signals go to the parent, and it dies with the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _pool_tasks.append(act)


def _run_task(batch: FileBatch) -> Checksum:
    return _pool_tasks[0](batch)


def hash_names_and_sizes(top: str) -> BatchTask:
    """Return a function that sums names and sizes, without reading contents."""

    def act(batch: FileBatch) -> Checksum:
        total = 0
        digest = 0
        for name in batch.names:
            path = join(batch.subfolder, name)
            size = os.stat(join(top, path)).st_size
            total += size
            digest += int.from_bytes(start_digest(path, size).digest(), "big")
        return Checksum(len(batch.names), total, digest)

    return act


def hash_contents(top: str, evict: bool = False) -> BatchTask:
    """Return a function that sums names, sizes and contents.

    Args:
        top: The folder.
        evict: Read from the storage device: drop clean pages from the page cache first.
    """

    def act(batch: FileBatch) -> Checksum:
        total = 0
        digest = 0
        for name in batch.names:
            path = join(batch.subfolder, name)
            descriptor = os.open(join(top, path), os.O_RDONLY)
            try:
                size = os.fstat(descriptor).st_size
                if evict:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                sha256 = start_digest(path, size)
                while chunk := os.read(descriptor, min(size + 1, CHUNK_BYTES)):
                    sha256.update(chunk)
            finally:
                os.close(descriptor)
            total += size
            digest += int.from_bytes(sha256.digest(), "big")
        return Checksum(len(batch.names), total, digest)

    return act


def start_digest(path: str, size: int) -> hashlib._Hash:
    """Return a SHA-256 over a file's path and size, to be updated with its contents."""
    return hashlib.sha256(b"%s\0%d\0" % (os.fsencode(path), size))


def _top_folders(top: str, images: bool) -> list[str]:
    """Return where to start: only train/ and val/ of a user's folder that has train/, as only these are used."""
    splits = [split for split in ("train", "val") if os.path.isdir(join(top, split))]
    return splits if images and "train" in splits else [""]


def _make_batches(within: str, entries: list[tuple[int, str]]) -> Iterator[FileBatch]:
    entries.sort()
    for first in range(0, len(entries), FILES_PER_BATCH):
        yield FileBatch(within, [name for _, name in entries[first : first + FILES_PER_BATCH]])
