"""ImageNet, as ILSVRC 2012 gave it out: made from the official archives, or an unpacked tree that is adopted."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epochmeter.datasets import free_space
from epochmeter.datasets.archives import files, opened, put
from epochmeter.datasets.atomic_folder import Say
from epochmeter.datasets.checksum import IMAGES
from epochmeter.datasets.fetch import verify
from epochmeter.datasets.image_folder import look

META = "meta.mat"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
WNID = re.compile(r"n\d{8}")
NUMBER = re.compile(r"_(\d{8})\.[^.]+$")
"""Of a validation image, counted from 1: the line of the ground truth that tells its class."""
IN_BLOCKS = 1.03
"""What files take on a disk, beside their size in an archive: the last block of each is full by half."""
QUIET_S = 2


def make(
    folder: Path,
    archives: str | None,
    classes: int,
    train: str,
    val: str,
    devkit: str,
    md5: dict[str, str | None],
    say: Say,
) -> dict[str, Any]:
    """Writes `<split>/<wnid>/<image>`, straight from the archives in the folder `archives`; nothing is unpacked twice.

    `train` is a tar with a tar for each class, `val` one of images, that the `devkit` sorts into classes.
    """
    paths = _found(archives, {"devkit": devkit, "val": val, "train": train})
    size = sum(paths[part].stat().st_size for part in ("train", "val"))
    free_space.check(folder, size * IN_BLOCKS, f"the images of {archives}")
    for part, path in paths.items():
        verify(path, md5[part], "Place the official archive", say, f"md5.{part}")
    wnids, truth = _devkit(paths["devkit"])
    if len(wnids) != classes:
        raise ValueError(f"dataset.classes={classes}, and {paths['devkit']} tells of {len(wnids)}: give that number.")
    splits = {
        "train": _train(paths["train"], set(wnids.values()), folder / "train", say),
        "val": _val(paths["val"], wnids, truth, folder / "val", say),
    }
    return {"splits": splits, "classes": classes, "channels": 3, "source": f"ILSVRC 2012, archives in {archives}"}


def adopt(folder: Path, say: Say, classes: int) -> dict[str, Any]:
    """Looks at an unpacked tree, `<split>/<wnid>/<image>`; ValueError where validation is not sorted into classes."""
    val = folder / "val"
    if (folder / "train").is_dir() and val.is_dir() and not any(entry.is_dir() for entry in val.iterdir()):
        raise ValueError(
            f"{val} holds its images in no folder of a class. Sort them into {val}/<wnid>/, as the devkit's {TRUTH} "
            "tells; or have the dataset made from the archives, in another folder: "
            "dataset.root=/another dataset.make.archives=/folder/of/the/archives."
        )
    return look(folder, say, classes)


def _found(place: str | None, names: dict[str, str]) -> dict[str, Path]:
    how = "Ask for them at image-net.org, and give their folder: dataset.make.archives=/folder, with " + ", ".join(
        names.values()
    )
    if place is None:
        raise ValueError(f"ImageNet's archives cannot be fetched. {how}; or a tree of your own: dataset.root=/folder.")
    paths = {part: Path(place).expanduser() / name for part, name in names.items()}
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        raise ValueError(f"dataset.make.archives={place} lacks {', '.join(missing)}. {how}.")
    return paths


def _devkit(path: Path) -> tuple[dict[int, str], list[int]]:
    """The WordNet ID of each class by its number, and the class's number of each validation image."""
    from scipy.io import loadmat

    found: dict[str, bytes] = {}
    with opened(path) as tar:
        for name, file in files(tar, path):
            if name.rpartition("/")[2] in (META, TRUTH):
                found[name.rpartition("/")[2]] = file.read()
    try:
        synsets = loadmat(io.BytesIO(found[META]), squeeze_me=True)["synsets"]
        wnids = {
            int(each["ILSVRC2012_ID"]): str(each["WNID"]) for each in synsets.ravel() if not int(each["num_children"])
        }
        truth = [int(line) for line in found[TRUTH].split()]
        strangers = {name for name in wnids.values() if not WNID.fullmatch(name)} | {*map(str, {*truth} - wnids.keys())}
    except Exception as error:  # a damaged MATLAB file raises nearly anything
        raise ValueError(f"{path} is not ILSVRC 2012's devkit: {error!r}. Place the official one.") from error
    if strangers:
        raise ValueError(f"{path} is not ILSVRC 2012's devkit: it tells of class {min(strangers)}.")
    return wnids, truth


def _train(path: Path, wnids: set[str], folder: Path, say: Say) -> int:
    """Unpacks the tar of each class out of the tar of them all; the number of images."""
    tell = _progress(path, say)
    seen: set[str] = set()
    images = 0
    with opened(path) as tar:
        for name, file in files(tar, path):
            inner = path / name
            wnid = inner.stem
            if wnid not in wnids or wnid in seen:
                raise ValueError(f"{path} holds {name}, which is no class of the devkit's, or is there twice.")
            seen.add(wnid)
            before = images
            with opened(inner, file) as of_class:
                for image, contents in files(of_class, inner):
                    put(contents, folder / wnid / _image(inner, image))
                    images += 1
                    tell(tar.offset, f"{len(seen)} of {len(wnids)} classes")
            if images == before:
                raise ValueError(f"{inner} holds no image. Place the official archive.")
    if seen != wnids:
        raise ValueError(f"{path} lacks classes of the devkit's: {', '.join(sorted(wnids - seen)[:5])}.")
    return images


def _val(path: Path, wnids: dict[int, str], truth: list[int], folder: Path, say: Say) -> int:
    """Unpacks the images, each into the folder of its class; their number."""
    tell = _progress(path, say)
    for wnid in wnids.values():
        (folder / wnid).mkdir(parents=True, exist_ok=True)
    seen: set[int] = set()
    with opened(path) as tar:
        for name, file in files(tar, path):
            image = _image(path, name)
            match = NUMBER.search(image)
            number = int(match[1]) if match else 0
            if not 1 <= number <= len(truth) or number in seen:
                raise ValueError(f"{path} holds {name}; the devkit tells of images 1 to {len(truth)}, each once.")
            seen.add(number)
            put(file, folder / wnids[truth[number - 1]] / image)
            tell(tar.offset, f"{len(seen)} of {len(truth)} images")
    if len(seen) != len(truth):
        raise ValueError(f"{path} holds {len(seen)} images; the devkit tells of {len(truth)}. Place those of one year.")
    return len(seen)


def _image(archive: Path, name: str) -> str:
    """A member's name without folders; ValueError if it is no image."""
    last = name.rpartition("/")[2]
    if not last.lower().endswith(IMAGES):
        raise ValueError(f"{archive} holds {name}, which is no image. Place the official archive.")
    return last


def _progress(path: Path, say: Say) -> Callable[[int, str], None]:
    """Says how much of an archive is unpacked, every few seconds at most; it is told the bytes."""
    say(f"unpacking {path}")
    total = max(path.stat().st_size, 1)
    began = spoken = time.monotonic()

    def tell(done: int, what: str) -> None:
        nonlocal spoken
        now = time.monotonic()
        if now - spoken < QUIET_S:
            return
        spoken = now
        left_s = (now - began) * (total / max(done, 1) - 1)
        say(
            f"unpacking {path}: {what}, {done / 1e6:.0f} of {total / 1e6:.0f} MB, "
            f"{done / 1e6 / (now - began):.1f} MB/s, {left_s:.0f} s left"
        )

    return tell
