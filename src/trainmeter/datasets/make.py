"""A dataset is made whole or not at all: beside its place, on the disk, then moved there in one step."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainmeter.build import build
from trainmeter.datasets import manifest

Say = Callable[[str], object]


def make(dataset: dict[str, Any], folder: Path, say: Say) -> None:
    """Makes the dataset in `folder`, unless another start has just done so.

    The maker that `dataset["make"]` names is called with an empty folder to fill and with `say`, and returns
    what it knows: `splits` (samples in each), `classes`, `channels`, `source`. What it keeps for the
    next time, such as an archive, it puts beside that folder.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    with _written_to(folder.parent, dataset), _locked(folder, say):
        if manifest.fitting(folder, dataset) is not None:
            return
        _check_space(folder.parent, dataset)
        say(f"making dataset {dataset['name']} in {folder}")
        shutil.rmtree(partial, ignore_errors=True)  # of a maker that was killed
        partial.mkdir()
        try:
            manifest.write(partial, dataset, build(dataset["make"], partial, say=say))
            os.sync()  # once for all: an fsync for each of thousands of files takes minutes on an SD card
            _replace(folder, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _replace(folder: Path, new: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(folder: Path, say: Say) -> Iterator[None]:
    """Holds the right to make what is in `folder`; the kernel gives it back however this process ends."""
    with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another start is making {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _written_to(place: Path, dataset: dict[str, Any]) -> Iterator[None]:
    """What the system says against writing becomes an error that says what to do."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RuntimeError(f"{place} filled up: {_space(place, dataset)}") from error
        raise RuntimeError(
            f"dataset {dataset['name']} could not be made in {place}: {error}. Check that the storage is "
            "writable and in order, or give another with storage.root=."
        ) from error


def _check_space(place: Path, dataset: dict[str, Any]) -> None:
    if shutil.disk_usage(place).free < dataset["space_bytes"]:
        raise RuntimeError(f"{place} has no room: {_space(place, dataset)}")


def _space(place: Path, dataset: dict[str, Any]) -> str:
    needed, free = dataset["space_bytes"] / 1e6, shutil.disk_usage(place).free / 1e6
    return (
        f"dataset {dataset['name']} needs {needed:.0f} MB, and {free:.1f} MB are free without it. "
        "Make room there, or give another storage with storage.root=."
    )
