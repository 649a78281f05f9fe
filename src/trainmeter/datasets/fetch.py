"""A file from the network: whole, with the checksum it has to have, or not there."""

import hashlib
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

from trainmeter.datasets.make import Say

CHUNK = 1 << 20
QUIET_S = 2
SILENCE_S = 30


def fetch(url: str, path: Path, md5: str, say: Say) -> None:
    """Downloads `url` to `path`, unless a file was placed there; either way it has that checksum."""
    partial = path.with_name(f".{path.name}.partial")
    if path.exists():
        _verify(path, path, md5, "Remove it to have it fetched, place the whole file")
        return
    try:
        with open(partial, "wb") as file:
            for chunk in _chunks(url, path, say):
                file.write(chunk)
        _verify(partial, path, md5, f"{url} gave another file or half of it: try again")
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def _chunks(url: str, path: Path, say: Say):
    """The bytes behind `url`; an error of the network says how to do without one."""
    done, spoken = 0, time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=SILENCE_S) as response:
            total = int(response.headers.get("Content-Length", 0))
            say(f"downloading {url} ({total / 1e6:.0f} MB)")
            while chunk := response.read(CHUNK):
                yield chunk
                done += len(chunk)
                if time.monotonic() - spoken > QUIET_S:
                    spoken = time.monotonic()
                    say(f"downloading {url}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
    except (OSError, HTTPException) as error:
        raise RuntimeError(
            f"{url} could not be fetched: {error}. Without a network, place that file as {path}, or use "
            "dataset=digits, which needs none."
        ) from error


def _verify(file: Path, path: Path, md5: str, remedy: str) -> None:
    found = hashlib.md5(usedforsecurity=False)
    with open(file, "rb") as chunks:
        while chunk := chunks.read(CHUNK):
            found.update(chunk)
    if found.hexdigest() != md5:
        raise ValueError(
            f"{path} should have the MD5 {md5} and has {found.hexdigest()}. {remedy}, or give the checksum "
            "of your own with dataset.make.md5=."
        )
