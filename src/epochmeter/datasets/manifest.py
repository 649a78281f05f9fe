"""The manifest of a dataset describes its complete state: written last, and compared with the folder at every start.

A dataset created by epochmeter has it as `manifest.json` in its folder. A user's folder is never written to, so its
manifest is a file elsewhere.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochmeter.config.secrets import redact_tree
from epochmeter.datasets import checksum
from epochmeter.datasets.checksum import MANIFEST_NAME, Checksum
from epochmeter.shared.atomic_files import read_json, write_json

FORMAT = 2
"""Version of the manifest's content; 1 had a checksum that depends on the order.

Datasets of older formats are created again.
"""
CHECK_ALL_UP_TO = 20_000
"""Most files whose sizes are all checked at every start, for a user's folder also their names.

With more, their number and the sizes of a sample are checked.
"""
SAMPLE_COUNT = 1000
KEYS = {"format", "name", "version", "maker", "count", "splits", "files", "bytes", "digest", "digest_of"}
CONTENTS, NAMES_AND_SIZES = "contents", "names and sizes"
"""What a checksum covers."""

REMEDY = "Move that folder away to prepare the dataset again, or set dataset.root= to another folder."


class DamageError(RuntimeError):
    """A folder does not match its manifest."""


def describe_made(folder: Path, dataset: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of the files now in `folder`; `facts` is the maker's return value."""
    total = checksum.sum_batches(checksum.iter_batches(str(folder)), checksum.hash_contents(str(folder)))
    return _build(folder, dataset, facts, "make", total, CONTENTS)


