"""CIFAR-10 and CIFAR-100 from their archives: unpacked for torchvision, or one PNG per sample."""

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy

from epochmeter.datasets.archives import unpack
from epochmeter.datasets.fetch import fetch
from epochmeter.datasets.image_writer import write_images
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify

SHAPE = (3, 32, 32)
"""Shape of a row in a batch: channels first."""


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
        unpack(archive, Path(unpacked), say)
        batches = Path(unpacked) / variant.folder
        try:
            classes, splits = _read(variant, batches, folder if layout == "files" else None, say)
        except (pickle.UnpicklingError, KeyError, TypeError, ValueError, FileNotFoundError) as error:
            raise ValueError(
                f"{archive} is not the archive of {variant.name}'s Python version: {error}. Delete it to download it "
                f"again, or replace it by the one from {url}."
            ) from error
        if layout == "memory":
            batches.rename(folder / variant.folder)
    return {"splits": splits, "classes": classes, "channels": 3, "source": url}


def _read(variant: Variant, batches: Path, image_folder: Path | None, say: Notify) -> tuple[int, dict[str, int]]:
    """Check every pickle that torchvision will open, or write its images; return the numbers of classes and samples."""
    classes = len(load_pickle(batches / variant.meta)[variant.names])
    splits = {}
    for split, names in variant.batches.items():
        loaded = [load_pickle(batches / name) for name in names]
        images = numpy.concatenate([batch["data"] for batch in loaded])
        labels = [label for batch in loaded for label in batch[variant.labels]]
        if images.dtype != numpy.uint8 or images.shape != (len(labels), 3 * 32 * 32) or not labels:
            raise ValueError(f"{split} has {len(labels)} labels for {images.dtype} of the shape {images.shape}")
        if not all(isinstance(label, int) and 0 <= label < classes for label in labels):
            raise ValueError(f"{split} has labels that are not from 0 to {classes - 1}")
        if image_folder:
            channels_last = images.reshape(-1, *SHAPE).transpose(0, 2, 3, 1)
            write_images(numpy.ascontiguousarray(channels_last), labels, classes, image_folder / split, say)
        splits[split] = len(labels)
    return classes, splits


def load_pickle(path: Path) -> dict[str, Any]:
    """Load a pickle of a dictionary of plain values and arrays; UnpicklingError if it contains anything else.

    A pickle can call any function it names, and the archive may be anybody's: its checksum is configurable.
    """
    with open(path, "rb") as file:
        try:
            value = PlainUnpickler(file, encoding="latin1").load()
        except pickle.UnpicklingError:
            raise
        except Exception as error:  # random bytes are random pickle instructions, which may raise anything
            raise pickle.UnpicklingError(f"{path.name} is not a pickle: {error!r}") from error
    if not isinstance(value, dict):
        raise pickle.UnpicklingError(f"{path.name} does not contain a dictionary")
    return value


class PlainUnpickler(pickle.Unpickler):
    """Unpickler that only constructs arrays."""

    def find_class(self, module: str, name: str) -> object:
        allowed = {
            ("multiarray", "_reconstruct"): numpy.empty(0).__reduce__()[0],
            ("numpy", "ndarray"): numpy.ndarray,
            ("numpy", "dtype"): numpy.dtype,
            ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # bytes, stored as text in an old pickle
        }
        module = "multiarray" if module in ("numpy.core.multiarray", "numpy._core.multiarray") else module
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not part of an array")
        return allowed[module, name]
