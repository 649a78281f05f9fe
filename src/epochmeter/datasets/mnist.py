"""MNIST from its four IDX files: unpacked for torchvision, or one PNG per sample."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy

from epochmeter.datasets.fetch import fetch, write_images
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify
from epochmeter.shared.problem import input_error

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "val_images": "t10k-images-idx3-ubyte",
    "val_labels": "t10k-labels-idx1-ubyte",
}
"""File names of the publisher, by the keys of `md5`."""
CLASSES = 10
RAW_FOLDER = Path("MNIST", "raw")  # in which torchvision looks for the files


def make(folder: Path, layout: str, url: str, md5: dict[str, str | None], say: Notify) -> Facts:
    """Prepare MNIST from the archives next to `folder`: unpacked for torchvision (`memory`), or as PNG (`files`)."""
    arrays = {}
    for key, name in FILES.items():
        path = folder.parent / f"{name}.gz"
        fetch(f"{url.rstrip('/')}/{path.name}", path, md5[key], say, key=f"md5.{key}")
        arrays[key] = _read(path, folder / RAW_FOLDER / name if layout == "memory" else None)
    splits = {}
    for split in ("train", "val"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if layout == "files":
            write_images(images, labels.tolist(), CLASSES, folder / split, say)
        splits[split] = len(labels)
    return {"splits": splits, "classes": CLASSES, "channels": 1, "source": url}


def first_images(folder: Path, count: int) -> list[numpy.ndarray] | None:
    """Return the first training images of a prepared folder; None if it has no arrays of MNIST."""
    path = folder / RAW_FOLDER / FILES["train_images"]
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        _, _, height, width = struct.unpack(">4I", file.read(16))
        content = file.read(count * height * width)
    return list(numpy.frombuffer(content, numpy.uint8).reshape(-1, height, width))


def _read(path: Path, unpacked: Path | None) -> numpy.ndarray:
    """Return the array of an IDX file: the fourth byte is the number of dimensions, their sizes follow."""
    try:
        content = gzip.decompress(path.read_bytes())
        shape = struct.unpack_from(f">{content[3]}I", content, 4)
        array = numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (EOFError, zlib.error, gzip.BadGzipFile, LookupError, struct.error, ValueError) as error:
        hint = "delete it to download it again, or replace it"
        raise input_error(f"{path} is damaged: {error}", hint, file=str(path)) from error
    if unpacked:
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        unpacked.write_bytes(content)
    return array
