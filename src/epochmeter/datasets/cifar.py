"""CIFAR-10 and CIFAR-100 from their archives: unpacked for torchvision, or one PNG per sample."""

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy

from epochmeter.datasets.fetch import fetch, unpack
from epochmeter.datasets.image_writer import write_images
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify

SHAPE = (-1, 3, 32, 32)
"""Shape of the rows of a batch: channels first."""


class Variant(NamedTuple):
    """Layout of an archive: its folder, the batches per split, and the keys of names and labels."""

    name: str
    folder: str
    batches: dict[str, tuple[str, ...]]
    meta: str
    names: str
    labels: str


BATCHES10 = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "val": ("test_batch",)}
BATCHES100: dict[str, tuple[str, ...]] = {"train": ("train",), "val": ("test",)}
CIFAR10 = Variant("CIFAR-10", "cifar-10-batches-py", BATCHES10, "batches.meta", "label_names", "labels")
CIFAR100 = Variant("CIFAR-100", "cifar-100-python", BATCHES100, "meta", "fine_label_names", "fine_labels")


def cifar10(folder: Path, layout: str, url: str, md5: str | None, say: Notify) -> Facts:
    """Prepare CIFAR-10 from the archive next to `folder`, downloaded if missing.

    The layout `memory` unpacks the files for torchvision; `files` writes `<split>/<class>/<index>.png`.
    """
    return _make(CIFAR10, folder, layout, url, md5, say)


def cifar100(folder: Path, layout: str, url: str, md5: str | None, say: Notify) -> Facts:
    """Prepare CIFAR-100 with its 100 fine labels, like `cifar10`."""
    return _make(CIFAR100, folder, layout, url, md5, say)


def _make(variant: Variant, folder: Path, layout: str, url: str, md5: str | None, say: Notify) -> Facts:
    archive = folder.parent / url.rpartition("/")[2]
    fetch(url, archive, md5, say)
    with TemporaryDirectory(dir=folder, prefix=".") as unpacked:
        say(f"unpacking {archive}")
        unpack(archive, Path(unpacked))
        batches = Path(unpacked) / variant.folder
        splits = {}
        try:
            classes = len(_load(batches / variant.meta)[variant.names])
            for split, names in variant.batches.items():
                loaded = [_load(batches / name) for name in names]
                images = numpy.concatenate([batch["data"] for batch in loaded]).reshape(SHAPE)
                labels = [label for batch in loaded for label in batch[variant.labels]]
                splits[split] = len(labels)
                if layout == "files":
                    channels_last = numpy.ascontiguousarray(images.transpose(0, 2, 3, 1))
                    write_images(channels_last, labels, classes, folder / split, say)
        except (pickle.UnpicklingError, LookupError, TypeError, ValueError, OSError) as error:
            raise ValueError(
                f"{archive} is not the archive of {variant.name}'s Python version: {error}. Delete it to download it "
                f"again, or replace it by the one from {url}."
            ) from error
        if layout == "memory":
            batches.rename(folder / variant.folder)
    return {"splits": splits, "classes": classes, "channels": 3, "source": url}


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
