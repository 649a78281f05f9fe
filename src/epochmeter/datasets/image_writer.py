"""Write arrays of pixels as image files: one per sample, one folder per class."""

from collections.abc import Sequence
from pathlib import Path

from numpy import ndarray
from PIL import Image

from epochmeter.datasets.progress import Notify, Progress


def write_images(images: ndarray, labels: Sequence[int], classes: int, folder: Path, say: Notify) -> None:
    """Write `<folder>/<class>/<index>.png`, classes zero-padded; images are (count, rows, columns[, 3]), 8 bits."""
    progress = Progress(f"writing {folder.name}", say, len(labels), "images")
    names = [f"{label:0{len(str(classes - 1))}}" for label in range(classes)]
    for name in names:
        (folder / name).mkdir(parents=True)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(folder / names[label] / f"{index:05}.png")
        progress.update(index + 1)
