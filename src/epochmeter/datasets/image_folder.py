"""Inspect a user's folder of classes: count the images without opening or writing any file."""

import os
from pathlib import Path

from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify, Progress
from epochmeter.shared.image_files import IMAGE_SUFFIXES, is_folder, is_image
from epochmeter.shared.problem import input_error


def scan(folder: Path, say: Notify, held_out: int = 5) -> Facts:
    """Count the images of train/ and val/, or of class folders, with every `held_out`-th file for validation."""
    train, val = folder / "train", folder / "val"
    if train.is_dir() != val.is_dir():
        raise input_error(
            f"{folder} has only one of train/ and val/; both are needed, also with evaluate=false",
            f"add the other one with the same class folders, or hold out every {held_out}th file: set dataset.root= "
            "to the existing one",
            file=str(folder),
        )
    if train.is_dir():
        counts, val_counts = _count_images(train, say), _count_images(val, say)
        if unknown := sorted(val_counts.keys() - counts.keys()):
            raise input_error(
                f"{val} has classes that {train} lacks: {_first_names(unknown)}", "both need the same class folders"
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
    for path in os.scandir(folder):
        if is_folder(path) and not path.name.startswith("."):
            counts[path.name] = sum(map(is_image, os.scandir(path)))
            progress.update(sum(counts.values()))
    if not counts:
        raise input_error(f"{folder} has no class folders", "put the images of each class into a folder of their own")
    if empty := sorted(name for name, count in counts.items() if not count):
        raise input_error(
            f"{folder} has classes without images: {_first_names(empty)}",
            f"add images ({', '.join(IMAGE_SUFFIXES)}), or set dataset.root= to a folder that has only the folders of "
            "the classes",
            file=str(folder),
        )
    return counts


def _first_names(names: list[str], limit: int = 5) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
