"""Published datasets: their files, verified by checksum, and their samples as images."""

import hashlib
import os
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

from numpy import ndarray
from PIL import Image

from epochmeter.datasets.atomic_folder import DISK_FULL_ERRORS, creation_lock
from epochmeter.datasets.progress import MB, Notify, Progress
from epochmeter.shared.problem import input_error, machine_error

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30
SHA256_DIGITS = 64  # of a checksum; an MD5 has 32


def fetch(url: str, path: Path, checksum: str | None, say: Notify, key: str = "md5") -> None:
    """Download `url` to `path` unless the file exists, and verify its checksum; RuntimeError if the network failed."""
    partial = path.with_name(f".{path.name}.partial")
    with creation_lock(path, say):
        if path.exists():
            verify(path, checksum, "delete it to download it again, replace it", key)
            return
        try:
            _download(url, partial, say)
            verify(partial, checksum, f"try again, as {url} returned another file", key)
            partial.rename(path)
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
                raise
            raise machine_error(
                f"cannot download {url}: {error}",
                f"run the command again. Without a network, put the file at {path}, or use dataset=digits, which needs "
                "none",
                file=str(path),
            ) from error
        finally:
            partial.unlink(missing_ok=True)


def verify(file: Path, checksum: str | None, remedy: str, key: str) -> None:
    """Raise ValueError if a file does not have this MD5 or SHA-256, of the key `dataset.make.<key>`; None skips it."""
    if checksum is None:
        return
    name, algorithm = ("SHA-256", "sha256") if len(checksum) == SHA256_DIGITS else ("MD5", "md5")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(file, "rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            digest.update(chunk)
    if (actual := digest.hexdigest()) != checksum:
        raise input_error(
            f"{file} has the {name} {actual} instead of {checksum}",
            f"{remedy}, or set dataset.make.{key}=null for a file of your own",
            file=str(file),
        )


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
        file.flush()
        os.fsync(file.fileno())  # before the file gets its name


def write_images(images: ndarray, labels: Sequence[int], classes: int, folder: Path, say: Notify) -> None:
    """Write `<folder>/<class>/<index>.png`, classes zero-padded; images are (count, rows, columns[, 3]), 8 bits."""
    progress = Progress(f"writing {folder.name}", say, len(labels), "images")
    names = [f"{label:0{len(str(classes - 1))}}" for label in range(classes)]
    for name in names:
        (folder / name).mkdir(parents=True)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(folder / names[label] / f"{index:05}.png")
        progress.update(index + 1)
