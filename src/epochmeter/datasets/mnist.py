"""MNIST from its four IDX files: as torchvision lays them out, or as one PNG a sample."""

from __future__ import annotations

import gzip
import math
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmeter.datasets.atomic_folder import Say
from epochmeter.datasets.fetch import fetch
from epochmeter.datasets.image_writer import write_all

if TYPE_CHECKING:
    from numpy import ndarray

PARTS = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "val_images": "t10k-images-idx3-ubyte",
    "val_labels": "t10k-labels-idx1-ubyte",
}
"""What `md5` calls each file, and the publisher."""
BYTES = 8
"""IDX's number for unsigned bytes."""
CLASSES = 10
RAW = Path("MNIST", "raw")
"""Where torchvision looks for the files."""


def make(folder: Path, layout: str, url: str, md5: dict[str, str | None], say: Say) -> dict[str, Any]:
    """Reads the four archives that lie beside `folder`, fetched first if they do not.

    `layout` is `memory`, the files unpacked for torchvision, or `files`, `<split>/<class>/<index>.png`.
    """
    paths = {part: folder.parent / f"{name}.gz" for part, name in PARTS.items()}
    for part, path in paths.items():
        fetch(f"{url.rstrip('/')}/{path.name}", path, md5[part], say, key=f"md5.{part}")
    splits = {}
    for split in ("train", "val"):
        images = idx(paths[f"{split}_images"], dimensions=3)
        labels = idx(paths[f"{split}_labels"], dimensions=1).tolist()
        if len(images) != len(labels):
            raise ValueError(
                f"{paths[f'{split}_images']} holds {len(images)} images, and {paths[f'{split}_labels'].name} "
                f"{len(labels)} labels. Remove both, and place the two of one set."
            )
        if max(labels) >= CLASSES:
            raise ValueError(f"{paths[f'{split}_labels']} holds label {max(labels)}; MNIST's are 0 to {CLASSES - 1}.")
        if layout == "files":
            write_all(images, labels, CLASSES, folder / split, say)
        splits[split] = len(labels)
    if layout == "memory":
        (folder / RAW).mkdir(parents=True)
        for part, path in paths.items():
            with gzip.open(path) as packed, open(folder / RAW / PARTS[part], "wb") as file:
                shutil.copyfileobj(packed, file)
    return {"splits": splits, "classes": CLASSES, "channels": 1, "source": url}


def idx(path: Path, dimensions: int) -> ndarray:
    """The bytes of an IDX file, gzipped; ValueError for one of another kind, without a sample, or cut short."""
    import numpy

    try:
        with gzip.open(path) as file:
            content = file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is truncated, or not gzipped: {error}. {_REMEDY}") from error
    wanted = bytes([0, 0, BYTES, dimensions])
    if content[:4] != wanted:
        raise ValueError(
            f"{path} should begin as an IDX file of bytes in {dimensions} dimensions does, {wanted.hex()}, and begins "
            f"with {content[:4].hex() or 'nothing'}. {_REMEDY}"
        )
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) != start + math.prod(shape) or len(content) == start:
        raise ValueError(
            f"{path} should hold {' x '.join(map(str, shape))} bytes, more than none, and holds "
            f"{max(len(content) - start, 0)}. {_REMEDY}"
        )
    return numpy.frombuffer(content, numpy.uint8, offset=start).reshape(shape)


_REMEDY = "Remove it to have it fetched, or place MNIST's own."
