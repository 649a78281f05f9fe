"""Stage a dataset: copy it from its home to the storage device to train from, and verify the copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os.path import join
from pathlib import Path

from epochmeter.config.schema import Dataset
from epochmeter.datasets import checksum, manifest
from epochmeter.datasets.atomic_folder import create_atomically, folder_lock, remove_folder, synced
from epochmeter.datasets.checksum import MANIFEST_NAME, Checksum, FileBatch
from epochmeter.datasets.disk_space import check_free_space, explain_write_errors
from epochmeter.datasets.manifest import Manifest
from epochmeter.datasets.progress import MB, Notify, Progress

REMEDY = "Move that folder away to stage the dataset again, or set storage.root= to another storage."


def stage(dataset: Dataset, home: Path, user_manifest: Path | None, folder: Path, reread: bool, say: Notify) -> None:
    """Copy the dataset from `home` to `folder`, unless another process has just done so.

    `user_manifest` is the path of the manifest of a user's folder. `reread` reads the copy back from the device and
    compares, to detect a device that loses data. Raises RuntimeError if the copy failed; nothing is left of it.
    """
    original = manifest.read_manifest(user_manifest or home / MANIFEST_NAME)
    images = user_manifest is not None
    activity = f"staging dataset {dataset.name}"
    with explain_write_errors(folder.parent, f"dataset {dataset.name}", "storage.root"), folder_lock(folder, say):
        if existing_copy(folder, dataset, home, original) is not None:
            return
        remove_folder(folder)  # a copy of an earlier version of the home
        check_free_space(folder.parent, original.bytes, f"dataset {dataset.name}", "storage.root")
        say(f"{activity} from {home} to {folder}: {original.files} files, {original.bytes / 1e6:.1f} MB")
        progress = Progress(activity, say, original.bytes, MB)
        with create_atomically(folder) as copy:
            with synced(copy):
                task = partial(copy_and_hash, str(copy))
                total = checksum.sum_files(str(home), task, images, lambda done: progress.update(done.bytes))
                say(f"{activity}: copied; flushing to the storage device")
            _compare_with_manifest(home, original, total, copy, images)
            if reread:
                say(f"{activity}: reading it back")
                _compare_with_device(folder, copy, total)
            replace(original, staged_from=str(home)).write(copy / MANIFEST_NAME)


def existing_copy(folder: Path, dataset: Dataset, home: Path, original: Manifest | None) -> Manifest | None:
    """Return the manifest of the complete copy in `folder`; None if it must be staged, or staged again.

    `original` is the home's manifest; with None, any complete copy of this dataset is accepted. Raises RuntimeError if
    `folder` contains something other than a copy of `home`, which is not overwritten.
    """
    copy = manifest.load_valid(folder, dataset, remedy=REMEDY)
    if copy and (original is None or copy.digest == original.digest):
        return copy
    existing = manifest.try_read_manifest(folder / MANIFEST_NAME)
    if existing and existing.staged_from != str(home):
        origin = f"staged from {existing.staged_from}" if existing.staged_from else "created there"
        raise RuntimeError(
            f"{folder} contains another dataset {existing.name} than {home}: it was {origin}, and is not "
            f"overwritten. {REMEDY}"
        )
    return None


def copy_and_hash(target: str, source: str, batch: FileBatch) -> Checksum:
    """Copy a batch of files between two folders; return the totals of the written data."""
    os.makedirs(join(target, batch.subfolder), exist_ok=True)
    total = Checksum()
    for name in batch.names:
        total = total.add(_copy_file(source, target, join(batch.subfolder, name)))
    return total


def _copy_file(source: str, target: str, path: str) -> Checksum:
    original = join(source, path)
    with _explained_reads(original):
        reading = open(original, "rb", buffering=0)  # noqa: SIM115 (closed below)
    with reading, open(join(target, path), "xb") as writing:
        before = os.fstat(reading.fileno())
        sha256 = checksum.start_digest(path, before.st_size)
        while True:
            with _explained_reads(original):
                chunk = reading.read(min(before.st_size + 1, checksum.CHUNK_BYTES))
            if not chunk:
                break
            sha256.update(chunk)
            writing.write(chunk)
        after = os.fstat(reading.fileno())
        if writing.tell() != before.st_size or after.st_mtime_ns != before.st_mtime_ns:
            raise RuntimeError(
                f"{original} changed while it was copied. Start again when no process writes to {source}."
            )
    return checksum.file_checksum(before.st_size, sha256)


@contextmanager
def _explained_reads(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RuntimeError(
            f"cannot read {path}: {error.strerror}. Restore this file of the dataset's home, or prepare the dataset "
            "again."
        ) from error


def _compare_with_manifest(home: Path, original: Manifest, total: Checksum, copy: Path, images: bool) -> None:
    """Raise RuntimeError if the copy does not match the home's manifest."""
    if original.digest_of == manifest.NAMES_AND_SIZES:  # a user's folder
        total = checksum.sum_files(str(copy), checksum.hash_names_and_sizes)
    if (total.files, total.bytes, total.hexdigest) != (original.files, original.bytes, original.digest):
        suffix = ", with other contents" if (total.files, total.bytes) == (original.files, original.bytes) else ""
        raise RuntimeError(
            f"dataset folder {home} has {total.files} files of {total.bytes} bytes; its manifest lists "
            f"{original.files} files of {original.bytes} bytes{suffix}. "
            f"{manifest.first_unreadable(home, images)}{manifest.REMEDY}"
        )


def _compare_with_device(folder: Path, copy: Path, total: Checksum) -> None:
    """Raise RuntimeError if the device does not return the data written to it; tmpfs is read from memory."""
    if checksum.sum_files(str(copy), partial(checksum.hash_contents, evict=True)) != total:
        raise RuntimeError(
            f"{folder.parent} does not return the data written to it. The storage device is failing, or smaller than "
            "it claims: set storage.root= to another."
        )
