"""The manifest of a dataset says what a whole one is: written last, and compared with what is there at every start.

That of a dataset we made is `manifest.json` in its folder; that of a user's folder, which we never write to, is a
note that lies elsewhere.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochmeter.config.secrets import redacted_tree
from epochmeter.datasets import checksum
from epochmeter.datasets.checksum import NAME, Sum
from epochmeter.shared.atomic_files import read_json, write_json

FORMAT = 2
"""Of what a manifest holds; 1 had a digest that needed the files in order. An older one's dataset is made anew."""
EACH = 20_000
"""Up to as many files, all sizes are added up at every start, and a user's files told by their names as well; of more
it is their number and a sample's sizes."""
SAMPLE = 1000
KEYS = {"format", "name", "version", "maker", "count", "splits", "files", "bytes", "digest", "digest_of"}
CONTENTS, NAMES = "contents", "names and sizes"
"""What a digest is of."""

REMEDY = "Move that folder away to have the dataset made again, or give another with dataset.root=."


class DamageError(RuntimeError):
    """A folder that is not as its manifest says."""


def made(folder: Path, dataset: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the files now in `folder`; `facts` is what their maker says of them."""
    total = checksum.summed(checksum.batches(str(folder)), checksum.contents(str(folder)))
    return _described(folder, dataset, facts, "make", total, CONTENTS)


def adopted(folder: Path, dataset: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a user's folder: by names and sizes, as reading a hundred gigabytes for a digest takes hours."""
    total = checksum.summed(checksum.batches(str(folder), images=True), checksum.sizes(str(folder)))
    return _described(folder, dataset, facts, "adopt", total, NAMES)


def told(maker: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What made a dataset, as its manifest tells it: without a secret that it was given to fetch the files."""
    return None if maker is None else redacted_tree(maker)


def write(path: Path, manifest: dict[str, Any]) -> None:
    write_json(path, manifest)


def fitting(
    folder: Path, dataset: dict[str, Any], note: Path | None = None, remedy: str = REMEDY
) -> dict[str, Any] | None:
    """The manifest of the whole dataset in `folder`; None where it is still to be made, or to be made anew.

    `note`: where the manifest of a user's folder lies. RuntimeError, with the `remedy`, for a folder that is not as its
    manifest says, or has none: that is the user's to clear.
    """
    try:
        if not folder.exists() or not any(folder.iterdir()):
            return None
        manifest = _read(note or folder / NAME, dataset, remedy)
    except (FileNotFoundError, NotADirectoryError) as error:
        if note:
            return None
        raise RuntimeError(f"{folder} is not of epochmeter's making: it has no {NAME}. {remedy}") from error
    except OSError as error:
        raise RuntimeError(unread(folder, error)) from error
    if manifest is None or (note and manifest["maker"] != told(dataset["adopt"])):
        return None
    try:
        wrong = _difference(folder, manifest, images=note is not None)
    except OSError as error:
        raise RuntimeError(unread(folder, error)) from error
    if wrong and note:
        return None  # it is the user's, who may add to it
    if wrong:
        raise DamageError(f"dataset folder {folder} {wrong}. {unreadable(folder)}{remedy}")
    return manifest


def _read(path: Path, dataset: dict[str, Any], remedy: str) -> dict[str, Any] | None:
    """A manifest; None where it is of an older format or of another version of the dataset."""
    try:
        manifest = read_json(path)
        written_in, version = manifest.get("format", 1), manifest["version"]
        if written_in < FORMAT and {"name", "digest"} <= manifest.keys():
            return None
        missing = KEYS - manifest.keys()
        if missing:
            raise KeyError(*sorted(missing))
        maker = manifest["maker"]["_target_"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeError(f"{path} is no manifest: {error!r}. {remedy}") from error
    if written_in > FORMAT:
        raise RuntimeError(f"{path} is of a newer epochmeter, in format {written_in}. {remedy}")
    if maker not in [(dataset.get(act) or {}).get("_target_") for act in ("make", "adopt")]:
        raise RuntimeError(f"{path.parent} holds another dataset, {manifest['name']}. {remedy}")
    return manifest if version == dataset.get("version", 1) else None


def is_ours(folder: Path) -> bool:
    """Whether there is a manifest of ours in a folder, whatever it says."""
    found = peeked(folder / NAME)
    return found is not None and {"name", "version", "digest"} <= found.keys()


def peeked(path: Path) -> dict[str, Any] | None:
    """What a manifest says, unchecked; None where there is none."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def unread(folder: Path, error: OSError) -> str:
    return (
        f"dataset folder {folder} cannot be read: {error}. Check its permissions and its storage, or "
        "give another folder with dataset.root=."
    )


def unreadable(folder: Path, images: bool = False) -> str:
    """Names the first image that cannot be read, such as one that was cut short; empty where there is none.

    Of very many files only the first are looked at: this is for an error's text, and takes its time.
    """
    from PIL import Image

    for path in sorted(itertools.islice(checksum.files(str(folder), images), EACH)):
        if not path.lower().endswith(checksum.IMAGES):
            continue
        try:
            with Image.open(folder / path) as image:
                image.load()
        except Exception as error:  # by format and fault, Pillow raises many kinds
            return f"{folder / path} cannot be read: {error}. "
    return ""


def _described(
    folder: Path, dataset: dict[str, Any], facts: dict[str, Any], act: str, total: Sum, digest_of: str
) -> dict[str, Any]:
    manifest = {
        "format": FORMAT,
        "name": dataset["name"],
        "version": dataset.get("version", 1),
        "maker": told(dataset[act]),
        "count": sum(facts["splits"].values()),
        **facts,
        "layout": dataset["layout"],
        "files": total.files,
        "bytes": total.bytes,
        "digest": total.hexdigest,
        "digest_of": digest_of,
    }
    if total.files > EACH:
        manifest["sample"] = _sample(folder, images=act == "adopt")
    return manifest


def _sample(folder: Path, images: bool) -> dict[str, int]:
    """Some files' sizes, evenly from among all, however many there turn out to be."""
    kept: list[str] = []
    stride = 1
    for number, path in enumerate(checksum.files(str(folder), images)):
        if number % stride == 0:
            kept.append(path)
            if len(kept) == 2 * SAMPLE:
                kept, stride = kept[::2], 2 * stride
    return {path: os.stat(folder / path).st_size for path in kept}


def _difference(folder: Path, manifest: dict[str, Any], images: bool) -> str:
    """What of a folder is not as its manifest says, found without reading its files; empty where nothing is.

    It misses bytes that changed in place, and of a dataset that we made a file that was moved or renamed. Of more than
    `EACH` files it also misses one that was cut short or moved outside the sample, and one that is gone where another
    has come.
    """
    top, told = str(folder), manifest["files"]
    if told <= EACH:
        found = checksum.summed(checksum.batches(top, images), checksum.sizes(top))
        if (found.files, found.bytes) != (told, manifest["bytes"]):
            return (
                f"holds {found.files} files of {found.bytes} bytes; its manifest tells of {told} files of "
                f"{manifest['bytes']} bytes"
            )
        if manifest["digest_of"] == NAMES and found.hexdigest != manifest["digest"]:
            return f"holds {told} files; some have other names, or sizes, than its manifest tells of"
        return ""
    count = sum(len(batch.names) for batch in checksum.batches(top, images))
    if count != told:
        return f"holds {count} files; its manifest tells of {told} files"
    for path, size in manifest["sample"].items():
        found_size = os.stat(folder / path).st_size if (folder / path).exists() else None
        if found_size != size:
            now = "is not there" if found_size is None else f"has {found_size} bytes"
            return f"is not what its manifest tells of: {folder / path}, of {size} bytes, {now}"
    return ""
