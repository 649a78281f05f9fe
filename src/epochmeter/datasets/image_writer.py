"""Arrays of pixels become image files, one a sample, in a folder a class."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epochmeter.datasets.atomic_folder import Say

if TYPE_CHECKING:
    from numpy import ndarray

QUIET_S = 2


def write(pixels: ndarray, path: Path) -> None:
    """Writes 8-bit pixels, gray (rows, columns) or RGB (rows, columns, 3), in the format that the path ends with."""
    from PIL import Image

    Image.fromarray(pixels).save(path)


def write_all(images: ndarray, labels: Sequence[int], classes: int, folder: Path, say: Say) -> None:
    """Writes `<folder>/<class>/<index>.png`; there is a folder for each class, and by name they keep their order."""
    spoken = time.monotonic()
    names = [f"{label:0{len(str(classes - 1))}}" for label in range(classes)]
    for name in names:
        (folder / name).mkdir(parents=True)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        write(image, folder / names[label] / f"{index:05}.png")
        if time.monotonic() - spoken > QUIET_S:
            spoken = time.monotonic()
            say(f"writing {folder.name}: {index + 1} of {len(labels)} images")
