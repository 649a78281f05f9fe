"""ImageNet (ILSVRC 2012), created from the official archives."""

from __future__ import annotations

import io
import re
from pathlib import Path

from epochmeter.datasets.archives import iter_files, open_archive, write_file
from epochmeter.datasets.disk_space import check_free_space
from epochmeter.datasets.fetch import verify
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import MB, Notify, Progress
from epochmeter.shared.units import IMAGE_SUFFIXES

META_FILE = "meta.mat"
GROUND_TRUTH_FILE = "ILSVRC2012_validation_ground_truth.txt"
WNID = re.compile(r"n\d{8}")
IMAGE_NUMBER = re.compile(r"_(\d{8})\.[^.]+$")
"""Number of a validation image, from 1: the line of its class in the ground truth."""
BLOCK_OVERHEAD = 1.03
"""Disk usage relative to the archive's size: on average, the last block of each file is half empty."""


def make(
    folder: Path,
    archives: str | None,
    classes: int,
    train: str,
    val: str,
    devkit: str,
    md5: dict[str, str | None],
    say: Notify,
) -> Facts:
    """Write `<split>/<wnid>/<image>` directly from the archives, without intermediate files.

    Args:
        archives: Folder of the archives.
        classes: Expected number of classes.
        train: File name of the training archive, a tar with one tar per class.
        val: File name of the validation archive, a tar of images.
        devkit: File name of the devkit, which has the classes of the validation images.
        md5: Checksum per archive; None skips the check.
    """
    paths = _find_archives(archives, {"devkit": devkit, "val": val, "train": train})
    size = sum(paths[part].stat().st_size for part in ("train", "val"))
    check_free_space(folder.parent, size * BLOCK_OVERHEAD, f"dataset imagenet from {archives}")
    for part, path in paths.items():
        verify(path, md5[part], "Use the official archive", say, f"md5.{part}")
    wnids, truth = _devkit(paths["devkit"])
    if len(wnids) != classes:
        raise ValueError(f"dataset.classes={classes}, but {paths['devkit']} has {len(wnids)}: give that number.")
    splits = {
        "train": _train(paths["train"], set(wnids.values()), folder / "train", say),
        "val": _val(paths["val"], wnids, truth, folder / "val", say),
    }
    return {"splits": splits, "classes": classes, "channels": 3, "source": f"ILSVRC 2012, archives in {archives}"}


def _find_archives(archives: str | None, names: dict[str, str]) -> dict[str, Path]:
    remedy = "Request them at image-net.org, and set dataset.make.archives=/folder to their folder, with " + ", ".join(
        names.values()
    )
    if archives is None:
        raise ValueError(
            f"ImageNet's archives cannot be downloaded. {remedy}; or set dataset.root= to your own folder."
        )
    paths = {part: Path(archives).expanduser() / name for part, name in names.items()}
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        raise ValueError(f"dataset.make.archives={archives} lacks {', '.join(missing)}. {remedy}.")
    return paths


def _devkit(path: Path) -> tuple[dict[int, str], list[int]]:
    """Return the WordNet ID per class number, and the class number of each validation image."""
    from scipy.io import loadmat

    contents: dict[str, bytes] = {}
    with open_archive(path) as tar:
        for name, file in iter_files(tar, path):
            if name.rpartition("/")[2] in (META_FILE, GROUND_TRUTH_FILE):
                contents[name.rpartition("/")[2]] = file.read()
    try:
        synsets = loadmat(io.BytesIO(contents[META_FILE]), squeeze_me=True)["synsets"]
        wnids = {
            int(synset["ILSVRC2012_ID"]): str(synset["WNID"])
            for synset in synsets.ravel()
            if not int(synset["num_children"])
        }
        truth = [int(line) for line in contents[GROUND_TRUTH_FILE].split()]
        unknown = {name for name in wnids.values() if not WNID.fullmatch(name)} | {*map(str, {*truth} - wnids.keys())}
    except Exception as error:  # a damaged MATLAB file may raise anything
        raise ValueError(f"{path} is not ILSVRC 2012's devkit: {error!r}. Use the official one.") from error
    if unknown:
        raise ValueError(f"{path} is not ILSVRC 2012's devkit: it has class {min(unknown)}.")
    return wnids, truth


def _train(path: Path, wnids: set[str], folder: Path, say: Notify) -> int:
    """Unpack the tar of each class from the training archive; return the number of images."""
    progress = Progress(f"unpacking {path}", say, path.stat().st_size, MB)
    seen: set[str] = set()
    images = 0
    with open_archive(path) as tar:
        for name, file in iter_files(tar, path):
            inner = path / name
            wnid = inner.stem
            if wnid not in wnids or wnid in seen:
                raise ValueError(f"{path} contains {name}, which is a duplicate or not a class of the devkit.")
            seen.add(wnid)
            before = images
            with open_archive(inner, file) as of_class:
                for image, contents in iter_files(of_class, inner):
                    write_file(contents, folder / wnid / _image_name(inner, image))
                    images += 1
                    progress.update(tar.offset)
            if images == before:
                raise ValueError(f"{inner} has no image. Use the official archive.")
    if seen != wnids:
        raise ValueError(f"{path} lacks classes of the devkit: {', '.join(sorted(wnids - seen)[:5])}.")
    return images


def _val(path: Path, wnids: dict[int, str], truth: list[int], folder: Path, say: Notify) -> int:
    """Unpack the validation images, each into the folder of its class; return their number."""
    progress = Progress(f"unpacking {path}", say, path.stat().st_size, MB)
    for wnid in wnids.values():
        (folder / wnid).mkdir(parents=True, exist_ok=True)
    seen: set[int] = set()
    with open_archive(path) as tar:
        for name, file in iter_files(tar, path):
            image = _image_name(path, name)
            match = IMAGE_NUMBER.search(image)
            number = int(match[1]) if match else 0
            if not 1 <= number <= len(truth) or number in seen:
                raise ValueError(f"{path} contains {name}; the devkit lists images 1 to {len(truth)}, each once.")
            seen.add(number)
            write_file(file, folder / wnids[truth[number - 1]] / image)
            progress.update(tar.offset)
    if len(seen) != len(truth):
        raise ValueError(f"{path} has {len(seen)} images; the devkit lists {len(truth)}. Use files of the same year.")
    return len(seen)


def _image_name(archive: Path, name: str) -> str:
    """Return a member's name without folders; ValueError if it is not an image."""
    last = name.rpartition("/")[2]
    if not last.lower().endswith(IMAGE_SUFFIXES):
        raise ValueError(f"{archive} contains {name}, which is not an image. Use the official archive.")
    return last
