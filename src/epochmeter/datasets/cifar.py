"""CIFAR-10 and CIFAR-100 from their archives: as torchvision lays them out, or as one PNG a sample."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from epochmeter.datasets.archives import unpack
from epochmeter.datasets.atomic_folder import Say
from epochmeter.datasets.fetch import fetch
from epochmeter.datasets.image_writer import write_all

SHAPE = (3, 32, 32)
"""A row of a batch: all reds, then greens, then blues."""


class Kind(NamedTuple):
    """How one of the two is laid out: its folder, the batches of each split, and what they call labels."""

    name: str
    folder: str
    batches: dict[str, tuple[str, ...]]
    meta: str
    names: str
    labels: str


TEN = Kind(
    name="CIFAR-10",
    folder="cifar-10-batches-py",
    batches={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "val": ("test_batch",)},
    meta="batches.meta",
    names="label_names",
    labels="labels",
)
HUNDRED = Kind(
    name="CIFAR-100",
    folder="cifar-100-python",
    batches={"train": ("train",), "val": ("test",)},
    meta="meta",
    names="fine_label_names",
    labels="fine_labels",
)


def cifar10(folder: Path, layout: str, url: str, md5: str | None, say: Say) -> dict[str, Any]:
    """Reads the archive that lies beside `folder`, fetched first if it does not.

    `layout` is `memory`, its files unpacked for torchvision, or `files`, `<split>/<class>/<index>.png`.
    """
    return _make(TEN, folder, layout, url, md5, say)


def cifar100(folder: Path, layout: str, url: str, md5: str | None, say: Say) -> dict[str, Any]:
    """The same of CIFAR-100, by its hundred fine labels."""
    return _make(HUNDRED, folder, layout, url, md5, say)


def _make(kind: Kind, folder: Path, layout: str, url: str, md5: str | None, say: Say) -> dict[str, Any]:
    archive = folder.parent / url.rpartition("/")[2]
    fetch(url, archive, md5, say)
    with TemporaryDirectory(dir=folder, prefix=".") as unpacked:
        unpack(archive, Path(unpacked), say)
        try:
            facts = _read(kind, Path(unpacked) / kind.folder, folder, layout, say)
        except (pickle.UnpicklingError, KeyError, TypeError, ValueError, FileNotFoundError) as error:
            raise ValueError(
                f"{archive} is not the archive of {kind.name}'s Python version: {error}. Remove it, and place the one "
                f"from {url}."
            ) from error
        if layout == "memory":
            (Path(unpacked) / kind.folder).rename(folder / kind.folder)
    return {**facts, "channels": 3, "source": url}


def _read(kind: Kind, batches: Path, folder: Path, layout: str, say: Say) -> dict[str, Any]:
    """Reads every pickle that is going to be opened, so that torchvision's own reader finds nothing else in them."""
    import numpy

    classes = len(load(batches / kind.meta)[kind.names])
    splits = {}
    for split, names in kind.batches.items():
        found = [load(batches / name) for name in names]
        images = numpy.concatenate([batch["data"] for batch in found])
        labels = [label for batch in found for label in batch[kind.labels]]
        if images.dtype != numpy.uint8 or images.shape != (len(labels), 3 * 32 * 32) or not labels:
            raise ValueError(f"{split} has {len(labels)} labels for {images.dtype} of the shape {images.shape}")
        if not all(isinstance(label, int) and 0 <= label < classes for label in labels):
            raise ValueError(f"{split} has labels that are not from 0 to {classes - 1}")
        if layout == "files":
            colors_last = images.reshape(-1, *SHAPE).transpose(0, 2, 3, 1)
            write_all(numpy.ascontiguousarray(colors_last), labels, classes, folder / split, say)
        splits[split] = len(labels)
    return {"splits": splits, "classes": classes}


def load(path: Path) -> dict[str, Any]:
    """A pickle of plain values and arrays; UnpicklingError for one that asks for anything else.

    A pickle calls what it names, and an archive may be somebody's own: its checksum is configured.
    """
    with open(path, "rb") as file:
        try:
            found = Plain(file, encoding="latin1").load()
        except pickle.UnpicklingError:
            raise
        except Exception as error:  # what is no pickle is a program of random instructions, and may raise anything
            raise pickle.UnpicklingError(f"{path.name} is no pickle: {error!r}") from error
    if not isinstance(found, dict):
        raise pickle.UnpicklingError(f"{path.name} holds no dictionary")
    return found


class Plain(pickle.Unpickler):
    """Knows what an array is made of, and nothing more."""

    def find_class(self, module: str, name: str) -> Any:
        import numpy

        known = {
            ("multiarray", "_reconstruct"): numpy.empty(0).__reduce__()[0],
            ("numpy", "ndarray"): numpy.ndarray,
            ("numpy", "dtype"): numpy.dtype,
            ("_codecs", "encode"): _encode,
        }
        module = "multiarray" if module in ("numpy.core.multiarray", "numpy._core.multiarray") else module
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and holds more than arrays")
        return known[module, name]


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in an old pickle."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode(encoding)
