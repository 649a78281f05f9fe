"""Inspect a user's folder of classes: count the images without opening or writing any file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from epochmeter.datasets.atomic_folder import Notify
from epochmeter.datasets.checksum import IMAGE_SUFFIXES

PROGRESS_EVERY = 100_000
"""Images between two progress messages."""


def scan(folder: Path, say: Notify, classes: int | None, held_out: int = 5) -> dict[str, Any]:
    """Count the images of a folder of classes.

    Args:
        folder: Has train/ and val/, or the class folders directly.
        say: Receives progress messages.
        classes: Expected number of classes.
        held_out: Without train/ and val/, every `held_out`-th file per class is for validation.

    Returns:
        Facts for the manifest. Images are recognized by extension, ignoring case; hidden files do not count.

    Raises:
        ValueError: The folder cannot be used for training.
    """
    if held_out < 2:
        raise ValueError(f"dataset.held_out={held_out}: give 2 or more; one of this many files is held out.")
    train, val = folder / "train", folder / "val"
    if val.is_dir() and not train.is_dir():
        raise ValueError(
            f"{folder} has val/ and no train/. Add train/, or put the class folders directly into the folder."
        )
    if train.is_dir() and not val.is_dir():
        raise ValueError(
            f"{folder} has train/ and no val/. Add val/ with the same class folders, or set "
            f"dataset.root={train} to hold out every {held_out}th file. Needed also with evaluate=false."
        )
    if train.is_dir():
        train_counts, val_counts = _count_images(train, say), _count_images(val, say)
        unknown = sorted(val_counts.keys() - train_counts.keys())
        if unknown:
            raise ValueError(
                f"{val} has classes that {train} lacks: {_first_names(unknown)}. Both need the same class folders."
            )
        if len(val_counts) < len(train_counts):
            say(f"{val} has no images of {_first_names(sorted(train_counts.keys() - val_counts.keys()))}")
        splits = {"train": sum(train_counts.values()), "val": sum(val_counts.values())}
    else:
        train_counts = _count_images(folder, say)
        val_counts_of = {name: count // held_out for name, count in train_counts.items()}
        splits = {"train": sum(train_counts.values()) - sum(val_counts_of.values()), "val": sum(val_counts_of.values())}
        if not splits["val"]:
            raise ValueError(
                f"no class in {folder} has {held_out} images, so none is held out for validation. Add images, or split "
                "them into train/ and val/. Needed also with evaluate=false."
            )
    if classes != len(train_counts):
        setting = "dataset.classes is not set" if classes is None else f"dataset.classes={classes}"
        raise ValueError(
            f"{setting}, but {folder} has {len(train_counts)} class folders: {_first_names(sorted(train_counts))}. Set "
            f"dataset.classes={len(train_counts)}, or set dataset.root= to another folder."
        )
    return {"splits": splits, "classes": len(train_counts), "channels": 3, "source": str(folder)}


def _count_images(folder: Path, say: Notify) -> dict[str, int]:
    """Return the number of images of each class."""
    counts: dict[str, int] = {}
    loose, images, next_report = 0, 0, PROGRESS_EVERY
    for entry in _entries(folder):
        if not entry.is_dir():
            loose += _is_image(entry)
            continue
        counts[entry.name] = sum(_is_image(file) for file in _entries(Path(entry.path)))
        images += counts[entry.name]
        if images >= next_report:
            next_report = images + PROGRESS_EVERY
            say(f"{folder}: {images} images in {len(counts)} classes so far")
    if not counts:
        problem = f"{loose} images outside class folders" if loose else "no class folder"
        raise ValueError(f"{folder} has {problem}. Put the images of each class into a folder of their own.")
    empty = sorted(name for name, count in counts.items() if not count)
    if empty:
        raise ValueError(
            f"{folder} has classes without images: {_first_names(empty)}. Delete these folders, or add images "
            f"({', '.join(IMAGE_SUFFIXES)})."
        )
    return counts


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith("."))


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file()


def _first_names(names: list[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
