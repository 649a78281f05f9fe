"""Stage a dataset: copy it from its home to the storage device to train from, and verify the copy."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os.path import join
from pathlib import Path
from typing import Any

from epochmeter.datasets import checksum, manifest
from epochmeter.datasets.atomic_folder import (
    DISK_FULL_ERRORS,
    Notify,
    create_atomically,
    folder_lock,
    remove_folder,
    remove_leftovers,
    synced,
)
from epochmeter.datasets.checksum import MANIFEST_NAME, BatchTask, Checksum, FileBatch
from epochmeter.datasets.manifest import DamageError
from epochmeter.shared.atomic_files import read_json

REMEDY = "Move that folder away to stage the dataset again, or set storage.root= to another storage."
PROGRESS_INTERVAL_S = 2


def stage(dataset: dict[str, Any], home: Path, note: Path | None, place: Path, reread: bool, say: Notify) -> None:
    """Copy the dataset from `home` to `place`, unless another process has just done so.

    Args:
        dataset: The dataset's configuration.
        home: The original folder.
        note: Path of the manifest if the home is a user's folder.
        place: Target folder.
        reread: Read the copy back from the device and compare, to detect a device that loses data.
        say: Receives progress messages.

    Raises:
        RuntimeError: The copy failed; nothing is left of it.
    """
    original = read_json(note or home / MANIFEST_NAME)
    images = note is not None
    with _explain_write_errors(place, dataset), folder_lock(place, say):
        if existing_copy(place, dataset, home, original, images) is not None:
            return
        remove_leftovers(place)
        remove_folder(place)  # a copy of an earlier version of the home
        _check_space(place, dataset, home, original, images)
        size = f"{original['files']} files, {_mb(original['bytes'])} MB"
        say(f"staging dataset {dataset['name']} from {home} to {place}: {size}")
        with create_atomically(place) as partial:
            with synced(partial):
                batches = checksum.iter_batches(str(home), images)
                total = checksum.sum_batches(
                    batches, copy_and_hash(str(home), str(partial)), _progress(dataset, original, say)
                )
                say(f"staging {dataset['name']}: copied; flushing to the storage device")
            _compare(home, original, total, partial, images)
            if reread:
                say(f"staging {dataset['name']}: reading it back")
                _verify_copy(home, place, partial, total)
            manifest.write(partial / MANIFEST_NAME, {**original, "staged_from": str(home)})


def existing_copy(
    place: Path, dataset: dict[str, Any], home: Path, told: dict[str, Any] | None, images: bool
) -> dict[str, Any] | None:
    """Return the manifest of the complete copy in `place`; None if it must be staged, or staged again.

    Args:
        place: The copy's folder.
        dataset: The dataset's configuration.
        home: The original folder.
        told: The home's manifest; with None, any complete copy of this dataset is accepted.
        images: Whether the home is a user's folder.

    Raises:
        RuntimeError: `place` contains something other than a copy of `home`, which is not overwritten.
    """
    try:
        copy = manifest.load_valid(place, dataset, remedy=REMEDY)
    except DamageError as error:
        raise DamageError(f"{_first_missing(home, place, images) if told else ''}{error}") from error
    if copy and (told is None or copy["digest"] == told["digest"]):
        return copy
    existing = manifest.read_unchecked(place / MANIFEST_NAME)
    if existing and "format" in existing and existing.get("staged_from") != str(home):
        origin = f"staged from {existing['staged_from']}" if "staged_from" in existing else "created there"
        raise RuntimeError(
            f"{place} contains another dataset {existing['name']} than {home}: it was {origin}, and is not "
            f"overwritten. {REMEDY}"
        )
    return None


def copy_and_hash(top: str, to: str) -> BatchTask:
    """Return a function that copies the files of a batch and sums what was written."""

    def act(batch: FileBatch) -> Checksum:
        os.makedirs(join(to, batch.subfolder), exist_ok=True)
        source = os.open(join(top, batch.subfolder), os.O_RDONLY | os.O_DIRECTORY)
        target = os.open(join(to, batch.subfolder), os.O_RDONLY | os.O_DIRECTORY)
        total = digest = 0
        try:
            for name in batch.names:
                size, digested = _copy_file(name, join(batch.subfolder, name), source, target, top)
                total += size
                digest += digested
        finally:
            os.close(source)
            os.close(target)
        return Checksum(len(batch.names), total, digest)

    return act


def _copy_file(name: str, path: str, source: int, target: int, top: str) -> tuple[int, int]:
    """Copy a file between two folder descriptors; return its size and checksum."""
    try:
        reading = os.open(name, os.O_RDONLY, dir_fd=source)
    except OSError as error:
        raise _read_error(join(top, path), error) from error
    writing = -1
    try:
        before = os.fstat(reading)
        size = before.st_size
        writing = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=target)
        sha256 = checksum.start_digest(path, size)
        done = 0
        while True:
            try:
                chunk = os.read(reading, min(size + 1, checksum.CHUNK_BYTES))
            except OSError as error:
                raise _read_error(join(top, path), error) from error
            if not chunk:
                break
            sha256.update(chunk)
            done += len(chunk)
            written = os.write(writing, chunk)
            while written < len(chunk):  # a nearly full disk or a size limit: the next write raises
                written += os.write(writing, memoryview(chunk)[written:])
        after = os.fstat(reading)
        if os.fstat(writing).st_size != done:
            raise OSError(errno.EIO, "the file is shorter than what was written", name)
        if done != size or after.st_mtime_ns != before.st_mtime_ns or after.st_size != size:
            raise RuntimeError(
                f"{join(top, path)} changed while it was copied. Start again when no process writes to {top}."
            )
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    return size, int.from_bytes(sha256.digest(), "big")


def _compare(home: Path, original: dict[str, Any], total: Checksum, partial: Path, images: bool) -> None:
    """Compare the copy with the home's manifest."""
    digest = total.hexdigest
    if original["digest_of"] == manifest.NAMES_AND_SIZES:  # a user's tree
        digest = checksum.sum_batches(
            checksum.iter_batches(str(partial)), checksum.hash_names_and_sizes(str(partial))
        ).hexdigest
    if (total.files, total.bytes, digest) != (original["files"], original["bytes"], original["digest"]):
        suffix = ", with other contents" if (total.files, total.bytes) == (original["files"], original["bytes"]) else ""
        raise RuntimeError(
            f"dataset folder {home} has {total.files} files of {total.bytes} bytes; its manifest lists "
            f"{original['files']} files of {original['bytes']} bytes{suffix}. "
            f"{manifest.first_unreadable(home, images)}{manifest.REMEDY}"
        )