def describe_user_folder(folder: Path, dataset: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a user's folder, by names and sizes: hashing hundreds of gigabytes takes hours."""
    total = checksum.sum_batches(
        checksum.iter_batches(str(folder), images=True), checksum.hash_names_and_sizes(str(folder))
    )
    return _build(folder, dataset, facts, "adopt", total, NAMES_AND_SIZES)


def without_secrets(maker: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a maker's specification as stored in the manifest: without secrets for downloads."""
    return None if maker is None else redact_tree(maker)


def write(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest."""
    write_json(path, manifest)


def load_valid(
    folder: Path, dataset: dict[str, Any], note: Path | None = None, remedy: str = REMEDY
) -> dict[str, Any] | None:
    """Return the manifest of the complete dataset in `folder`; None if it must be created, or created again.

    Args:
        folder: The dataset's folder.
        dataset: The dataset's configuration.
        note: Path of the manifest of a user's folder.
        remedy: Remedy in error messages.

    Raises:
        RuntimeError: The folder has no manifest or does not match it; the user has to clear it.
    """
    try:
        if not folder.exists() or not any(folder.iterdir()):
            return None
        manifest = _read(note or folder / MANIFEST_NAME, dataset, remedy)
    except (FileNotFoundError, NotADirectoryError) as error:
        if note:
            return None
        raise RuntimeError(f"{folder} was not created by epochmeter: it has no {MANIFEST_NAME}. {remedy}") from error
    except OSError as error:
        raise RuntimeError(read_error(folder, error)) from error
    if manifest is None or (note and manifest["maker"] != without_secrets(dataset["adopt"])):
        return None
    try:
        difference = _difference(folder, manifest, images=note is not None)
    except OSError as error:
        raise RuntimeError(read_error(folder, error)) from error
    if difference and note:
        return None  # users may change their own folders
    if difference:
        raise DamageError(f"dataset folder {folder} {difference}. {first_unreadable(folder)}{remedy}")
    return manifest


def _read(path: Path, dataset: dict[str, Any], remedy: str) -> dict[str, Any] | None:
    """Read a manifest; None if its format or the dataset's version is older."""
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
        raise RuntimeError(f"{path} is not a valid manifest: {error!r}. {remedy}") from error
    if written_in > FORMAT:
        raise RuntimeError(f"{path} was written by a newer epochmeter, in format {written_in}. {remedy}")
    if maker not in [(dataset.get(act) or {}).get("_target_") for act in ("make", "adopt")]:
        raise RuntimeError(f"{path.parent} contains another dataset, {manifest['name']}. {remedy}")
    return manifest if version == dataset.get("version", 1) else None


def has_manifest(folder: Path) -> bool:
    """Whether a folder has a manifest written by epochmeter, whatever its content."""
    content = read_unchecked(folder / MANIFEST_NAME)
    return content is not None and {"name", "version", "digest"} <= content.keys()


def read_unchecked(path: Path) -> dict[str, Any] | None:
    """Return a manifest's content, unchecked; None if there is none."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_error(folder: Path, error: OSError) -> str:
    """Return the message for a dataset folder that cannot be read."""
    return (
        f"cannot read dataset folder {folder}: {error}. Check its permissions and its storage, or "
        "set dataset.root= to another folder."
    )


def first_unreadable(folder: Path, images: bool = False) -> str:
    """Return a sentence about the first unreadable image, such as a truncated one; empty if there is none.

    Slow: for error messages. Of very many files only the first are checked.
    """
    from PIL import Image

    for path in sorted(itertools.islice(checksum.iter_files(str(folder), images), CHECK_ALL_UP_TO)):
        if not path.lower().endswith(checksum.IMAGE_SUFFIXES):
            continue
        try:
            with Image.open(folder / path) as image:
                image.load()
        except Exception as error:  # Pillow raises many types
            return f"Cannot read {folder / path}: {error}. "
    return ""


def _build(
    folder: Path, dataset: dict[str, Any], facts: dict[str, Any], act: str, total: Checksum, digest_of: str
) -> dict[str, Any]:
    """Return the content of a manifest."""
    manifest = {
        "format": FORMAT,
        "name": dataset["name"],
        "version": dataset.get("version", 1),
        "maker": without_secrets(dataset[act]),
        "count": sum(facts["splits"].values()),
        **facts,
        "layout": dataset["layout"],
        "files": total.files,
        "bytes": total.bytes,
        "digest": total.hexdigest,
        "digest_of": digest_of,
    }
    if total.files > CHECK_ALL_UP_TO:
        manifest["sample"] = _sample(folder, images=act == "adopt")
    return manifest


def _sample(folder: Path, images: bool) -> dict[str, int]:
    """Return the sizes of evenly spaced files, without knowing their number in advance."""
    paths: list[str] = []
    stride = 1
    for number, path in enumerate(checksum.iter_files(str(folder), images)):
        if number % stride == 0:
            paths.append(path)
            if len(paths) == 2 * SAMPLE_COUNT:
                paths, stride = paths[::2], 2 * stride
    return {path: os.stat(folder / path).st_size for path in paths}


def _difference(folder: Path, manifest: dict[str, Any], images: bool) -> str:
    """Return how a folder differs from its manifest, without reading its files; empty if it matches.

    It misses bytes changed in place and, in a dataset created by epochmeter, a file that was moved or renamed. With
    more than `CHECK_ALL_UP_TO` files it also misses a truncated or moved file outside the sample, and a lost file if
    another was added.
    """
    top, expected = str(folder), manifest["files"]
    if expected <= CHECK_ALL_UP_TO:
        actual = checksum.sum_batches(checksum.iter_batches(top, images), checksum.hash_names_and_sizes(top))
        if (actual.files, actual.bytes) != (expected, manifest["bytes"]):
            return (
                f"has {actual.files} files of {actual.bytes} bytes; its manifest lists {expected} files of "
                f"{manifest['bytes']} bytes"
            )
        if manifest["digest_of"] == NAMES_AND_SIZES and actual.hexdigest != manifest["digest"]:
            return f"has {expected} files; some have other names or sizes than its manifest lists"
        return ""
    count = sum(len(batch.names) for batch in checksum.iter_batches(top, images))
    if count != expected:
        return f"has {count} files; its manifest lists {expected} files"
    for path, size in manifest["sample"].items():
        actual_size = os.stat(folder / path).st_size if (folder / path).exists() else None
        if actual_size != size:
            state = "is missing" if actual_size is None else f"has {actual_size} bytes"
            return f"does not match its manifest: {folder / path}, of {size} bytes, {state}"
    return ""
