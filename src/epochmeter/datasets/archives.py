"""Archives, unpacked where they are told to and nowhere else."""

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

from epochmeter.datasets.atomic_folder import Say

QUIET_S = 2.0
END, BROKEN, UNREAD = tarfile.EOFHeaderError, tarfile.HeaderError, tarfile.ReadError  # type: ignore[attr-defined]


def unpack(archive: Path, folder: Path, say: Say) -> int:
    """Unpacks a tar archive, compressed or not, into `folder`; the number of files. ValueError as `files` raises."""
    told = progress(f"unpacking {archive}", say)
    count = 0
    with opened(archive) as tar:
        for count, (name, file) in enumerate(files(tar, archive), 1):
            put(file, folder / name)
            told(count)
    return count


@contextmanager
def opened(archive: Path, file: IO[bytes] | None = None) -> Iterator[tarfile.TarFile]:
    """A tar archive, from its path or from a stream of it; ValueError where it is none, or ends too early."""
    try:
        with tarfile.open(archive, fileobj=file, tarinfo=Header) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{archive} is no whole tar archive: {error}. Remove it to have it fetched again, or place the whole one."
        ) from error


class Header(tarfile.TarInfo):
    """The header of a file: where one is torn or missing, tarfile itself takes the archive to end there."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Header:
        try:
            return super().fromtarfile(tarfile)
        except END:
            raise
        except BROKEN as error:
            raise UNREAD(f"it ends in the midst, or is damaged at byte {tarfile.offset} ({error})") from error


def files(tar: tarfile.TarFile, archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of an archive, in its order, by their paths; folders are passed over.

    ValueError for what would leave the folder it is unpacked to, a path with `..` or an absolute one, and for a link
    or a device: no dataset has any, and links are how others are led out of a folder.
    """
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise _unsafe(archive, member, "leads out of the folder that it is unpacked to")
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
        pass  # what is compressed has its checksum after the last file


def put(file: IO[bytes], path: Path) -> None:
    """Writes a file's contents to a new file; ValueError where an archive holds it twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise ValueError(f"{path.name} is in the archive twice. Place the official archive.")
    with open(path, "xb") as out:
        shutil.copyfileobj(file, out, 1 << 20)


def progress(doing: str, say: Say, of: int | None = None) -> Callable[[int], None]:
    """Says at once what is done, and then how far it is, every few seconds at most."""
    say(doing)
    spoken = time.monotonic()

    def told(count: int) -> None:
        nonlocal spoken
        if time.monotonic() - spoken >= QUIET_S:
            spoken = time.monotonic()
            say(f"{doing}: {count}{f' of {of}' if of else ''} files")

    return told


def _unsafe(archive: Path, member: tarfile.TarInfo, what: str) -> ValueError:
    return ValueError(
        f"{archive} is not safe to unpack: {member.name} {what}. Nothing of it is kept. Place the official archive."
    )
