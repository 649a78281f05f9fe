"""Download files, verified by checksum, and unpack tar archives."""

import gzip
import hashlib
import tarfile
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path

from epochmeter.datasets.atomic_folder import DISK_FULL_ERRORS, folder_lock
from epochmeter.datasets.progress import MB, Notify, Progress

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30


def fetch(url: str, path: Path, md5: str | None, say: Notify, key: str = "md5") -> None:
    """Download `url` to `path` unless the file exists, and verify its checksum; RuntimeError if the network failed."""
    partial = path.with_name(f".{path.name}.partial")
    with folder_lock(path, say):
        if path.exists():
            verify(path, md5, "Delete it to download it again, replace it", say, key)
            return
        try:
            _download(url, partial, say)
            verify(partial, md5, f"{url} returned another file: try again", say, key)
            partial.rename(path)
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
                raise
            raise RuntimeError(
                f"cannot download {url}: {error}. Run the command again. Without a network, put the file at {path}, or "
                "use dataset=digits, which needs none."
            ) from error
        finally:
            partial.unlink(missing_ok=True)


def verify(file: Path, md5: str | None, remedy: str, say: Notify, key: str = "md5") -> None:
    """Raise ValueError if a file does not have this MD5, the value of `dataset.make.<key>`; None skips the check."""
    if md5 is None:
        return
    checksum = hashlib.md5(usedforsecurity=False)
    progress = Progress(f"verifying {file}", say, file.stat().st_size, MB)
    with open(file, "rb") as chunks:
        while chunk := chunks.read(CHUNK_BYTES):
            checksum.update(chunk)
            progress.update(chunks.tell())
    if checksum.hexdigest() != md5:
        raise ValueError(
            f"{file} has the MD5 {checksum.hexdigest()} instead of {md5}. {remedy}, or set "
            f"dataset.make.{key}= to the checksum of your own file."
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive; ValueError if it is damaged, or has files that belong outside of the folder."""
    try:
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # default from Python 3.14 on
            tar.extractall(folder)  # noqa: S202 (the filter is set)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{archive} is not a complete tar archive: {error}. Delete it to download it again, or replace it."
        ) from error


def _download(url: str, partial: Path, say: Notify) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response, open(partial, "wb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        say(f"downloading {url}")
        progress = Progress(f"downloading {url}", say, total, MB)
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            progress.update(file.tell())
        if total is not None and file.tell() < total:
            raise ConnectionError(f"the connection broke after {file.tell()} of {total} bytes")
