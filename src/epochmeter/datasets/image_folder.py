"""A user's folder of classes, looked at: what it holds is counted, no file is opened, nothing is written."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from epochmeter.datasets.atomic_folder import Say
from epochmeter.datasets.checksum import IMAGES

EVERY = 100_000
"""Images after which it says how far it is."""


def look(folder: Path, say: Say, classes: int | None, held_out: int = 5) -> dict[str, Any]:
    """What a folder of classes holds: in train/ and val/, or at once, every `held_out`-th file being of `val`.

    Images count by their extension, in any case; hidden ones do not. ValueError for what cannot be trained on.
    """
    if held_out < 2:
        raise ValueError(f"dataset.held_out={held_out}: give 2 or more, that of as many files one is held out.")
    train, val = folder / "train", folder / "val"
    if val.is_dir() and not train.is_dir():
        raise ValueError(f"{folder} has val/ and no train/. Add train/, or put the folders of classes into it at once.")
    if train.is_dir() and not val.is_dir():
        raise ValueError(
            f"{folder} has train/ and no val/. Add val/, with the same folders of classes, or give "
            f"dataset.root={train} to have every {held_out}th file held out. evaluate=false needs it as well."
        )
    if train.is_dir():
        trained, held = _counted(train, say), _counted(val, say)
        strangers = sorted(held.keys() - trained.keys())
        if strangers:
            raise ValueError(
                f"{val} has classes that {train} has not: {_some(strangers)}. Both need the same folders of classes."
            )
        if len(held) < len(trained):
            say(f"{val} has no images of {_some(sorted(trained.keys() - held.keys()))}")
        splits = {"train": sum(trained.values()), "val": sum(held.values())}
    else:
        trained = _counted(folder, say)
        held_of = {name: count // held_out for name, count in trained.items()}
        splits = {"train": sum(trained.values()) - sum(held_of.values()), "val": sum(held_of.values())}
        if not splits["val"]:
            raise ValueError(
                f"no class in {folder} has {held_out} images, so that none is held out for validation. Add images, or "
                "split them into train/ and val/. evaluate=false needs some as well."
            )
    if classes != len(trained):
        asked = "dataset.classes is not given" if classes is None else f"dataset.classes={classes}"
        raise ValueError(
            f"{asked}, and {folder} has {len(trained)} folders of classes: {_some(sorted(trained))}. Give "
            f"dataset.classes={len(trained)}, or another folder with dataset.root=."
        )
    return {"splits": splits, "classes": len(trained), "channels": 3, "source": str(folder)}


def _counted(folder: Path, say: Say) -> dict[str, int]:
    """The images of each class."""
    counts: dict[str, int] = {}
    loose, images, told = 0, 0, EVERY
    for entry in _entries(folder):
        if not entry.is_dir():
            loose += _is_image(entry)
            continue
        counts[entry.name] = sum(_is_image(each) for each in _entries(Path(entry.path)))
        images += counts[entry.name]
        if images >= told:
            told = images + EVERY
            say(f"{folder}: {images} images in {len(counts)} classes so far")
    if not counts:
        lying = f"{loose} images that lie in no folder of a class" if loose else "no folder of a class"
        raise ValueError(f"{folder} holds {lying}. Put the images of each class into a folder of its own there.")
    empty = sorted(name for name, count in counts.items() if not count)
    if empty:
        raise ValueError(
            f"{folder} has classes without an image: {_some(empty)}. Remove these folders, or add images "
            f"({', '.join(IMAGES)})."
        )
    return counts


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith("."))


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(IMAGES) and entry.is_file()


def _some(names: list[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
