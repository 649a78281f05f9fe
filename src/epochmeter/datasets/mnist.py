"""MNIST from its four IDX files: unpacked for torchvision, or one PNG per sample."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy

from epochmeter.datasets.fetch import fetch
from epochmeter.datasets.image_writer import write_images
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "val_images": "t10k-images-idx3-ubyte",
    "val_labels": "t10k-labels-idx1-ubyte",
}
"""File names of the publisher, by the keys of `md5`."""
CLASSES = 10
RAW_FOLDER = Path("MNIST", "raw")
"""Folder in which torchvision looks for the files."""


def make(folder: Path, layout: str, url: str, md5: dict[str, str | None], say: Notify) -> Facts:
    """Prepare MNIST from the archives next to `folder`: unpacked for torchvision (`memory`), or as PNG (`files`)."""
    contents = {}
    for part, name in FILES.items():
        path = folder.parent / f"{name}.gz"
        fetch(f"{url.rstrip('/')}/{path.name}", path, md5[part], say, key=f"md5.{part}")
        contents[part] = _unpack(path)
    splits = {}
    for split in ("train", "val"):
        images, labels = (_read_idx(contents[f"{split}_{part}"]) for part in ("images", "labels"))
        if layout == "files":
            write_images(images, labels.tolist(), CLASSES, folder / split, say)
        splits[split] = len(labels)
    if layout == "memory":
        (folder / RAW_FOLDER).mkdir(parents=True)
        for part, content in contents.items():
            (folder / RAW_FOLDER / FILES[part]).write_bytes(content)
    return {"splits": splits, "classes": CLASSES, "channels": 1, "source": url}


def _unpack(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} is not a complete gzip file: {error}. Delete it to download it again, or replace it."
        ) from error


def _read_idx(content: bytes) -> numpy.ndarray:
    """Return the array of an IDX file of bytes: the fourth byte is the number of dimensions, their sizes follow."""
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)
