"""ImageNet (ILSVRC 2012) from its three archives, and a user's folder with a flat val/.

    dataset.archives=/downloads     ->  train/<wnid>/*.JPEG and val/<wnid>/*.JPEG in dataset.root
    dataset.devkit=/downloads/FILE  ->  the images of the user's flat val/ are moved into val/<wnid>/

The training archive contains one archive per class. Only the devkit has the classes of the validation images.
"""

import errno
import hashlib
import io
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from epochmeter.config.installation import ROOT
from epochmeter.datasets import image_folder
from epochmeter.datasets.atomic_folder import synced
from epochmeter.datasets.checksum import CHUNK_BYTES
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import MB, Notify, Progress
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.problem import InputError, input_error

FILES = {
    "devkit": "ILSVRC2012_devkit_t12.tar.gz",
    "val": "ILSVRC2012_img_val.tar",
    "train": "ILSVRC2012_img_train.tar",
}
"""Names of the publisher, by the keys of `md5`, the smallest first."""
DEVKIT_FOLDER = "ILSVRC2012_devkit_t12"
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
CLASS_ARCHIVE = re.compile(r"(n\d{8})\.tar")
TRAIN_IMAGE = re.compile(r"n\d{8}_\d+\.JPEG")
VAL_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
SYNC_INTERVAL_S = 30.0  # between two flushes to disk, which may take seconds
BLOCKS = 1.03
"""Space of the images on disk, in blocks of 4 KiB, as a multiple of the archives."""


def make(folder: Path, archives: str | None, md5: Mapping[str, str | None], say: Notify) -> Facts:
    """Unpack the archives in the folder `archives` into `folder`; classes that are there already are skipped."""
    paths = _find_archives(archives)
    _verify_once(folder, paths, md5, say)
    labels = read_labels(paths["devkit"])
    _check_space(folder, paths)
    counts = {"val": _unpack_val(folder, paths["val"], labels, say)}
    counts["train"] = _unpack_train(folder, paths["train"], labels, say)
    source = "image-net.org, ILSVRC 2012"
    return {"splits": counts, "classes": len(set(labels)), "channels": 3, "source": source}


def scan(folder: Path, say: Notify, held_out: int, devkit: str | None) -> Facts:
    """Count a user's images, and before that sort a flat val/ into classes, if the `devkit` is named for it."""
    if names := _flat_images(folder / "val"):
        if devkit is None:
            raise input_error(
                f"{folder / 'val'} is flat: {len(names)} images are not in folders of their classes",
                f"set `dataset.devkit=/downloads/{FILES['devkit']}`: by its labels, the images are moved into "
                f"{folder / 'val'}/<class>/ before training",
                key="dataset.devkit",
                file=str(folder / "val"),
            )
        sort_val(folder, names, read_labels(ROOT / Path(devkit).expanduser()), say)
    return image_folder.scan(folder, say, held_out)


def sort_val(folder: Path, names: list[str], labels: list[str], say: Notify) -> None:
    """Move images of `val/` into the folders of their classes; it can be interrupted and repeated."""
    val, train = folder / "val", folder / "train"
    classes = [_label(name, labels, val) for name in names]
    if missing := sorted(label for label in set(classes) if not (train / label).is_dir()):
        raise input_error(
            f"{train} has no folder of {len(missing)} classes of {val}, such as {missing[0]}",
            f"unpack the complete training images, or remove the other classes from {val}. Nothing was moved",
            file=str(train),
        )
    say(f"moving {len(names)} images of {val} into folders of their classes")
    for label in sorted(set(classes)):
        (val / label).mkdir(exist_ok=True)
    for name, label in zip(names, classes, strict=True):
        (val / name).rename(val / label / name)


def read_labels(devkit: Path) -> list[str]:
    """Return the class of each validation image, by its number; from the devkit's archive, or its unpacked folder."""
    from scipy.io import loadmat

    with _explain_damage(devkit, "devkit"):
        if devkit.is_dir():
            top = devkit / DEVKIT_FOLDER if (devkit / DEVKIT_FOLDER).is_dir() else devkit
            meta, truth = ((top / name).read_bytes() for name in (META, TRUTH))
        else:
            with tarfile.open(devkit) as archive:
                meta, truth = (_read_member(archive, f"{DEVKIT_FOLDER}/{name}") for name in (META, TRUTH))
        try:
            synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        except Exception as error:  # its readers raise many kinds
            raise ValueError(f"{META}: {error}") from error
        leaves = synsets[synsets["num_children"] == 0]
        classes = {int(number): str(wnid) for number, wnid in zip(leaves["ILSVRC2012_ID"], leaves["WNID"], strict=True)}
        return [classes[int(number)] for number in truth.split()]


