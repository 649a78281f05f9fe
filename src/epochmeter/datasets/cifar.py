"""CIFAR-10 and CIFAR-100 from their archives: unpacked for torchvision, or one PNG per sample."""

import gzip
import pickle
import tarfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy

from epochmeter.datasets.fetch import fetch, write_images
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify
from epochmeter.shared.problem import input_error

SHAPE = (-1, 3, 32, 32)  # of the rows of a batch: channels first
BATCHES = {"train": ("data_batch_*", "train"), "val": ("test_batch", "test")}
"""Files of CIFAR-10 and of CIFAR-100 by split."""
DAMAGE = (
    tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError,
    pickle.UnpicklingError, LookupError, TypeError, AttributeError, ValueError,
)  # fmt: skip


def make(folder: Path, layout: str, url: str, md5: str | None, say: Notify) -> Facts:
    """Prepare CIFAR from the archive next to `folder`: unpacked for torchvision (`memory`), or as PNG (`files`)."""
    archive = folder.parent / url.rpartition("/")[2]
    fetch(url, archive, md5, say)
    with TemporaryDirectory(dir=folder, prefix=".") as unpacked:
        say(f"unpacking {archive}")
        try:
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # default from Python 3.14 on
                tar.extractall(unpacked)  # noqa: S202 (the filter is set)
            (batches,) = Path(unpacked).iterdir()
            classes, splits = _read(batches, folder if layout == "files" else None, say)
        except DAMAGE as error:
            raise input_error(
                f"{archive} is not the archive of CIFAR's Python version: {error}",
                f"delete it to download it again, or replace it by the one from {url}",
                file=str(archive),
            ) from error
        if layout == "memory":
            batches.rename(folder / batches.name)
    return {"splits": splits, "classes": classes, "channels": 3, "source": url}


def _read(batches: Path, image_folder: Path | None, say: Notify) -> tuple[int, dict[str, int]]:
    """Return the numbers of classes and samples, and write the images if there is a folder for them."""
    (meta,) = map(_load, batches.glob("*meta"))
    classes = len(meta.get("label_names") or meta["fine_label_names"])
    splits = {}
    for split, patterns in BATCHES.items():
        loaded = [_load(path) for pattern in patterns for path in sorted(batches.glob(pattern))]
        images = numpy.concatenate([batch["data"] for batch in loaded]).reshape(SHAPE)
        labels = [label for batch in loaded for label in batch.get("labels") or batch["fine_labels"]]
        if image_folder:
            channels_last = numpy.ascontiguousarray(images.transpose(0, 2, 3, 1))
            write_images(channels_last, labels, classes, image_folder / split, say)
        splits[split] = len(labels)
    return classes, splits


def first_images(folder: Path, count: int) -> list[numpy.ndarray] | None:
    """Return the first training images of a prepared folder, channels last; None if it has no batches of CIFAR."""
    paths = sorted(path for pattern in BATCHES["train"] for path in folder.glob(f"*/{pattern}") if path.is_file())
    if not paths:
        return None
    images = _load(paths[0])["data"].reshape(SHAPE)[:count]
    return [numpy.ascontiguousarray(image.transpose(1, 2, 0)) for image in images]


def _load(path: Path) -> Any:
    with open(path, "rb") as file:
        return ArrayUnpickler(file, encoding="latin1").load()


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler that constructs plain values and arrays only: a pickle can call any function that it names."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {"_codecs": ("encode",), "numpy": ("_reconstruct", "ndarray", "dtype")}
        if name not in allowed.get(module.partition(".")[0], ()):
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not part of an array")
        return super().find_class(module, name)
