"""Download files, verified by checksum."""

import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from epochmeter.datasets.atomic_folder import Notify, folder_lock

CHUNK_BYTES = 1 << 20
PROGRESS_INTERVAL_S = 2
TIMEOUT_S = 30
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416


def fetch(url: str, path: Path, md5: str | None, say: Notify, key: str = "md5") -> None:
    """Download `url` to `path` unless the file exists, and verify its checksum.

    An interrupted download is kept next to it, and the next start resumes it.

    Args:
        url: Address of the file.
        path: Target path.
        md5: Checksum; None skips the check.
        say: Receives progress messages.
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
            _download(url, partial, path, say)
        except OSError:
            partial.unlink(missing_ok=True)  # such as a full disk
            raise
        try:
            verify(partial, md5, f"{url} returned another file: try again", say, key, path)
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)


def verify(file: Path, md5: str | None, remedy: str, say: Notify, key: str = "md5", path: Path | None = None) -> None:
    """Check a file's MD5.

    Args:
        file: The file.
        md5: Expected checksum; None skips the check.
        remedy: Start of the remedy in the message.
        say: Receives progress messages.
        key: Key of the checksum below `dataset.make`, for the message.
        path: The file's final path, if different.

    Raises:
        ValueError: The checksum differs.
    """
    if md5 is None:
        return
    checksum = hashlib.md5(usedforsecurity=False)
    total, done, reported_s = file.stat().st_size, 0, time.monotonic()
    with open(file, "rb") as chunks:
        while chunk := chunks.read(CHUNK_BYTES):
            checksum.update(chunk)
            done += len(chunk)
            if time.monotonic() - reported_s > PROGRESS_INTERVAL_S:
                reported_s = time.monotonic()
                say(f"verifying {path or file}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
    if checksum.hexdigest() != md5:
        raise ValueError(
            f"{path or file} has the MD5 {checksum.hexdigest()} instead of {md5}. {remedy}, or set "
            f"dataset.make.{key}= to the checksum of your own file."
        )


def _download(url: str, partial: Path, path: Path, say: Notify) -> None:
    with open(partial, "ab") as file:
        try:
            for begin, chunk in _iter_chunks(url, file.tell(), path, say):
                if begin < file.tell():
                    file.seek(begin)
                    file.truncate()
                file.write(chunk)
        finally:
            if not file.tell():
                partial.unlink()


def _iter_chunks(url: str, have: int, path: Path, say: Notify) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of the file at `url`, after the first `have` bytes.

    The offset may restart at 0, if the server does not resume. Network errors become a RuntimeError with a remedy;
    errors of writing are not affected.
    """
    try:
        with _request_from(url, have) as response:
            resumed = response.status == PARTIAL_CONTENT
            done = have if resumed else 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            size = f" ({total / 1e6:.0f} MB)" if total else ""
            say(f"downloading {url}{size}" + (f", resumed at {done / 1e6:.0f} MB" if resumed else ""))
            reported_s = time.monotonic()
            while chunk := response.read(CHUNK_BYTES):
                yield done, chunk
                done += len(chunk)
                if time.monotonic() - reported_s > PROGRESS_INTERVAL_S:
                    reported_s = time.monotonic()
                    say(f"downloading {url}: {done / 1e6:.0f}" + (f" of {total / 1e6:.0f}" if total else "") + " MB")
        if total is not None and done < total:
            raise OSError(f"the connection broke after {done} of {total} bytes; the next start resumes there")
    except (OSError, HTTPException) as error:
        raise RuntimeError(
            f"cannot download {url}: {error}. Without a network, put the file at {path}, or use dataset=digits, which "
            "needs none."
        ) from error


def _request_from(url: str, begin: int) -> HTTPResponse:
    """Return the response from byte `begin` on; from 0 if the server has no more than that."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != RANGE_NOT_SATISFIABLE:
            raise
        return urllib.request.urlopen(url, timeout=TIMEOUT_S)
