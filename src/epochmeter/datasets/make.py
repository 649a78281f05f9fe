"""A dataset is made whole or not at all; one that is a user's own is looked at, and left as it is."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epochmeter.datasets import manifest
from epochmeter.datasets.atomic_folder import FULL, Say, clear, locked, whole
from epochmeter.shared.instantiate import build


def make(dataset: dict[str, Any], folder: Path, say: Say) -> None:
    """Makes the dataset in `folder`, unless another start has just done so.

    The maker that `dataset["make"]` names is called with an empty folder to fill and with `say`, and returns
    what it knows: `splits` (samples in each), `source`, and of images `classes` and `channels`. What it keeps for the
    next time, such as an archive, it puts beside that folder.
    """
    with _written_to(folder.parent, dataset), locked(folder, say):
        if manifest.fitting(folder, dataset) is not None:
            return
        clear(folder)
        _check_space(folder.parent, dataset)
        say(f"making dataset {dataset['name']} in {folder}")
        with whole(folder) as partial:
            facts = _told(dataset, "make", partial, say)
            manifest.write(partial / manifest.NAME, manifest.made(partial, dataset, facts))


def adopt(dataset: dict[str, Any], folder: Path, note: Path, say: Say) -> None:
    """Takes a user's folder as it is; its manifest becomes the file `note`, which lies elsewhere.

    What `dataset["adopt"]` names is called with the folder and with `say`, and returns what a maker does.
    """
    try:
        say(f"looking at dataset {dataset['name']} in {folder}")
        found = manifest.adopted(folder, dataset, _told(dataset, "adopt", folder, say))
    except OSError as error:
        raise RuntimeError(manifest.unread(folder, error)) from error
    with _written_to(note.parent, dataset):
        manifest.write(note, found)


def _told(dataset: dict[str, Any], act: str, folder: Path, say: Say) -> dict[str, Any]:
    """What the function that a dataset names tells of the folder; ValueError for what it leaves out."""
    found = build(dataset[act], folder, say=say)
    facts = found if isinstance(found, dict) else {}
    splits = facts.get("splits") or {}
    missing = [f"splits.{split}" for split in ("train", "val") if split not in splits]
    if dataset.get("classes") is not None and "classes" not in facts:
        missing.append("classes")
    if missing:
        raise ValueError(
            f"dataset {dataset['name']}: {dataset[act]['_target_']} returned {type(found).__name__} without "
            f"{', '.join(missing)}. Have it return what docs/extending.md shows."
        )
    return facts


@contextmanager
def _written_to(place: Path, dataset: dict[str, Any]) -> Iterator[None]:
    """What the system says against writing becomes an error that says what to do."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in FULL:
            raise RuntimeError(f"{place} filled up: {_space(place, dataset)}") from error
        raise RuntimeError(
            f"dataset {dataset['name']} could not be made in {place}: {error}. Check that its disk is "
            "writable and in order, or give another folder with dataset.root=."
        ) from error


def _check_space(place: Path, dataset: dict[str, Any]) -> None:
    if shutil.disk_usage(place).free < (dataset.get("space_bytes") or 0):
        raise RuntimeError(f"{place} has no room: {_space(place, dataset)}")


def _space(place: Path, dataset: dict[str, Any]) -> str:
    free = shutil.disk_usage(place).free / 1e6
    asked = dataset.get("space_bytes")
    needs = f"needs {asked / 1e6:.0f} MB" if asked else "needs more than there is"
    return (
        f"dataset {dataset['name']} {needs}, and {free:.1f} MB are free without it. "
        "Make room there, or give another folder with dataset.root=."
    )
