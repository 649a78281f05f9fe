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
from functools import reduce
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
MAX_SORTED = 32 * FILES_PER_BATCH
"""Number of names that are sorted by inode at a time: about their order on disk."""
POOL_THRESHOLD = 2
"""With at most this many batches, no pool of processes is started."""
MAX_PROCESSES = min(4, len(os.sched_getaffinity(0)))
"""Processes, as threads would mostly wait for the interpreter's lock."""
CHUNK_BYTES = 1 << 20
MODULUS = 1 << 256
PR_SET_PDEATHSIG = 1


class FileBatch(NamedTuple):
    """Names of some files of one folder, which is relative to the top; no names if the folder is empty."""

    subfolder: str
    names: list[str]


class Checksum(NamedTuple):
    """Number and size of files, and the sum of their SHA-256 modulo 2**256."""

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


BatchTask = Callable[[str, FileBatch], Checksum]
"""Processes a batch of files below a folder and returns its totals; can be pickled."""


def iter_batches(top: str, images: bool = False) -> Iterator[FileBatch]:
    """Yield all files below `top` in batches, following links; of a user's folder only the `images` trained on.

    Raises RuntimeError if an entry is neither a file nor a folder.
    """
    splits = [split for split in ("train", "val") if os.path.isdir(join(top, split))]
    tops = splits if images and "train" in splits else [""]  # other folders next to train/ are not used
    pending: list[tuple[str, tuple[str, ...]]] = [(folder, ()) for folder in tops]
    while pending:
        subfolder, ancestors = pending.pop()
        real = os.path.realpath(join(top, subfolder))
        if real in ancestors:
            continue  # a link to one of its own parent folders
        files: list[tuple[int, str]] = []
        with os.scandir(join(top, subfolder)) as entries:
            for entry in entries:
                if entry.is_dir():
                    if not (images and entry.name.startswith(".")):
                        pending.append((join(subfolder, entry.name), (*ancestors, real)))
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


def sum_files(
    top: str, task: BatchTask, images: bool = False, report: Callable[[Checksum], object] = lambda _: None
) -> Checksum:
    """Return the sum of `task` over all files below `top`, computed by several processes if there are many.

    `report` receives the totals so far; for `images` see `iter_batches`.
    """
    batches = iter_batches(top, images)
    first = list(islice(batches, POOL_THRESHOLD + 1))
    total = Checksum()
    if len(first) <= POOL_THRESHOLD:
        return reduce(Checksum.add, (task(top, batch) for batch in first), total)
    pending = deque[Future[Checksum]]()
    other_processes = active_children()
    with ProcessPoolExecutor(MAX_PROCESSES, get_context("fork"), _init_process, (os.getpid(),)) as pool:
        try:
            for batch in chain(first, batches):
                pending.append(pool.submit(task, top, batch))
                if len(pending) > 4 * MAX_PROCESSES:
                    total = total.add(pending.popleft().result())
                    report(total)
            return reduce(Checksum.add, (future.result() for future in pending), total)
        except BaseException:
            for process in set(active_children()).difference(other_processes):
                process.terminate()  # it may be reading a large file
            pool.shutdown(cancel_futures=True)  # wait until all have ended
            raise


def _init_process(parent: int) -> None:
    """Initialize a process of the pool: stop signals go to the parent, and it dies with the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def hash_names_and_sizes(top: str, batch: FileBatch) -> Checksum:
    """Return the totals of a batch by names and sizes, without reading contents."""
    total = Checksum()
    for name in batch.names:
        path = join(batch.subfolder, name)
        size = os.stat(join(top, path)).st_size
        total = total.add(file_checksum(size, start_digest(path, size)))
    return total


def hash_contents(top: str, batch: FileBatch, evict: bool = False) -> Checksum:
    """Return the totals of a batch by names, sizes and contents; `evict` drops the files' clean pages first."""
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


def start_digest(path: str, size: int) -> hashlib._Hash:
    """Return a SHA-256 over a file's path and size, to be updated with its contents."""
    return hashlib.sha256(b"%s\0%d\0" % (os.fsencode(path), size))


def file_checksum(size: int, sha256: hashlib._Hash) -> Checksum:
    """Return the totals of one file, from its size and its complete digest."""
    return Checksum(1, size, int.from_bytes(sha256.digest(), "big"))


def _is_sample(name: str) -> bool:
    return name.lower().endswith(SAMPLE_SUFFIXES) and not name.startswith(".")


def _make_batches(subfolder: str, files: list[tuple[int, str]]) -> Iterator[FileBatch]:
    """Yield batches of files, given by inode and name, in the order of their inodes."""
    names = [name for _, name in sorted(files)]
    for first in range(0, len(names), FILES_PER_BATCH):
        yield FileBatch(subfolder, names[first : first + FILES_PER_BATCH])
