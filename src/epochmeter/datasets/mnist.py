"""MNIST from its four IDX files: unpacked for torchvision, or one PNG per sample."""

import gzip
import shutil
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
BYTES = 8
"""IDX type code of unsigned bytes."""
CLASSES = 10
RAW_FOLDER = Path("MNIST", "raw")
"""Folder in which torchvision looks for the files."""


def make(folder: Path, layout: str, url: str, md5: dict[str, str | None], say: Notify) -> Facts:
    """Prepare MNIST from the four archives next to `folder`, downloaded from the folder `url` if missing.

    The layout `memory` unpacks the files for torchvision; `files` writes `<split>/<class>/<index>.png`.
    """
    paths = {part: folder.parent / f"{name}.gz" for part, name in FILES.items()}
    for part, path in paths.items():
        fetch(f"{url.rstrip('/')}/{path.name}", path, md5[part], say, key=f"md5.{part}")
    splits = {}
    for split in ("train", "val"):
        images = read_idx(paths[f"{split}_images"], dimensions=3)
        labels = read_idx(paths[f"{split}_labels"], dimensions=1).tolist()
        if len(images) != len(labels):
            raise ValueError(
                f"{paths[f'{split}_images']} has {len(images)} images, but {paths[f'{split}_labels'].name} has "
                f"{len(labels)} labels. Delete both to download them again, or replace them by a matching pair."
            )
        if max(labels) >= CLASSES:
            raise ValueError(f"{paths[f'{split}_labels']} has label {max(labels)}; MNIST's are 0 to {CLASSES - 1}.")
        if layout == "files":
            write_images(images, labels, CLASSES, folder / split, say)
        splits[split] = len(labels)
    if layout == "memory":
        (folder / RAW_FOLDER).mkdir(parents=True)
        for part, path in paths.items():
            with gzip.open(path) as packed, open(folder / RAW_FOLDER / FILES[part], "wb") as file:
                shutil.copyfileobj(packed, file)
    return {"splits": splits, "classes": CLASSES, "channels": 1, "source": url}


def read_idx(path: Path, dimensions: int) -> numpy.ndarray:
    """Return the array of a gzipped IDX file of bytes; ValueError if it is of another type, empty or truncated."""
    try:
        with gzip.open(path) as file:
            content = file.read()
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
        if magic != BYTES << 8 | dimensions or 0 in shape:
            raise ValueError(f"it begins with {content[:4].hex()}, and has the shape {shape}")
        return numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (EOFError, zlib.error, gzip.BadGzipFile, struct.error, ValueError) as error:
        raise ValueError(
            f"{path} is not an IDX file of bytes in {dimensions} dimensions: {error}. Delete it to download it again, "
            "or replace it by MNIST's file."
        ) from error
