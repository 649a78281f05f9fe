"""A dataset is staged: copied from its home to the medium that it is to be trained from, and verified there."""

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
from epochmeter.datasets.atomic_folder import FULL, Say, clear, discard, flushed, locked, whole
from epochmeter.datasets.checksum import Act, Batch, Sum
from epochmeter.datasets.manifest import NAME, DamageError
from epochmeter.shared.atomic_files import read_json

REMEDY = "Move that folder away to have the dataset staged again, or give another storage with storage.root=."
QUIET_S = 2


def stage(dataset: dict[str, Any], home: Path, note: Path | None, place: Path, reread: bool, say: Say) -> None:
    """Copies the dataset from `home` to `place`, unless another start has just done so.

    `note`: where the manifest lies of a home that is a user's. With `reread` the copy is read back from the medium
    and compared: it finds a medium that takes what it does not keep. RuntimeError says what went wrong; then nothing
    is left.
    """
    told = read_json(note or home / NAME)
    images = note is not None
    with _written_to(place, dataset), locked(place, say):
        if standing(place, dataset, home, told, images) is not None:
            return
        clear(place)
        discard(place)  # of what the home was before: it would be in the way of its successor
        _check_space(place, dataset, home, told, images)
        say(f"staging dataset {dataset['name']} from {home} to {place}: {told['files']} files, {_mb(told['bytes'])} MB")
        with whole(place) as partial:
            with flushed(partial):
                found = checksum.batches(str(home), images)
                total = checksum.summed(found, copying(str(home), str(partial)), _progress(dataset, told, say))
                say(f"staging {dataset['name']}: copied; waiting for the medium to have all of it")
            _compare(home, told, total, partial, images)
            if reread:
                say(f"staging {dataset['name']}: reading it back")
                _reread(home, place, partial, total)
            manifest.write(partial / NAME, {**told, "staged_from": str(home)})


def standing(
    place: Path, dataset: dict[str, Any], home: Path, told: dict[str, Any] | None, images: bool
) -> dict[str, Any] | None:
    """The manifest of the whole copy that is in `place`; None where it is to be staged, or staged anew.

    `told` is what home's manifest says: None where there is nothing, and then any whole copy of this dataset will do.
    RuntimeError for what may not be overwritten: what is not a copy of `home`.
    """
    try:
        found = manifest.fitting(place, dataset, remedy=REMEDY)
    except DamageError as error:
        raise DamageError(f"{_lost(home, place, images) if told else ''}{error}") from error
    if found and (told is None or found["digest"] == told["digest"]):
        return found
    there = manifest.peeked(place / NAME)
    if there and "format" in there and there.get("staged_from") != str(home):
        origin = f"staged from {there['staged_from']}" if "staged_from" in there else "made there"
        raise RuntimeError(
            f"{place} holds another dataset {there['name']} than {home} does: it was {origin}, and is not "
            f"overwritten. {REMEDY}"
        )
    return None


def copying(top: str, to: str) -> Act:
    """Copies the files of a batch, and sums up what was written."""

    def act(batch: Batch) -> Sum:
        os.makedirs(join(to, batch.within), exist_ok=True)
        source = os.open(join(top, batch.within), os.O_RDONLY | os.O_DIRECTORY)
        target = os.open(join(to, batch.within), os.O_RDONLY | os.O_DIRECTORY)
        total = digest = 0
        try:
            for name in batch.names:
                size, digested = _copy(name, join(batch.within, name), source, target, top)
                total += size
                digest += digested
        finally:
            os.close(source)
            os.close(target)
        return Sum(len(batch.names), total, digest)

    return act


def _copy(name: str, path: str, source: int, target: int, top: str) -> tuple[int, int]:
    """The size and the digest of a file that was copied; both folders are descriptors."""
    try:
        reading = os.open(name, os.O_RDONLY, dir_fd=source)
    except OSError as error:
        raise _unread(join(top, path), error) from error
    writing = -1
    try:
        before = os.fstat(reading)
        size = before.st_size
        writing = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=target)
        digested = checksum.opened_digest(path, size)
        done = 0
        while True:
            try:
                chunk = os.read(reading, min(size + 1, checksum.CHUNK_BYTES))
            except OSError as error:
                raise _unread(join(top, path), error) from error
            if not chunk:
                break
            digested.update(chunk)
            done += len(chunk)
            written = os.write(writing, chunk)
            while written < len(chunk):  # the disk is nearly full, or the file as large as one may be: the rest says so
                written += os.write(writing, memoryview(chunk)[written:])
        after = os.fstat(reading)
        if os.fstat(writing).st_size != done:
            raise OSError(errno.EIO, "fewer bytes are there than were written", name)
        if done != size or after.st_mtime_ns != before.st_mtime_ns or after.st_size != size:
            raise RuntimeError(
                f"{join(top, path)} changed while it was copied. Start again when nothing writes to {top} any more."
            )
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    return size, int.from_bytes(digested.digest(), "big")


