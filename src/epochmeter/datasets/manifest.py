"""The manifest of a dataset describes its complete state: written last, and compared with the folder at every start.

A dataset created by epochmeter has it as `manifest.json` in its folder. A user's folder is never written to, so its
manifest is a file elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypedDict

from epochmeter.config.schema import Dataset
from epochmeter.config.secrets import redact_tree
from epochmeter.datasets.checksum import MANIFEST_NAME, hash_contents, hash_name_and_size, iter_files, sum_files
from epochmeter.shared.atomic_files import read_json, write_json

CHECK_ALL_UP_TO = 20_000
"""Most files whose sizes are all checked at every start, for a user's folder also their names.

With more, their number and the sizes of a sample are checked.
"""
SAMPLE_COUNT = 1000
CONTENTS, NAMES_AND_SIZES = "contents", "names and sizes"
"""Data covered by a checksum."""

REMEDY = "Move that folder away to prepare the dataset again, or set dataset.root= to another folder."


class Facts(TypedDict, total=False):
    """Return value of the function that makes or inspects a dataset; `splits` are the samples per split.

    `classes` is required if the configuration has it.
    """

    splits: dict[str, int]
    source: str
    classes: int
    channels: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """State of a complete dataset.

    Attributes:
        maker: Specification of the function that made or inspected it, without secrets.
        count: Samples of all splits.
        files: Number of files.
        bytes: Their size.
        digest: Their checksum, see `checksum`.
        digest_of: Data covered by the checksum: contents, names and sizes, or the specification of generated data.
        sample: Size by path, for some files of a dataset with very many.
        staged_from: Home of a staged copy.
    """

    name: str
    version: int = 1
    maker: Mapping[str, Any] | None = None
    count: int
    splits: Mapping[str, int]
    classes: int | None = None
    channels: int | None = None
    source: str | None = None
    layout: str
    files: int
    bytes: int
    digest: str
    digest_of: str
    sample: Mapping[str, int] | None = None
    staged_from: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the fields that have a value."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def write(self, path: Path) -> None:
        """Write the manifest."""
        write_json(path, self.to_dict())


def try_read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None if there is no valid one."""
    try:
        content = read_json(path)
        return Manifest(**{entry.name: content[entry.name] for entry in fields(Manifest) if entry.name in content})
    except (OSError, ValueError, TypeError):
        return None


def describe_folder(folder: Path, dataset: Dataset, facts: Facts, action: Literal["make", "adopt"]) -> Manifest:
    """Return the manifest of the files now in `folder`.

    A user's folder (`adopt`) is described by names and sizes, since hashing hundreds of gigabytes takes hours.
    """
    is_users = action == "adopt"
    total = sum_files(folder, hash_name_and_size if is_users else hash_contents, is_users)
    step = max(1, total.files // SAMPLE_COUNT)
    sample = {path: (folder / path).stat().st_size for path in islice(iter_files(folder, is_users), 0, None, step)}
    return Manifest(
        name=dataset.name,
        version=dataset.version,
        maker=without_secrets(getattr(dataset, action)),
        count=sum(facts["splits"].values()),
        splits=facts["splits"],
        classes=facts.get("classes"),
        channels=facts.get("channels"),
        source=facts.get("source"),
        layout=dataset.layout,
        files=total.files,
        bytes=total.bytes,
        digest=total.hexdigest,
        digest_of=NAMES_AND_SIZES if is_users else CONTENTS,
        sample=sample if total.files > CHECK_ALL_UP_TO else None,
    )


def without_secrets(maker: Mapping[str, Any] | None) -> Mapping[str, object] | None:
    """Return a maker's specification as stored in the manifest: without secrets for downloads."""
    return None if maker is None else redact_tree(maker)


def load_valid(
    folder: Path, dataset: Dataset, user_manifest: Path | None = None, remedy: str = REMEDY
) -> Manifest | None:
    """Return the manifest of the complete dataset in `folder`; None if it must be created, or created again.

    `user_manifest` is the path of the manifest of a user's folder. Raises RuntimeError if another folder has no
    manifest or does not match it; the user has to clear it.
    """
    with explain_read_errors(folder):
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None
        manifest = try_read_manifest(user_manifest or folder / MANIFEST_NAME)
        if user_manifest:
            is_current = manifest and manifest.maker == without_secrets(dataset.adopt)
            return manifest if manifest and is_current and not _difference(folder, manifest) else None
        if manifest is None:
            raise RuntimeError(f"{folder} was not created by epochmeter: it has no valid {MANIFEST_NAME}. {remedy}")
        maker = (manifest.maker or {}).get("_target_")
        if maker not in [spec["_target_"] for spec in (dataset.make, dataset.adopt) if spec]:
            raise RuntimeError(f"{folder} contains another dataset, {manifest.name}. {remedy}")
        if manifest.version != dataset.version:
            return None
        if difference := _difference(folder, manifest):
            raise RuntimeError(f"dataset folder {folder} {difference}. {remedy}")
    return manifest


@contextmanager
def explain_read_errors(folder: Path) -> Iterator[None]:
    """Turn errors of reading a dataset's folder into a RuntimeError with a remedy."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(
            f"cannot read dataset folder {folder}: {error}. Check its permissions and its storage, or "
            "set dataset.root= to another folder."
        ) from error


def _difference(folder: Path, manifest: Manifest) -> str:
    """Return how a folder differs from its manifest, without reading its files; empty if it matches."""
    # Not detected: bytes changed in place, and a moved file of a dataset made by epochmeter. With a sample also a
    # truncated or moved file outside the sample, and a lost file if another was added.
    by_name = manifest.digest_of == NAMES_AND_SIZES
    images = by_name and manifest.staged_from is None
    if manifest.sample is None:
        actual = sum_files(folder, hash_name_and_size, images)
        if (actual.files, actual.bytes) != (manifest.files, manifest.bytes):
            return (
                f"has {actual.files} files of {actual.bytes} bytes; its manifest lists {manifest.files} files of "
                f"{manifest.bytes} bytes"
            )
        is_same = not by_name or actual.hexdigest == manifest.digest
        return "" if is_same else "has files with other names or sizes than its manifest lists"
    count = sum(1 for _ in iter_files(folder, images))
    if count != manifest.files:
        return f"has {count} files; its manifest lists {manifest.files} files"
    for path, size in manifest.sample.items():
        file = folder / path
        if not file.is_file() or file.stat().st_size != size:
            return f"does not match its manifest: {file} does not have {size} bytes"
    return ""