def _verify_copy(home: Path, place: Path, partial: Path, total: Checksum) -> None:
    """Compare the copy as read back from the device; tmpfs is read from memory."""
    top = str(partial)
    if checksum.sum_batches(checksum.iter_batches(top), checksum.hash_contents(top, evict=True)) != total:
        bad_path = next((path for path in checksum.iter_files(top) if _files_differ(home / path, partial / path)), None)
        which = f"{place / bad_path}" if bad_path else "a file, in the first read,"
        raise RuntimeError(
            f"{place.parent} does not return the data written to it: {which} differs from {home}. The storage device "
            "is failing, or smaller than it claims: set storage.root= to another."
        )


def _files_differ(first: Path, second: Path) -> bool:
    with open(first, "rb") as first_file, open(second, "rb") as second_file:
        while chunk := first_file.read(checksum.CHUNK_BYTES):
            if chunk != second_file.read(checksum.CHUNK_BYTES):
                return True
        return second_file.read(1) != b""


def _first_missing(home: Path, place: Path, images: bool) -> str:
    """Return a sentence about the first file that the copy lacks or has in another size; empty if there is none."""
    for path in checksum.iter_files(str(home), images):
        try:
            size = os.stat(place / path).st_size
        except OSError as error:
            return f"{place / path} is missing: {error.strerror}. "
        full_size = os.stat(home / path).st_size
        if size != full_size:
            return f"{place / path} has {size} of {full_size} bytes. "
    return ""


def _check_space(place: Path, dataset: dict[str, Any], home: Path, original: dict[str, Any], images: bool) -> None:
    """Check the free space in whole blocks: on a card's exFAT, small files take thirty times their size."""
    disk = os.statvfs(place.parent)
    block, free = disk.f_frsize, disk.f_bavail * disk.f_frsize
    needed = original["bytes"]
    if free < needed + original["files"] * block:
        sizes = (os.stat(home / path).st_size for path in checksum.iter_files(str(home), images))
        needed = sum(-(-size // block) * block for size in sizes)
    if needed > free:
        raise RuntimeError(
            f"not enough disk space in {place.parent}: dataset {dataset['name']} needs {_mb(needed)} MB "
            f"({original['files']} files in blocks of {block} bytes), and {_mb(free)} MB are free. Free disk space, or "
            "set storage.root= to another storage."
        )
    if disk.f_files > 0 and disk.f_favail < original["files"]:
        raise RuntimeError(
            f"not enough inodes in {place.parent}: dataset {dataset['name']} has {original['files']} files, and "
            f"{disk.f_favail} inodes are free (df -i). Delete files, or set storage.root= to another storage."
        )


@contextmanager
def _explain_write_errors(place: Path, dataset: dict[str, Any]) -> Iterator[None]:
    """Turn errors of writing to `place` into a RuntimeError with a remedy."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        what = f"cannot stage dataset {dataset['name']} to {place}: {error}"
        if error.errno in DISK_FULL_ERRORS:
            disk = os.statvfs(place.parent)
            free = _mb(disk.f_bavail * disk.f_frsize)
            raise RuntimeError(
                f"disk full at {place.parent}: {what}; {free} MB are free. Free disk space, or set storage.root= to "
                "another storage."
            ) from error
        raise RuntimeError(
            f"{what}. Check that the storage is writable and healthy, or set storage.root= to another."
        ) from error


def _progress(dataset: dict[str, Any], original: dict[str, Any], say: Notify) -> Callable[[Checksum], None]:
    """Return a function that reports progress as the system has accepted it; the device may be seconds behind."""
    start_s = reported_s = time.monotonic()

    def tell(done: Checksum) -> None:
        nonlocal reported_s
        now_s = time.monotonic()
        if now_s - reported_s < PROGRESS_INTERVAL_S:
            return
        reported_s = now_s
        fractions = [done.files / max(original["files"], 1), done.bytes / max(original["bytes"], 1)]
        left_s = (now_s - start_s) * (1 / max(min(fractions), 1e-9) - 1)
        say(
            f"staging {dataset['name']}: {done.files} of {original['files']} files, {_mb(done.bytes)} of "
            f"{_mb(original['bytes'])} MB, {done.bytes / 1e6 / (now_s - start_s):.1f} MB/s, {left_s:.0f} s left"
        )

    return tell


def _read_error(path: str, error: OSError) -> RuntimeError:
    return RuntimeError(
        f"cannot read {path}: {error.strerror}. Restore this file of the dataset's home, or prepare the dataset again."
    )


def _mb(size: float) -> str:
    return f"{size / 1e6:.0f}" if size >= 10e6 else f"{size / 1e6:.1f}"
