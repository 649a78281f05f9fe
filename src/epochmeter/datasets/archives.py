"""Unpack tar archives safely, within their target folder."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from epochmeter.datasets.atomic_folder import Notify

PROGRESS_INTERVAL_S = 2.0
END, BROKEN, UNREAD = tarfile.EOFHeaderError, tarfile.HeaderError, tarfile.ReadError  # type: ignore[attr-defined]


def unpack(archive: Path, folder: Path, say: Notify) -> int:
    """Unpack a tar archive, compressed or not, into `folder`.

    Returns:
        The number of files.

    Raises:
        ValueError: The archive is damaged or unsafe, see `iter_files`.
    """
    report = progress_reporter(f"unpacking {archive}", say)
    count = 0
    with open_archive(archive) as tar:
        for count, (name, file) in enumerate(iter_files(tar, archive), 1):
            write_file(file, folder / name)
            report(count)
    return count


@contextmanager
def open_archive(archive: Path, file: IO[bytes] | None = None) -> Iterator[tarfile.TarFile]:
    """Open a tar archive by path or as a stream; ValueError if it is damaged or truncated."""
    try:
        with tarfile.open(archive, fileobj=file, tarinfo=StrictTarInfo) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{archive} is not a complete tar archive: {error}. Delete it to download it again, or replace it."
        ) from error


class StrictTarInfo(tarfile.TarInfo):
    """A tar header that raises if it is truncated or missing; tarfile itself would take that for the archive's end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> StrictTarInfo:
        try:
            return super().fromtarfile(tarfile)
        except END:
            raise
        except BROKEN as error:
            raise UNREAD(f"it is truncated or damaged at byte {tarfile.offset} ({error})") from error


def iter_files(tar: tarfile.TarFile, archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the path and contents of each file in an archive, in its order; folders are skipped.

    Raises:
        ValueError: A path is absolute or contains `..`, or a member is a link or a device. No dataset has these, and
            links can lead files out of the target folder.
    """
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise _unsafe(archive, member, "is outside the target folder")
        if member.isdir():
            continue
        if not member.isfile():
            kind = f"is a link to {member.linkname}" if member.issym() or member.islnk() else "is a device"
            raise _unsafe(archive, member, kind)
        file = tar.extractfile(member)
        assert file, "a regular file has contents"
        yield str(path), file
    assert tar.fileobj
    while tar.fileobj.read(1 << 20):
        pass  # read to the end: the checksum of a compressed archive is last


def write_file(file: IO[bytes], path: Path) -> None:
    """Write a file's contents to a new file; ValueError if the archive contains it twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise ValueError(f"{path.name} is in the archive twice. Use the official archive.")
    with open(path, "xb") as out:
        shutil.copyfileobj(file, out, 1 << 20)


def progress_reporter(doing: str, say: Notify, of: int | None = None) -> Callable[[int], None]:
    """Report an activity at once; return a function that reports the number of files, at most every few seconds."""
    say(doing)
    reported_s = time.monotonic()

    def report(count: int) -> None:
        nonlocal reported_s
        if time.monotonic() - reported_s >= PROGRESS_INTERVAL_S:
            reported_s = time.monotonic()
            say(f"{doing}: {count}{f' of {of}' if of else ''} files")

    return report


def _unsafe(archive: Path, member: tarfile.TarInfo, what: str) -> ValueError:
    return ValueError(
        f"{archive} is not safe to unpack: {member.name} {what}. Nothing was kept. Use the official archive."
    )
