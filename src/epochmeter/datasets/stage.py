"""Stage a dataset: copy it from its home to the storage device to train from, and verify the copy."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from os.path import join
from pathlib import Path

from epochmeter.config.schema import Dataset
from epochmeter.datasets import checksum, manifest
from epochmeter.datasets.atomic_folder import create_atomically, folder_lock, remove_folder, remove_leftovers, synced
from epochmeter.datasets.checksum import MANIFEST_NAME, BatchTask, Checksum, FileBatch
from epochmeter.datasets.disk_space import check_free_space, explain_write_errors
from epochmeter.datasets.manifest import Manifest
from epochmeter.datasets.progress import MB, Notify, Progress

REMEDY = "Move that folder away to stage the dataset again, or set storage.root= to another storage."


def stage(dataset: Dataset, home: Path, user_manifest: Path | None, folder: Path, reread: bool, say: Notify) -> None:
    """Copy the dataset from `home` to `folder`, unless another process has just done so.

    Args:
        user_manifest: Path of the manifest if the home is a user's folder.
        reread: Read the copy back from the device and compare, to detect a device that loses data.

    Raises:
        RuntimeError: The copy failed; nothing is left of it.
    """
    original = manifest.read_manifest(user_manifest or home / MANIFEST_NAME)
    images = user_manifest is not None
    content = f"dataset {dataset.name}"
    with explain_write_errors(folder.parent, content, "storage.root"), folder_lock(folder, say):
        if existing_copy(folder, dataset, home, original) is not None:
            return
        remove_leftovers(folder)
        remove_folder(folder)  # a copy of an earlier version of the home
        _check_space(folder.parent, content, home, original, images)
        activity = f"staging dataset {dataset.name}"
        say(f"{activity} from {home} to {folder}: {original.files} files, {original.bytes / 1e6:.1f} MB")
        progress = Progress(activity, say, original.bytes, MB)
        with create_atomically(folder) as partial:
            with synced(partial):
                batches = checksum.iter_batches(str(home), images)
                total = checksum.sum_batches(
                    batches, copy_and_hash(str(home), str(partial)), lambda done: progress.update(done.bytes)
                )
                say(f"{activity}: copied; flushing to the storage device")
            _compare_with_manifest(home, original, total, partial, images)
            if reread:
                say(f"{activity}: reading it back")
                _compare_with_device(folder, partial, total)
            replace(original, staged_from=str(home)).write(partial / MANIFEST_NAME)


def existing_copy(folder: Path, dataset: Dataset, home: Path, original: Manifest | None) -> Manifest | None:
    """Return the manifest of the complete copy in `folder`; None if it must be staged, or staged again.

    Args:
        folder: The copy's folder.
        original: The home's manifest; with None, any complete copy of this dataset is accepted.

    Raises:
        RuntimeError: `folder` contains something other than a copy of `home`, which is not overwritten.
    """
    copy = manifest.load_valid(folder, dataset, remedy=REMEDY)
    if copy and (original is None or copy.digest == original.digest):
        return copy
    existing = manifest.try_read_manifest(folder / MANIFEST_NAME)
    if existing and existing.format and existing.staged_from != str(home):
        origin = f"staged from {existing.staged_from}" if existing.staged_from else "created there"
        raise RuntimeError(
            f"{folder} contains another dataset {existing.name} than {home}: it was {origin}, and is not "
            f"overwritten. {REMEDY}"
        )
    return None


def copy_and_hash(source: str, target: str) -> BatchTask:
    """Return a function that copies the files of a batch between two folders and sums the written data."""

    def process(batch: FileBatch) -> Checksum:
        os.makedirs(join(target, batch.subfolder), exist_ok=True)
        source_folder = os.open(join(source, batch.subfolder), os.O_RDONLY | os.O_DIRECTORY)
        target_folder = os.open(join(target, batch.subfolder), os.O_RDONLY | os.O_DIRECTORY)
        total = Checksum()
        try:
            for name in batch.names:
                total = total.add(_copy_file(source, join(batch.subfolder, name), source_folder, target_folder))
        finally:
            os.close(source_folder)
            os.close(target_folder)
        return total

    return process


def _copy_file(source: str, path: str, source_folder: int, target_folder: int) -> Checksum:
    """Copy a file between two folder descriptors; return its totals.

    Args:
        source: The dataset's folder.
        path: The file's path in it.
        source_folder: Descriptor of the file's folder.
        target_folder: Descriptor of the folder to copy to.
    """
    name = os.path.basename(path)
    reading = writing = -1
    try:
        try:
            reading = os.open(name, os.O_RDONLY, dir_fd=source_folder)
            before = os.fstat(reading)
        except OSError as error:
            raise _read_error(join(source, path), error) from error
        writing = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=target_folder)
        sha256 = checksum.start_digest(path, before.st_size)
        done = 0
        while True:
            try:
                chunk = os.read(reading, min(before.st_size + 1, checksum.CHUNK_BYTES))
            except OSError as error:
                raise _read_error(join(source, path), error) from error
            if not chunk:
                break
            sha256.update(chunk)
            done += len(chunk)
            written = os.write(writing, chunk)
            while written < len(chunk):  # a nearly full disk or a size limit: the next write raises
                written += os.write(writing, memoryview(chunk)[written:])
        after = os.fstat(reading)
        if os.fstat(writing).st_size != done:
            raise OSError(errno.EIO, "the file is shorter than the data written to it", name)
        if done != before.st_size or (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, before.st_size):
            raise RuntimeError(
                f"{join(source, path)} changed while it was copied. Start again when no process writes to {source}."
            )
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
    return checksum.file_checksum(done, sha256)


def _read_error(path: str, error: OSError) -> RuntimeError:
    return RuntimeError(
        f"cannot read {path}: {error.strerror}. Restore this file of the dataset's home, or prepare the dataset again."
    )


def _compare_with_manifest(home: Path, original: Manifest, total: Checksum, partial: Path, images: bool) -> None:
    """Raise RuntimeError if the copy does not match the home's manifest."""
    if original.digest_of == manifest.NAMES_AND_SIZES:  # a user's folder
        total = checksum.sum_batches(checksum.iter_batches(str(partial)), checksum.hash_names_and_sizes(str(partial)))
    if (total.files, total.bytes, total.hexdigest) != (original.files, original.bytes, original.digest):
        suffix = ", with other contents" if (total.files, total.bytes) == (original.files, original.bytes) else ""
        raise RuntimeError(
            f"dataset folder {home} has {total.files} files of {total.bytes} bytes; its manifest lists "
            f"{original.files} files of {original.bytes} bytes{suffix}. "
            f"{manifest.first_unreadable(home, images)}{manifest.REMEDY}"
        )


