"""A file from the network: whole, with the checksum it has to have, or not there."""

import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from epochmeter.datasets.atomic_folder import Say, locked

CHUNK = 1 << 20
QUIET_S = 2
SILENCE_S = 30
PARTIAL, PAST_THE_END = 206, 416


def fetch(url: str, path: Path, md5: str | None, say: Say, key: str = "md5") -> None:
    """Downloads `url` to `path`, unless a file was placed there; either way it has that checksum, if one is given.

    What a connection that broke off has brought stays beside it, and the next start goes on from there. `key` is the
    one below `dataset.make` that holds the checksum. RuntimeError without a network, ValueError for another file.
    """
    partial = path.with_name(f".{path.name}.partial")
    with locked(path, say):
        if path.exists():
            verify(path, md5, "Remove it to have it fetched, place the whole file", say, key)
            return
        if md5 is None:
            partial.unlink(missing_ok=True)  # nothing would tell that it is of another file
        try:
            _download(url, partial, path, say)
        except OSError:
            partial.unlink(missing_ok=True)  # such as a full disk, that it would leave full
            raise
        try:
            verify(partial, md5, f"{url} gave another file: try again", say, key, path)
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)


def verify(file: Path, md5: str | None, remedy: str, say: Say, key: str = "md5", path: Path | None = None) -> None:
    """ValueError for a file that has not that checksum; `path` is where it is to lie, if not where it does."""
    if md5 is None:
        return
    found = hashlib.md5(usedforsecurity=False)
    total, done, spoken = file.stat().st_size, 0, time.monotonic()
    with open(file, "rb") as chunks:
        while chunk := chunks.read(CHUNK):
            found.update(chunk)
            done += len(chunk)
            if time.monotonic() - spoken > QUIET_S:
                spoken = time.monotonic()
                say(f"verifying {path or file}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
    if found.hexdigest() != md5:
        raise ValueError(
            f"{path or file} should have the MD5 {md5} and has {found.hexdigest()}. {remedy}, or give the checksum "
            f"of your own with dataset.make.{key}=."
        )


def _download(url: str, partial: Path, path: Path, say: Say) -> None:
    with open(partial, "ab") as file:
        try:
            for begin, chunk in _chunks(url, file.tell(), path, say):
                if begin < file.tell():
                    file.seek(begin)
                    file.truncate()
                file.write(chunk)
        finally:
            if not file.tell():
                partial.unlink()


def _chunks(url: str, have: int, path: Path, say: Say) -> Iterator[tuple[int, bytes]]:
    """What there is behind `url` past the first `have` bytes, each piece with where it begins.

    It may begin at 0 again, where those bytes are not the first of this file. An error of the network says how to do
    without one; what goes wrong with writing is not among these.
    """
    try:
        with _opened(url, have) as response:
            goes_on = response.status == PARTIAL
            done = have if goes_on else 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            size = f" ({total / 1e6:.0f} MB)" if total else ""
            say(f"downloading {url}{size}" + (f", from {done / 1e6:.0f} MB on" if goes_on else ""))
            spoken = time.monotonic()
            while chunk := response.read(CHUNK):
                yield done, chunk
                done += len(chunk)
                if time.monotonic() - spoken > QUIET_S:
                    spoken = time.monotonic()
                    say(f"downloading {url}: {done / 1e6:.0f}" + (f" of {total / 1e6:.0f}" if total else "") + " MB")
        if total is not None and done < total:
            raise OSError(f"it broke off after {done} of {total} bytes; the next start goes on from there")
    except (OSError, HTTPException) as error:
        raise RuntimeError(
            f"{url} could not be fetched: {error}. Without a network, place that file as {path}, or use "
            "dataset=digits, which needs none."
        ) from error


def _opened(url: str, begin: int) -> HTTPResponse:
    """The answer from `begin` on; from 0 on, if the server has no more than that."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        return urllib.request.urlopen(request, timeout=SILENCE_S)
    except urllib.error.HTTPError as error:
        if error.code != PAST_THE_END:
            raise
        return urllib.request.urlopen(url, timeout=SILENCE_S)
