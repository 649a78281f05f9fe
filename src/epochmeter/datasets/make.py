"""Create a dataset atomically, or inspect a user's dataset without changing it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epochmeter.datasets import manifest
from epochmeter.datasets.atomic_folder import DISK_FULL_ERRORS, Notify, create_atomically, folder_lock, remove_leftovers
from epochmeter.shared.instantiate import instantiate_spec


def make(dataset: dict[str, Any], folder: Path, say: Notify) -> None:
    """Create the dataset in `folder`, unless another process has just done so.

    The function named by `dataset["make"]` is called with an empty folder to fill and with `say`. It returns `splits`
    (samples per split), `source` and, for images, `classes` and `channels`. Files to keep for the next time, such as
    archives, go next to that folder.

    Args:
        dataset: The dataset's configuration.
        folder: Target folder.
        say: Receives progress messages.

    Raises:
        ValueError: The configuration is wrong.
        RuntimeError: The disk is full or not writable.
    """
    with _explain_write_errors(folder.parent, dataset), folder_lock(folder, say):
        if manifest.load_valid(folder, dataset) is not None:
            return
        remove_leftovers(folder)
        _check_space(folder.parent, dataset)
        say(f"preparing dataset {dataset['name']} in {folder}")
        with create_atomically(folder) as partial:
            facts = _call_maker(dataset, "make", partial, say)
            manifest.write(partial / manifest.MANIFEST_NAME, manifest.describe_made(partial, dataset, facts))


def adopt(dataset: dict[str, Any], folder: Path, note: Path, say: Notify) -> None:
    """Inspect a user's folder and write its manifest to the file `note`, outside the folder.

    The function named by `dataset["adopt"]` is called with the folder and with `say`, and returns the same as a maker.

    Args:
        dataset: The dataset's configuration.
        folder: The user's folder, which is not changed.
        note: Path of the manifest.
        say: Receives progress messages.
    """
    try:
        say(f"inspecting dataset {dataset['name']} in {folder}")
        description = manifest.describe_user_folder(folder, dataset, _call_maker(dataset, "adopt", folder, say))
    except OSError as error:
        raise RuntimeError(manifest.read_error(folder, error)) from error
    with _explain_write_errors(note.parent, dataset):
        manifest.write(note, description)


def _call_maker(dataset: dict[str, Any], act: str, folder: Path, say: Notify) -> dict[str, Any]:
    """Call the dataset's function `act` on the folder and return its facts; ValueError if some are missing."""
    returned = instantiate_spec(dataset[act], folder, say=say)
    facts = returned if isinstance(returned, dict) else {}
    splits = facts.get("splits") or {}
    missing = [f"splits.{split}" for split in ("train", "val") if split not in splits]
    if dataset.get("classes") is not None and "classes" not in facts:
        missing.append("classes")
    if missing:
        raise ValueError(
            f"dataset {dataset['name']}: {dataset[act]['_target_']} returned {type(returned).__name__} without "
            f"{', '.join(missing)}. See docs/extending.md for the return value."
        )
    return facts


@contextmanager
def _explain_write_errors(place: Path, dataset: dict[str, Any]) -> Iterator[None]:
    """Turn errors of writing to `place` into a RuntimeError with a remedy."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS:
            raise RuntimeError(f"disk full at {place}: {_needed_bytes(place, dataset)}") from error
        raise RuntimeError(
            f"cannot write dataset {dataset['name']} to {place}: {error}. Check that its disk is writable and healthy, "
            "or set dataset.root= to another folder."
        ) from error


def _check_space(place: Path, dataset: dict[str, Any]) -> None:
    if shutil.disk_usage(place).free < (dataset.get("space_bytes") or 0):
        raise RuntimeError(f"not enough disk space in {place}: {_needed_bytes(place, dataset)}")


def _needed_bytes(place: Path, dataset: dict[str, Any]) -> str:
    free = shutil.disk_usage(place).free / 1e6
    space_bytes = dataset.get("space_bytes")
    needs = f"needs {space_bytes / 1e6:.0f} MB" if space_bytes else "needs more"
    return (
        f"dataset {dataset['name']} {needs}, and {free:.1f} MB are free. "
        "Free disk space, or set dataset.root= to another folder."
    )
