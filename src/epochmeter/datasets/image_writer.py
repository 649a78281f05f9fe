"""Write arrays of pixels as image files: one per sample, one folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epochmeter.datasets.progress import Notify, Progress

if TYPE_CHECKING:
    from numpy import ndarray


def write_image(pixels: ndarray, path: Path) -> None:
    """Write 8-bit pixels, gray (rows, columns) or RGB (rows, columns, 3), in the format of the path's extension."""
    from PIL import Image

    Image.fromarray(pixels).save(path)


def write_images(images: ndarray, labels: Sequence[int], classes: int, folder: Path, say: Notify) -> None:
    """Write `<folder>/<class>/<index>.png`; class folders are zero-padded, so that they sort by label.

    Images are (count, rows, columns) or (count, rows, columns, 3), 8 bits; each of the `classes` gets a folder.
    """
    progress = Progress(f"writing {folder.name}", say, len(labels), "images")
    names = [f"{label:0{len(str(classes - 1))}}" for label in range(classes)]
    for name in names:
        (folder / name).mkdir(parents=True)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        write_image(image, folder / names[label] / f"{index:05}.png")
        progress.update(index + 1)