def _find_archives(archives: str | None) -> dict[str, Path]:
    hint = f"set `dataset.archives=` to the folder of {', '.join(FILES.values())}, from image-net.org"
    if archives is None:
        raise input_error("the dataset must be unpacked from its archives", hint, key="dataset.archives")
    top = ROOT / Path(archives).expanduser()
    paths = {part: top / name for part, name in FILES.items()}
    if missing := [path.name for path in paths.values() if not path.is_file()]:
        raise input_error(f"{top} has no {', '.join(missing)}", hint, key="dataset.archives", file=str(top))
    return paths


def _verify_once(folder: Path, paths: Mapping[str, Path], md5: Mapping[str, str | None], say: Notify) -> None:
    """Verify the archives, unless an interrupted call has; empty the folder if that call had other archives."""
    state = folder.with_name(f"{folder.name}.json")
    stats = {part: path.stat() for part, path in paths.items()}
    archives = {part: [stat.st_size, stat.st_mtime_ns, md5[part]] for part, stat in stats.items()}
    try:
        is_verified = read_json(state) == {"verified": archives}
    except (OSError, ValueError):
        is_verified = False
    if is_verified:
        say(f"continuing in {folder} with the same archives")
        return
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    _check_space(folder, paths)  # before an hour of reading
    for part, path in paths.items():
        if md5[part] is not None:
            _verify(path, md5[part], f"md5.{part}", say)
    write_json(state, {"verified": archives})


def _verify(path: Path, expected: str | None, key: str, say: Notify) -> None:
    """Raise InputError if an archive does not have this MD5."""
    progress = Progress(f"verifying {path.name}", say, path.stat().st_size, MB)
    actual = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            actual.update(chunk)
            progress.update(file.tell())
    if actual.hexdigest() != expected:
        raise input_error(
            f"{path} has the MD5 {actual.hexdigest()} instead of {expected}: it is incomplete, damaged or another file",
            f"download it again, or for archives of your own set `dataset.make.{key}=null`",
            key=f"dataset.make.{key}",
            file=str(path),
        )


def _check_space(folder: Path, paths: Mapping[str, Path]) -> None:
    """Raise OSError if the disk has no room for the images that are not unpacked yet."""
    unpacked = sum(path.stat().st_size for path in folder.rglob("*.JPEG"))
    needed = int(BLOCKS * sum(path.stat().st_size for path in paths.values())) - unpacked
    if needed > (free := shutil.disk_usage(folder).free):
        raise OSError(errno.ENOSPC, f"{needed / 1e9:,.1f} GB needed to unpack, {free / 1e9:,.1f} GB free", str(folder))


def _unpack_val(folder: Path, path: Path, labels: list[str], say: Notify) -> int:
    """Unpack the validation images into val/, complete or not at all; return their number."""
    val = folder / "val"
    if val.is_dir():
        return len(labels)
    progress = Progress(f"unpacking {path.name}", say, len(labels), "images")
    unfinished = _empty_hidden(val)
    with _explain_damage(path, "val"), tarfile.open(path) as archive:
        for label in set(labels):
            (unfinished / label).mkdir()
        count = 0
        for count, (member, name) in enumerate(_images(archive, VAL_IMAGE, path, "val"), 1):
            _extract(archive, member, unfinished / _label(name, labels, path) / name)
            progress.update(count)
        _check_number(path, "val", count, len(labels), "images")
    _show([val])
    return count


def _unpack_train(folder: Path, path: Path, labels: list[str], say: Notify) -> int:
    """Unpack the classes that train/ does not have yet; return the number of all images."""
    train = folder / "train"
    train.mkdir(exist_ok=True)
    progress = Progress(f"unpacking {path.name}", say, path.stat().st_size, MB)
    classes: set[str] = set()
    complete: list[Path] = []  # classes that still have a hidden name
    shown_s = time.monotonic()
    try:
        with _explain_damage(path, "train"), tarfile.open(path) as archive:
            for member, name in _members(archive, CLASS_ARCHIVE, path, "train"):
                wnid = name.removesuffix(".tar")
                classes.add(wnid)
                if not (train / wnid).is_dir():
                    _unpack_class(archive, member, _empty_hidden(train / wnid), path)
                    complete.append(train / wnid)
                if time.monotonic() - shown_s > SYNC_INTERVAL_S:
                    _show(complete)
                    shown_s = time.monotonic()
                progress.update(archive.offset)
            missing = sorted(set(labels) - classes)
            _check_number(path, "train", len(classes), len(classes) + len(missing), "classes")
    finally:
        _show(complete)
    return sum(1 for _ in train.rglob("*.JPEG"))


