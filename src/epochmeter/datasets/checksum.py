"""Checksum of a dataset's files, independent of their order, so that several threads compute it.

It is the sum, modulo 2**256, of each file's SHA-256 over its relative path, size and contents. It detects damage and
other versions but is not a signature: sums of hashes can be forged deliberately.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from itertools import islice
from os.path import join
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.platforms import allowed_cores
from epochmeter.shared.image_files import IMAGE_SUFFIXES

MANIFEST_NAME = "manifest.json"
"""The manifest, at the top of a folder made by epochmeter; not part of the dataset."""
SAMPLE_SUFFIXES = (*IMAGE_SUFFIXES, ".tsv")
"""Extensions of files that contain samples."""
FILES_PER_BATCH = 1024
THREADS = min(4, len(allowed_cores()))
CHUNK_BYTES = 1 << 20
MODULUS = 1 << 256
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP)
"""Error numbers of a link without a target, of a file that was removed, and of a place that may not be read."""


class Checksum(NamedTuple):
    """Number and size of files, and the sum of their SHA-256 modulo 2**256."""

    files: int = 0
    bytes: int = 0
    digest: int = 0

    def add(self, other: "Checksum") -> "Checksum":
        return Checksum(self.files + other.files, self.bytes + other.bytes, (self.digest + other.digest) % MODULUS)

    @property
    def hexdigest(self) -> str:
        return f"{self.digest:064x}"


def iter_files(top: Path, samples_only: bool = False) -> Iterator[str]:
    """Yield the path of each file relative to `top`, following links; with `samples_only` only those to train on."""
    splits = [split for split in ("train", "val") if samples_only and (top / split).is_dir()]
    for split in splits if "train" in splits else [""]:  # other folders next to train/ and val/ are not used
        for folder, folders, names in os.walk(top / split, onerror=_raise, followlinks=True):
            visible = [name for name in folders if not (samples_only and name.startswith("."))]
            folders[:] = sorted(name for name in visible if not _is_loop(Path(folder, name)))
            below = folder[len(str(top)) + 1 :]
            for name in sorted(names):  # about the order on disk
                if _is_sample(name) if samples_only else below or name != MANIFEST_NAME:
                    yield join(below, name)


def sum_files(
    top: Path,
    task: Callable[[Path, str], Checksum],
    samples_only: bool = False,
    report: Callable[[Checksum], object] = lambda _: None,
) -> Checksum:
    """Return the sum of `task(top, path)` over all files below `top`; `report` receives the totals so far."""
    total, paths = Checksum(), iter_files(top, samples_only)
    with ThreadPoolExecutor(THREADS) as pool:
        while batch := list(islice(paths, FILES_PER_BATCH)):
            total = reduce(Checksum.add, pool.map(partial(task, top), batch), total)
            report(total)
    return total


def hash_name_and_size(top: Path, path: str) -> Checksum:
    """Return the totals of a file without reading its contents; one that is not there has -1 byte in the checksum."""
    try:
        size = os.stat(join(top, path)).st_size
    except OSError as error:  # training skips such a sample, or names it
        if error.errno not in NO_FILE:
            raise
        return _checksum(path, -1, iter(()))._replace(bytes=0)
    return _checksum(path, size, iter(()))


def hash_contents(top: Path, path: str) -> Checksum:
    """Return the totals of a file by its name, size and contents."""
    with open(join(top, path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return _checksum(path, size, iter(partial(file.read, min(size + 1, CHUNK_BYTES)), b""))


def _checksum(path: str, size: int, chunks: Iterator[bytes]) -> Checksum:
    sha256 = hashlib.sha256(b"%s\0%d\0" % (os.fsencode(path), size))
    for chunk in chunks:
        sha256.update(chunk)
    return Checksum(1, size, int.from_bytes(sha256.digest(), "big"))


def _is_sample(name: str) -> bool:
    return name.lower().endswith(SAMPLE_SUFFIXES) and not name.startswith(".")


def _is_loop(folder: Path) -> bool:
    """Return whether a folder is a link to one of the folders above it."""
    return folder.is_symlink() and folder.resolve() in {above.resolve() for above in folder.parents}


def _raise(error: OSError) -> None:
    raise error