def _compare(home: Path, told: dict[str, Any], total: Sum, partial: Path, images: bool) -> None:
    """Compares what was copied with what the home's manifest tells of."""
    digest = total.hexdigest
    if told["digest_of"] == manifest.NAMES:  # a user's tree
        digest = checksum.summed(checksum.batches(str(partial)), checksum.sizes(str(partial))).hexdigest
    if (total.files, total.bytes, digest) != (told["files"], told["bytes"], told["digest"]):
        other = ", with other contents" if (total.files, total.bytes) == (told["files"], told["bytes"]) else ""
        raise RuntimeError(
            f"dataset folder {home} holds {total.files} files of {total.bytes} bytes; its manifest tells of "
            f"{told['files']} files of {told['bytes']} bytes{other}. "
            f"{manifest.unreadable(home, images)}{manifest.REMEDY}"
        )


def _reread(home: Path, place: Path, partial: Path, total: Sum) -> None:
    """Compares what the medium gives back; what lies in memory (tmpfs) comes from there."""
    top = str(partial)
    if checksum.summed(checksum.batches(top), checksum.contents(top, evict=True)) != total:
        wrong = next((path for path in checksum.files(top) if _differ(home / path, partial / path)), None)
        which = f"{place / wrong} is" if wrong else "some file was, when first read,"
        raise RuntimeError(
            f"{place.parent} does not give back what was written to it: {which} not what {home} has. The medium is "
            "failing, or has less room than it says: give another with storage.root=."
        )


def _differ(first: Path, second: Path) -> bool:
    with open(first, "rb") as one, open(second, "rb") as other:
        while chunk := one.read(checksum.CHUNK_BYTES):
            if chunk != other.read(checksum.CHUNK_BYTES):
                return True
        return other.read(1) != b""


def _lost(home: Path, place: Path, images: bool) -> str:
    """Names the first file of the home that its copy lacks, or has in another size; empty where there is none."""
    for path in checksum.files(str(home), images):
        try:
            size = os.stat(place / path).st_size
        except OSError as error:
            return f"{place / path} is not there: {error.strerror}. "
        whole_size = os.stat(home / path).st_size
        if size != whole_size:
            return f"{place / path} has {size} of {whole_size} bytes. "
    return ""


def _check_space(place: Path, dataset: dict[str, Any], home: Path, told: dict[str, Any], images: bool) -> None:
    """A file takes whole blocks: thirty times its size, for small ones on a card's exFAT."""
    room = os.statvfs(place.parent)
    block, free = room.f_frsize, room.f_bavail * room.f_frsize
    needed = told["bytes"]
    if free < needed + told["files"] * block:
        sizes = (os.stat(home / path).st_size for path in checksum.files(str(home), images))
        needed = sum(-(-size // block) * block for size in sizes)
    if needed > free:
        raise RuntimeError(
            f"{place.parent} has no room: dataset {dataset['name']} needs {_mb(needed)} MB ({told['files']} files "
            f"in blocks of {block} bytes), and {_mb(free)} MB are free. Make room there, or give another storage with "
            "storage.root=."
        )
    if room.f_files > 0 and room.f_favail < told["files"]:
        raise RuntimeError(
            f"{place.parent} has no room: dataset {dataset['name']} has {told['files']} files, and that file "
            f"system can take {room.f_favail} more (df -i). Make room there, or give another storage with "
            "storage.root=."
        )


@contextmanager
def _written_to(place: Path, dataset: dict[str, Any]) -> Iterator[None]:
    """What the system says against writing becomes an error that says what to do."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        what = f"dataset {dataset['name']} could not be staged to {place}: {error}"
        if error.errno in FULL:
            room = os.statvfs(place.parent)
            free = _mb(room.f_bavail * room.f_frsize)
            raise RuntimeError(
                f"{place.parent} filled up: {what}; {free} MB are free without it. Make room there, or give another "
                "storage with storage.root=."
            ) from error
        raise RuntimeError(
            f"{what}. Check that the storage is writable and in order, or give another with storage.root=."
        ) from error


def _progress(dataset: dict[str, Any], told: dict[str, Any], say: Say) -> Callable[[Sum], None]:
    """Tells how far it is, as the system has taken it: the medium itself may be some seconds behind."""
    began = spoken = time.monotonic()

    def tell(done: Sum) -> None:
        nonlocal spoken
        now = time.monotonic()
        if now - spoken < QUIET_S:
            return
        spoken = now
        shares = [done.files / max(told["files"], 1), done.bytes / max(told["bytes"], 1)]
        left_s = (now - began) * (1 / max(min(shares), 1e-9) - 1)
        say(
            f"staging {dataset['name']}: {done.files} of {told['files']} files, {_mb(done.bytes)} of "
            f"{_mb(told['bytes'])} MB, {done.bytes / 1e6 / (now - began):.1f} MB/s, {left_s:.0f} s left"
        )

    return tell


def _unread(path: str, error: OSError) -> RuntimeError:
    return RuntimeError(
        f"{path} cannot be read: {error.strerror}. It belongs to the dataset's home: put it back, or have the dataset "
        "made again."
    )


def _mb(size: float) -> str:
    return f"{size / 1e6:.0f}" if size >= 10e6 else f"{size / 1e6:.1f}"
