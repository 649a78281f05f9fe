"""The manifest of a dataset describes its complete state: written last, and compared with the folder at every start.

A dataset created by epochmeter has it as `manifest.json` in its folder. A user's folder is never written to, so its
manifest is a file elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from epochmeter.config.schema import Dataset
from epochmeter.config.secrets import redact_tree
from epochmeter.datasets import checksum
from epochmeter.datasets.atomic_folder import explain_errors
from epochmeter.datasets.checksum import MANIFEST_NAME
from epochmeter.datasets.progress import MB, Notify, Progress
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.problem import machine_error

MAX_CHECKED = 20_000  # files whose names and sizes are checked at every start; of more files, the number and a sample
CONTENTS, NAMES_AND_SIZES = "contents", "names and sizes"  # data covered by a checksum
RENAMED = {"epochmeter.datasets.image_folder.scan": "epochmeter.datasets.imagenet.scan"}
"""Functions of the package in earlier manifests, and their names now, for some of their datasets."""
REMEDY = "move that folder away to prepare it again, or set another folder: dataset.root= or storage.root="


class Facts(TypedDict, total=False):
    """Return value of a function that makes or inspects a dataset; `classes` are required if configured."""

    splits: dict[str, int]
    source: str
    classes: int
    channels: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """State of a complete dataset."""

    name: str
    version: int = 1
    maker: Mapping[str, Any] | None = None  # specification of the function that made or inspected it, without secrets
    count: int  # samples of all splits
    splits: Mapping[str, int]
    classes: int | None = None
    channels: int | None = None
    source: str | None = None
    layout: str
    files: int  # their number
    bytes: int  # their size
    digest: str  # their checksum, see `checksum`
    digest_of: str  # data covered by it: contents, names and sizes, or the specification of generated data
    quick: str | None = None  # checksum of the names and sizes of the files, or of a sample of them; None: no files
    staged_from: str | None = None  # home of a staged copy

    def to_dict(self) -> dict[str, object]:
        """Return the fields that have a value."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def write(self, path: Path) -> None:
        write_json(path, self.to_dict())


def try_read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None if there is no valid one."""
    try:
        content = read_json(path)
        return Manifest(**{field.name: content[field.name] for field in fields(Manifest) if field.name in content})
    except (OSError, ValueError, TypeError):
        return None


def describe_folder(
    folder: Path, dataset: Dataset, facts: Facts, action: Literal["make", "adopt"], say: Notify
) -> Manifest:
    """Return the manifest of a folder; of a user's folder by names and sizes, as hashing contents takes hours."""
    is_users = action == "adopt"
    task = checksum.hash_name_and_size if is_users else checksum.hash_contents
    progress = Progress(f"computing the checksum of dataset {dataset.name}", say, unit=MB)
    total = checksum.sum_files(folder, task, is_users, lambda done: progress.update(done.bytes))
    _, quick = _quick_check(folder, total.files, is_users)
    return Manifest(
        name=dataset.name,
        version=dataset.version,
        maker=redact_tree(getattr(dataset, action)),
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
        quick=quick,
    )


def maker_spec(dataset: Dataset, maker: object) -> Mapping[str, Any] | None:
    """Return which of a dataset's functions has the name in a manifest; None if neither has."""
    names = (maker, RENAMED.get(str(maker)))
    return next((spec for spec in (dataset.make, dataset.adopt) if spec and spec["_target_"] in names), None)


def load_valid(folder: Path, dataset: Dataset, user_manifest: Path | None = None) -> Manifest | None:
    """Return the manifest of the complete dataset in `folder`; None if it must be created, or created again.

    `user_manifest` is the path of the manifest of a user's folder. Raises RuntimeError if another folder has no
    manifest or does not match it; the user has to clear it.
    """
    with explain_errors(f"read dataset folder {folder}"):
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None
        manifest = try_read_manifest(user_manifest or folder / MANIFEST_NAME)
        if user_manifest:
            is_current = manifest and manifest.maker == redact_tree(dataset.adopt)
            return manifest if manifest and is_current and not _difference(folder, manifest) else None
        if manifest is None:
            raise machine_error(f"{folder} was not created by epochmeter: it has no valid {MANIFEST_NAME}", REMEDY)
        maker = (manifest.maker or {}).get("_target_")
        if maker_spec(dataset, maker) is None:
            raise machine_error(f"{folder} contains another dataset, {manifest.name}", REMEDY)
        if manifest.version != dataset.version:
            return None
        if difference := _difference(folder, manifest):
            raise machine_error(f"dataset folder {folder} {difference}", REMEDY)
    return manifest


def _difference(folder: Path, manifest: Manifest) -> str:
    """Return how a folder differs from its manifest, without reading its files; empty if it matches."""
    is_users = manifest.digest_of == NAMES_AND_SIZES and manifest.staged_from is None
    count, quick = _quick_check(folder, manifest.files, is_users)
    if (count, quick) == (manifest.files, manifest.quick):
        return ""
    differs = "" if count != manifest.files else " with other names or sizes"
    return f"has {count} files{differs}; its manifest lists {manifest.files} files"


def _quick_check(folder: Path, files: int, samples_only: bool) -> tuple[int, str]:
    """Return the number of files, and a checksum of the names and sizes of about `MAX_CHECKED` of them."""
    step, count, total = 1 + files // MAX_CHECKED, 0, checksum.Checksum()
    for count, path in enumerate(checksum.iter_files(folder, samples_only), 1):
        if count % step == 0:
            total = total.add(checksum.hash_name_and_size(folder, path))
    return count, total.hexdigest