def _compare_with_device(folder: Path, partial: Path, total: Checksum) -> None:
    """Raise RuntimeError if the device does not return the data written to it; tmpfs is read from memory."""
    read_back = checksum.sum_batches(
        checksum.iter_batches(str(partial)), checksum.hash_contents(str(partial), evict=True)
    )
    if read_back != total:
        raise RuntimeError(
            f"{folder.parent} does not return the data written to it. The storage device is failing, or smaller than "
            "it claims: set storage.root= to another."
        )


def _check_space(folder: Path, content: str, home: Path, original: Manifest, images: bool) -> None:
    """Check the free space in whole blocks: on a card's exFAT, small files take thirty times their size."""
    disk = os.statvfs(folder)
    block = disk.f_frsize
    needed = original.bytes
    if disk.f_bavail * block < needed + original.files * block:
        sizes = (os.stat(home / path).st_size for path in checksum.iter_files(str(home), images))
        needed = sum(-(-size // block) * block for size in sizes)
    check_free_space(folder, needed, content, "storage.root")
    if disk.f_files > 0 and disk.f_favail < original.files:
        raise RuntimeError(
            f"not enough inodes in {folder}: {content} has {original.files} files, and {disk.f_favail} inodes are free "
            "(df -i). Delete files, or set storage.root= to another storage."
        )
