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
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from itertools import chain, islice
from multiprocessing import active_children, get_context
from os.path import join
from typing import NamedTuple

from epochmeter.shared.units import IMAGE_SUFFIXES

MANIFEST_NAME = "manifest.json"
"""The manifest, at the top of a folder made by epochmeter; not part of the dataset."""
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
        subfolder: The folder, relative to the top.
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
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [(split, ()) for split in _top_folders(top, images)]
    while pending:
        subfolder, ancestors = pending.pop()
        status = os.stat(join(top, subfolder))
        identity = (status.st_dev, status.st_ino)
        if identity in ancestors:
            continue  # a link to one of its own parent folders
        files: list[tuple[int, str]] = []
        with os.scandir(join(top, subfolder)) as entries:
            for entry in entries:
                if entry.is_dir():
                    if not (images and entry.name.startswith(".")):
                        pending.append((join(subfolder, entry.name), (*ancestors, identity)))
                elif _is_sample(entry.name) if images else subfolder or entry.name != MANIFEST_NAME:
                    if not entry.is_file():
                        raise RuntimeError(
                            f"{entry.path} is neither a file nor a folder, or is a broken link. Delete it."
                        )
                    files.append((entry.inode(), entry.name))
                    if len(files) == MAX_SORTED:
                        yield from _make_batches(subfolder, files)
                        files.clear()
        yield from _make_batches(subfolder, files) if files else [FileBatch(subfolder, [])]


def iter_files(top: str, images: bool = False) -> Iterator[str]:
    """Yield the path of each file, relative to `top`."""
    return (join(batch.subfolder, name) for batch in iter_batches(top, images) for name in batch.names)


def sum_batches(
    batches: Iterator[FileBatch], task: BatchTask, report: Callable[[Checksum], object] = lambda _: None
) -> Checksum:
    """Return the sum of `task` over all batches, computed by several processes if there are many.

    Args:
        task: Processes a batch and returns its totals.
        report: Receives the totals so far.
    """
    total = Checksum()
    first = list(islice(batches, POOL_THRESHOLD + 1))
    is_small = len(first) <= POOL_THRESHOLD
    with closing((task(batch) for batch in first) if is_small else _map_in_pool(task, chain(first, batches))) as totals:
        for part in totals:
            total = total.add(part)
            report(total)
    return total


def _map_in_pool(task: BatchTask, batches: Iterator[FileBatch]) -> Generator[Checksum, None, None]:
    """Yield the totals of each batch, in order, computed by several processes."""
    other_processes = active_children()
    pending = deque[Future[Checksum]]()
    with ProcessPoolExecutor(MAX_PROCESSES, get_context("fork"), _init_process, (task, os.getpid())) as pool:
        try:
            for batch in batches:
                pending.append(pool.submit(_run_task, batch))
                if len(pending) > 4 * MAX_PROCESSES:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BaseException:
            for process in set(active_children()).difference(other_processes):
                process.terminate()  # it may be reading a large file
            pool.shutdown(cancel_futures=True)  # wait until all have ended
            raise


def _init_process(task: BatchTask, parent: int) -> None:
    """Initialize a pool process: signals go to the parent, and it dies with the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _pool_tasks.append(task)


def _run_task(batch: FileBatch) -> Checksum:
    return _pool_tasks[0](batch)


def hash_names_and_sizes(top: str) -> BatchTask:
    """Return a function that sums names and sizes, without reading contents."""

    def process(batch: FileBatch) -> Checksum:
        total = Checksum()
        for name in batch.names:
            path = join(batch.subfolder, name)
            size = os.stat(join(top, path)).st_size
            total = total.add(file_checksum(size, start_digest(path, size)))
        return total

    return process


def hash_contents(top: str, evict: bool = False) -> BatchTask:
    """Return a function that sums names, sizes and contents.

    Args:
        top: The folder.
        evict: Read from the storage device: drop clean pages from the page cache first.
    """

    def process(batch: FileBatch) -> Checksum:
        total = Checksum()
        for name in batch.names:
            path = join(batch.subfolder, name)
            with open(join(top, path), "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if evict:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                sha256 = start_digest(path, size)
                while chunk := file.read(min(size + 1, CHUNK_BYTES)):
                    sha256.update(chunk)
            total = total.add(file_checksum(size, sha256))
        return total

    return process


def start_digest(path: str, size: int) -> hashlib._Hash:
    """Return a SHA-256 over a file's path and size, to be updated with its contents."""
    return hashlib.sha256(b"%s\0%d\0" % (os.fsencode(path), size))


def file_checksum(size: int, sha256: hashlib._Hash) -> Checksum:
    """Return the totals of one file, from its size and its complete digest."""
    return Checksum(1, size, int.from_bytes(sha256.digest(), "big"))


def _is_sample(name: str) -> bool:
    return name.lower().endswith(SAMPLE_SUFFIXES) and not name.startswith(".")


def _top_folders(top: str, images: bool) -> list[str]:
    """Return where to start: only train/ and val/ of a user's folder that has train/, as only these are used."""
    splits = [split for split in ("train", "val") if os.path.isdir(join(top, split))]
    return splits if images and "train" in splits else [""]


def _make_batches(subfolder: str, files: list[tuple[int, str]]) -> Iterator[FileBatch]:
    """Yield batches of files, given by inode and name, in the order of their inodes."""
    files.sort()
    for first in range(0, len(files), FILES_PER_BATCH):
        yield FileBatch(subfolder, [name for _, name in files[first : first + FILES_PER_BATCH]])