def _unpack_class(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, path: Path) -> None:
    with tarfile.open(fileobj=archive.extractfile(member)) as images:
        for image, name in _images(images, TRAIN_IMAGE, path, "train"):
            _extract(images, image, folder / name)
    if not any(folder.iterdir()):
        raise tarfile.ReadError(f"{member.name} has no images")


def _images(
    archive: tarfile.TarFile, pattern: re.Pattern[str], path: Path, part: str
) -> Iterator[tuple[tarfile.TarInfo, str]]:
    names = set()
    for member, name in _members(archive, pattern, path, part):
        if name in names:
            raise tarfile.ReadError(f"it has {name} twice")
        names.add(name)
        yield member, name


def _members(
    archive: tarfile.TarFile, pattern: re.Pattern[str], path: Path, part: str
) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Yield the files of an archive and their names without folders; InputError if one is of another kind."""
    for member in archive:
        if member.isdir():
            continue
        name = PurePosixPath(member.name).name
        if not member.isfile() or not pattern.fullmatch(name):
            raise _other_archive(path, part, f"it contains `{member.name}`")
        yield member, name
        archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all of them: 1.3 million need a GB


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = archive.extractfile(member)
    content = source.read() if source else b""
    if len(content) < member.size:
        raise tarfile.ReadError(f"{member.name} is incomplete")
    path.write_bytes(content)


def _read_member(archive: tarfile.TarFile, name: str) -> bytes:
    source = archive.extractfile(name)
    if source is None:
        raise tarfile.ReadError(f"{name} is not a file")
    return source.read()


def _empty_hidden(folder: Path) -> Path:
    """Return a new folder to fill before `folder` gets its name, in place of what an interrupted call has left."""
    hidden = _hidden(folder)
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir()
    return hidden


def _show(folders: list[Path]) -> None:
    """Flush complete folders to disk, give them their names, and empty the list."""
    if folders:
        with synced(folders[0].parent):
            pass
        for folder in folders:
            _hidden(folder).rename(folder)
        folders.clear()


def _hidden(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}")


@contextmanager
def _explain_damage(path: Path, part: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        if not _is_of_archive(error, path):
            raise
        raise _other_archive(path, part, str(error)) from error
    except (tarfile.TarError, EOFError, zlib.error, LookupError, ValueError, TypeError) as error:
        raise _other_archive(path, part, str(error)) from error


def _is_of_archive(error: OSError, path: Path) -> bool:
    """Return whether an error is about the archive: gzip's errors have no number, others name their file."""
    return error.errno is None or Path(str(error.filename or "")).is_relative_to(path)


def _other_archive(path: Path, part: str, problem: str) -> InputError:
    reason = problem.partition(":\n")[0]  # tarfile lists the compressions that it has tried
    return input_error(
        f"{path} is not a complete {FILES[part]} of ILSVRC 2012: {reason}",
        "download it again from image-net.org, and do not pack it anew",
        file=str(path),
    )


def _check_number(path: Path, part: str, actual: int, expected: int, unit: str) -> None:
    if actual != expected:
        raise _other_archive(path, part, f"it has {actual} {unit}, its devkit lists {expected}")


def _label(name: str, labels: list[str], place: Path) -> str:
    """Return the class of a validation image by the number in its name, which counts from 1."""
    number = int(name.removesuffix(".JPEG").rpartition("_")[2])
    if not 1 <= number <= len(labels):
        raise input_error(
            f"{place} has an image number {number}, its devkit {len(labels)} labels",
            f"give the devkit of these images: {FILES['devkit']}",
            file=str(place),
        )
    return labels[number - 1]


def _flat_images(val: Path) -> list[str]:
    """Return the names of validation images that are in no folder of a class; links to images count."""
    if not val.is_dir():
        return []
    return sorted(path.name for path in val.iterdir() if VAL_IMAGE.fullmatch(path.name))
