"""Inspect a user's folder of classes: count the images without opening or writing any file."""

import os
from pathlib import Path

from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify, Progress
from epochmeter.shared.units import IMAGE_SUFFIXES


def scan(folder: Path, say: Notify, held_out: int = 5) -> Facts:
    """Count the images of train/ and val/, or of class folders, with every `held_out`-th file for validation."""
    train, val = folder / "train", folder / "val"
    if train.is_dir() != val.is_dir():
        raise ValueError(
            f"{folder} has only one of train/ and val/; both are needed, also with evaluate=false. Add the other one "
            f"with the same class folders, or hold out every {held_out}th file: set dataset.root= to the existing one."
        )
    if train.is_dir():
        counts, val_counts = _count_images(train, say), _count_images(val, say)
        if unknown := sorted(val_counts.keys() - counts.keys()):
            raise ValueError(
                f"{val} has classes that {train} lacks: {_first_names(unknown)}. Both need the same class folders."
            )
        splits = {"train": sum(counts.values()), "val": sum(val_counts.values())}
    else:
        counts = _count_images(folder, say)
        val_count = sum(count // held_out for count in counts.values())
        splits = {"train": sum(counts.values()) - val_count, "val": val_count}
    return {"splits": splits, "classes": len(counts), "channels": 3, "source": str(folder)}


def _count_images(folder: Path, say: Notify) -> dict[str, int]:
    progress = Progress(f"inspecting {folder}", say, unit="images")
    counts: dict[str, int] = {}
    for entry in os.scandir(folder):
        if entry.is_dir() and not entry.name.startswith("."):
            visible = (file for file in os.scandir(entry) if file.is_file() and not file.name.startswith("."))
            counts[entry.name] = sum(file.name.lower().endswith(IMAGE_SUFFIXES) for file in visible)
            progress.update(sum(counts.values()))
    if not counts:
        raise ValueError(f"{folder} has no class folders. Put the images of each class into a folder of their own.")
    if empty := sorted(name for name, count in counts.items() if not count):
        raise ValueError(
            f"{folder} has classes without images: {_first_names(empty)}. Add images ({', '.join(IMAGE_SUFFIXES)}), or "
            "set dataset.root= to a folder that has only the folders of the classes."
        )
    return counts


def _first_names(names: list[str], limit: int = 5) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
