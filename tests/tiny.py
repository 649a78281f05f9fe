"""Jobs that take seconds: datasets of a few samples in the original formats, and small images."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy
from omegaconf import DictConfig
from PIL import Image

from epochmeter.config.schema import Dataset
from epochmeter.datasets.mnist import FILES

TRAIN, VAL = 24, 8
ANY_MD5 = "null"
MNIST = {part: f"{name}.gz" for part, name in FILES.items()}
WNIDS = ("n01440764", "n01443537", "n01484850")


def idx(array: numpy.ndarray) -> bytes:
    """An array of bytes as MNIST's files have it: magic number, shape, samples."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(folder: Path) -> dict[str, str]:
    """Write MNIST's four files next to the dataset's folder; return the overrides to use them."""
    for split, count in (("train", TRAIN), ("val", VAL)):
        noise, labels = numpy.random.default_rng(count), numpy.arange(count, dtype=numpy.uint8) % 10
        for part, array in (("images", noise.integers(0, 256, (count, 28, 28), dtype=numpy.uint8)), ("labels", labels)):
            (folder / MNIST[f"{split}_{part}"]).write_bytes(gzip.compress(idx(array)))
    return {f"dataset.make.md5.{part}": ANY_MD5 for part in MNIST}


def cifar10(folder: Path) -> dict[str, str]:
    """Write CIFAR-10's archive, like `mnist`."""
    parts = {f"data_batch_{number}": _rows(TRAIN // 4, "labels", 10) for number in range(1, 6)}
    names = {"label_names": list("abcdefghij")}
    content = {**parts, "test_batch": _rows(VAL, "labels", 10), "batches.meta": names}
    return _cifar(folder / "cifar-10-python.tar.gz", "cifar-10-batches-py", content)


def cifar100(folder: Path) -> dict[str, str]:
    """Write CIFAR-100's archive, like `mnist`."""
    names = {"fine_label_names": [f"{number:02}" for number in range(100)]}
    content = {"train": _rows(TRAIN, "fine_labels", 100), "test": _rows(VAL, "fine_labels", 100), "meta": names}
    return _cifar(folder / "cifar-100-python.tar.gz", "cifar-100-python", content)


def imagenet(folder: Path) -> dict[str, object]:
    """Write an unpacked ImageNet of three classes; return the overrides to use it."""
    noise = numpy.random.default_rng(0)
    for split, count in (("train", 4), ("val", 1)):
        for wnid in WNIDS:
            (folder / "own" / split / wnid).mkdir(parents=True)
            for index in range(count):
                pixels = noise.integers(0, 256, (90, 80, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(folder / "own" / split / wnid / f"{wnid}_{index}.JPEG")
    return {"dataset.root": folder / "own", "dataset.classes": len(WNIDS)}


def iwslt15(folder: Path) -> dict[str, object]:
    """Write IWSLT'15's files; return the overrides to use them."""
    return _texts(folder, {"train": ("train.en", "train.vi"), "tst2012": ("tst2012.en", "tst2012.vi")})


def wmt16(folder: Path) -> dict[str, object]:
    """Write the files of WMT'16's archive, like `iwslt15`."""
    train, val = "train.tok.clean.bpe.32000", "newstest2013.tok.bpe.32000"
    return _texts(folder, {"train": (f"{train}.en", f"{train}.de"), "val": (f"{val}.en", f"{val}.de")})


def _texts(folder: Path, splits: dict[str, tuple[str, str]]) -> dict[str, object]:
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in splits.items():
        for name in names:
            (folder / name).write_text("a b@@ c .\nc a .\n" * (TRAIN if split == "train" else VAL))
    sizes = {"dataset.words": 20, "dataset.length": 8}
    return {"dataset.archives": folder, "dataset.make.sha256": "null", **sizes}


def _rows(count: int, labels: str, classes: int) -> dict[str, object]:
    """Samples in CIFAR's layout: rows of 1024 red, green and blue values each."""
    pixels = numpy.random.default_rng(count).integers(0, 256, (count, 3072), dtype=numpy.uint8)
    return {"data": pixels, labels: [number % classes for number in range(count)]}


def _cifar(archive: Path, top: str, content: dict[str, object]) -> dict[str, str]:
    # As numpy 1 writes it, like the original files; numpy 2 has another module name.
    pickled = {name: pickle.dumps(value, protocol=2) for name, value in content.items()}
    pack(archive, {f"{top}/{name}": data.replace(b"numpy._core", b"numpy.core") for name, data in pickled.items()})
    return {"dataset.make.md5": ANY_MD5}


def pack(archive: Path, contents: dict[str, bytes]) -> str:
    """Write files into a tar, gzipped if its name ends so, and return its MD5."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return hashlib.md5(archive.read_bytes()).hexdigest()


MADE = {"mnist": mnist, "cifar10": cifar10, "cifar10_gray": cifar10, "cifar100": cifar100, "imagenet": imagenet,
        "iwslt15": iwslt15, "wmt16": wmt16}  # fmt: skip
GENERATED = {
    "jpeg": {"dataset.count": 50, "dataset.pixels": 80, "dataset.file_bytes": "null"},
    "polynomial": {"dataset.count": 40},
    "pairs": {"dataset.count": 40},
}
LEAST_SIZE = {"inception_v3": 80}
"""Smallest image size in pixels, without auxiliary classifier; 32 for all other models."""


def typed(job: DictConfig, data: Path) -> dict[str, Any]:
    """Overrides that make a job take seconds, with few samples, small images and one epoch, and change no setting."""
    name = job.dataset.name
    overrides = {"epochs": 1, "batch": 12, "workers": 1, "cache": "keep", "drop_caches": "false"}
    overrides |= MADE[name](data) if name in MADE else GENERATED.get(name, {})
    if "size" in job.dataset:
        overrides["dataset.size"] = min(job.dataset.size, LEAST_SIZE.get(job.model.name, 32))
    if job.throughput.start is not None:
        overrides |= {"throughput.start": 0, "throughput.stop": 1}
    return {**overrides, "rehearse": "true"}


def make_config(**keys: object) -> Dataset:
    """The configuration of a dataset `tiny`, with these keys."""
    return Dataset.from_dict({"name": "tiny", "layout": "files", "open": None, **keys})
