"""Unpack tar archives safely, within their target folder."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from epochmeter.datasets.progress import Notify, Progress


def unpack(archive: Path, folder: Path, say: Notify) -> None:
    """Unpack a tar archive, compressed or not, into `folder`; ValueError if it is damaged or unsafe."""
    say(f"unpacking {archive}")
    progress = Progress(f"unpacking {archive}", say)
    with open_archive(archive) as tar:
        for count, (name, file) in enumerate(iter_files(tar, archive), 1):
            write_file(file, folder / name)
            progress.update(count)


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
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> StrictTarInfo:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"it is truncated or damaged at byte {tarfile_.offset} ({error})") from error


def iter_files(tar: tarfile.TarFile, archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the path and contents of each file in an archive, in its order; folders are skipped.

    Raises ValueError for a path that is absolute or contains `..`, and for a link or a device: no dataset has these,
    and links can lead files out of the target folder.
    """
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise ValueError(
                f"{archive} is not safe to unpack: {member.name} is a link or a device, or outside the target folder. "
                "Use the official archive."
            )
        if file := tar.extractfile(member):
            yield str(path), file
    assert tar.fileobj
    while tar.fileobj.read(1 << 20):
        pass  # read to the end: the checksum of a compressed archive is last


def write_file(file: IO[bytes], path: Path) -> None:
    """Write a file's contents to a new file; ValueError if the archive contains it twice."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as out:
            shutil.copyfileobj(file, out, 1 << 20)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"the archive contains two files for {path}. Use the official archive.") from error
