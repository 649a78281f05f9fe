"""Download files, verified by checksum; an interrupted download is resumed."""

import hashlib
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO

from epochmeter.datasets.atomic_folder import folder_lock
from epochmeter.datasets.progress import MB, Notify, Progress

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416


def fetch(url: str, path: Path, md5: str | None, say: Notify, key: str = "md5") -> None:
    """Download `url` to `path` unless the file exists, and verify its checksum.

    An interrupted download is kept next to it, and the next start resumes it.

    Args:
        md5: Checksum; None skips the check.
        key: Key of the checksum below `dataset.make`, for messages.

    Raises:
        RuntimeError: The network failed.
        ValueError: The file has another checksum.
    """
    partial = path.with_name(f".{path.name}.partial")
    with folder_lock(path, say):
        if path.exists():
            verify(path, md5, "Delete it to download it again, replace it", say, key)
            return
        if md5 is None:
            partial.unlink(missing_ok=True)  # without a checksum, a partial file of another version goes unnoticed
        try:
            with open(partial, "ab") as file:
                _download(url, file, path, say)
            verify(partial, md5, f"{url} returned another file: try again", say, key)
            partial.rename(path)
        except (OSError, ValueError):  # such as a full disk, or a wrong file
            partial.unlink(missing_ok=True)
            raise


def verify(file: Path, md5: str | None, remedy: str, say: Notify, key: str = "md5") -> None:
    """Check a file's MD5.

    Args:
        md5: Expected checksum; None skips the check.
        remedy: Start of the remedy in the message.
        key: Key of the checksum below `dataset.make`, for the message.

    Raises:
        ValueError: The checksum differs.
    """
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


def _download(url: str, file: IO[bytes], path: Path, say: Notify) -> None:
    """Append the rest of `url` to `file`, or write all of it if the server cannot resume.

    Network errors become a RuntimeError with a remedy; errors of writing are not changed.
    """
    remedy = f"Without a network, put the file at {path}, or use dataset=digits, which needs none."
    try:
        response = _request_from(url, file.tell())
    except (OSError, HTTPException) as error:
        raise RuntimeError(f"cannot download {url}: {error}. {remedy}") from error
    with response:
        if response.status != PARTIAL_CONTENT and file.tell():
            file.seek(0)
            file.truncate()
        resumed_at = file.tell()
        length = response.headers.get("Content-Length")
        total = resumed_at + int(length) if length else None
        say(f"downloading {url}" + (f", resumed at {resumed_at / 1e6:.0f} MB" if resumed_at else ""))
        progress = Progress(f"downloading {url}", say, total, MB)
        while True:
            try:
                chunk = response.read(CHUNK_BYTES)
            except (OSError, HTTPException) as error:
                raise RuntimeError(f"cannot download {url}: {error}. {remedy}") from error
            if not chunk:
                break
            file.write(chunk)
            progress.update(file.tell())
        if total is not None and file.tell() < total:
            raise RuntimeError(
                f"cannot download {url}: the connection broke after {file.tell()} of {total} bytes. Run the command "
                "again to resume."
            )


def _request_from(url: str, begin: int) -> HTTPResponse:
    """Return the response from byte `begin` on; from 0 if the server has no more than that."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != RANGE_NOT_SATISFIABLE:
            raise
        return urllib.request.urlopen(url, timeout=TIMEOUT_S)
