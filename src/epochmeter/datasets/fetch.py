"""Download files, verified by checksum; an interrupted download is resumed."""

import hashlib
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from epochmeter.datasets.atomic_folder import folder_lock
from epochmeter.datasets.disk_space import DISK_FULL_ERRORS
from epochmeter.datasets.progress import MB, Notify, Progress

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416


def fetch(url: str, path: Path, md5: str | None, say: Notify, key: str = "md5") -> None:
    """Download `url` to `path` unless the file exists, and verify its checksum.

    An interrupted download is kept next to `path`, and the next start resumes it. Raises RuntimeError if the network
    failed; for the checksum see `verify`.
    """
    partial = path.with_name(f".{path.name}.partial")
    with folder_lock(path, say):
        if path.exists():
            verify(path, md5, "Delete it to download it again, replace it", say, key)
            return
        if md5 is None:
            partial.unlink(missing_ok=True)  # without a checksum, a partial file of another version goes unnoticed
        try:
            _download(url, partial, say)
            verify(partial, md5, f"{url} returned another file: try again", say, key)
            partial.rename(path)
        except ValueError:  # a wrong file
            partial.unlink(missing_ok=True)
            raise
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
                partial.unlink(missing_ok=True)
                raise
            raise RuntimeError(
                f"cannot download {url}: {error}. Run the command again to resume. Without a network, put the file at "
                f"{path}, or use dataset=digits, which needs none."
            ) from error


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


def _download(url: str, partial: Path, say: Notify) -> None:
    """Append the rest of `url` to a file, or write all of it if the server cannot resume."""
    begin = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except HTTPError as error:
        if error.code != RANGE_NOT_SATISFIABLE:
            raise
        partial.unlink()  # the server has no more than that
        _download(url, partial, say)
        return
    resumes = response.status == PARTIAL_CONTENT
    with response, open(partial, "ab" if resumes else "wb") as file:
        length = response.headers.get("Content-Length")
        total = file.tell() + int(length) if length else None
        say(f"downloading {url}" + (f", resumed at {begin / 1e6:.0f} MB" if resumes else ""))
        progress = Progress(f"downloading {url}", say, total, MB)
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            progress.update(file.tell())
        if total is not None and file.tell() < total:
            raise ConnectionError(f"the connection broke after {file.tell()} of {total} bytes")
