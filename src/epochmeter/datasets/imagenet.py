"""ImageNet (ILSVRC 2012), created from the official archives."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import IO

from epochmeter.datasets.atomic_folder import check_free_space
from epochmeter.datasets.fetch import open_archive, unpack, verify
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import MB, Notify, Progress

META_FILE = "meta.mat"
GROUND_TRUTH_FILE = "ILSVRC2012_validation_ground_truth.txt"
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
    wnids = _validation_classes(paths["devkit"])
    splits = {
        "train": _unpack_train(paths["train"], folder / "train", say),
        "val": _unpack_val(paths["val"], wnids, folder / "val", say),
    }
    names = {path.name for path in (folder / "train").iterdir()}
    if names != set(wnids) or len(names) != classes:
        raise ValueError(
            f"dataset.classes={classes}, but {paths['train']} has {len(names)} classes, and {paths['devkit']} "
            f"{len(set(wnids))}. Use archives of the same year, and set dataset.classes= to their number of classes."
        )
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


def _validation_classes(devkit: Path) -> list[str]:
    """Return the WordNet ID of each validation image."""
    from scipy.io import loadmat

    contents: dict[str, bytes] = {}
    with open_archive(devkit) as tar:
        for member in tar:
            if (name := Path(member.name).name) in (META_FILE, GROUND_TRUTH_FILE):
                contents[name] = _read(tar, member).read()
    try:
        synsets = loadmat(io.BytesIO(contents[META_FILE]), squeeze_me=True)["synsets"]
        wnids = {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets.ravel()}
        return [wnids[int(line)] for line in contents[GROUND_TRUTH_FILE].split()]
    except Exception as error:  # a damaged MATLAB file may raise anything
        raise ValueError(f"{devkit} is not ILSVRC 2012's devkit: {error!r}. Use the official one.") from error


def _unpack_train(path: Path, folder: Path, say: Notify) -> int:
    """Unpack the tar of each class from the training archive; return the number of images."""
    progress = Progress(f"unpacking {path}", say, path.stat().st_size, MB)
    images = 0
    with open_archive(path) as tar:
        for member in tar:
            images += unpack(path / member.name, folder / Path(member.name).stem, _read(tar, member))
            progress.update(tar.offset)
    return images


def _unpack_val(path: Path, wnids: list[str], folder: Path, say: Notify) -> int:
    """Unpack the validation images, and move each into the folder of its class; return their number."""
    say(f"unpacking {path}")
    unpack(path, folder)
    images = sorted(folder.iterdir())  # their names have their numbers
    if len(images) != len(wnids):
        raise ValueError(f"{path} has {len(images)} images; the devkit lists {len(wnids)}. Use files of the same year.")
    for image, wnid in zip(images, wnids, strict=True):
        (folder / wnid).mkdir(exist_ok=True)
        image.rename(folder / wnid / image.name)
    return len(images)


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    if (file := tar.extractfile(member)) is None:
        raise tarfile.ReadError(f"{member.name} is not a file")
    return file
