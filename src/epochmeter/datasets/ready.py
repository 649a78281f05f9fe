"""Prepare a dataset before a run: create it in its home folder, or inspect a user's folder.

If the storage is elsewhere, the dataset is copied (staged) there.
"""

import errno
import hashlib
import json
import os
import shutil
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, cast

from epochmeter.config.schema import Dataset, Storage
from epochmeter.config.secrets import redact_tree
from epochmeter.config.validation import format_value
from epochmeter.datasets import checksum, manifest
from epochmeter.datasets.atomic_folder import create_atomically, creation_lock, explain_errors
from epochmeter.datasets.checksum import MANIFEST_NAME, Checksum
from epochmeter.datasets.manifest import Facts, Manifest
from epochmeter.datasets.progress import MB, Notify, Progress
from epochmeter.shared.instantiate import instantiate_spec, target_arguments
from epochmeter.shared.problem import input_error, machine_error

SHARED_MEMORY = Path("/dev/shm")
USER_MANIFESTS = "data/.manifests"  # folder for the manifests of users' own folders
ORIGIN_KEYS = (
    "url",
    "md5",
    "sha256",
    "archives",
    "archive",
    "devkit",
)  # arguments of makers that affect where files come from but not their content


def prepare_dataset(dataset: Dataset, storage: Storage, root: Path, say: Notify) -> Mapping[str, object]:
    """Prepare the dataset: check it quickly if it exists, otherwise create, inspect or stage it.

    Returns its manifest, with the `folder` to train from and the `home`; both are None for generated data. Raises
    ValueError if the configuration is wrong, RuntimeError if the dataset is damaged or cannot be prepared.
    """
    if _is_generated(dataset):
        return {**_generated_manifest(dataset).to_dict(), "folder": None, "home": None}
    check_storage(storage, root)
    home, folder = _home_folder(dataset, root), training_folder(dataset, storage, root)
    assert folder, "it has a root"
    if folder != home and folder.is_relative_to(home):
        problem = f"storage.root={storage.root} is inside the dataset's own folder, {home}"
        raise input_error(problem, "give another", key="storage.root")
    if folder == home:
        description = _prepare_home(dataset, home, root, say)
    else:
        description = _prepare_copy(dataset, home, root, folder, say)
    if description.classes not in (None, dataset.classes):
        raise input_error(
            f"dataset.classes={format_value(dataset.classes)}, but {home} has {description.classes}",
            f"give dataset.classes={description.classes}, or another folder with dataset.root=",
        )
    of_dataset = {"name": dataset.name, "layout": dataset.layout, "folder": str(folder), "home": str(home)}
    return {**description.to_dict(), **of_dataset}


def peek_manifest(dataset: Dataset, storage: Storage, root: Path) -> Manifest | None:
    """Return the dataset's manifest, not compared with its files; None before the dataset is prepared."""
    if _is_generated(dataset):
        return _generated_manifest(dataset)
    folder = training_folder(dataset, storage, root)
    if folder is None:
        return None
    home = _home_folder(dataset, root)
    paths = (_user_manifest_path(dataset, home, root) or home / MANIFEST_NAME, folder / MANIFEST_NAME)
    return next(filter(None, map(manifest.try_read_manifest, paths)), None)


def prepared_folder(dataset: Dataset, storage: Storage, root: Path, digest: str) -> Path | None:
    """Return the folder of a prepared dataset with this checksum, as it was inspected last; None if there is none."""
    if _is_generated(dataset) or dataset.root is None:
        return None
    home = _home_folder(dataset, root)
    folders = dict.fromkeys([training_folder(dataset, storage, root) or home, home])
    for folder in filter(Path.is_dir, folders):
        own = folder / MANIFEST_NAME
        path = _user_manifest_path(dataset, home, root) or own if folder == home else own
        found = manifest.try_read_manifest(path)
        if found and found.digest == digest:
            return folder
    return None


def dataset_checksum(dataset: Dataset, storage: Storage, root: Path) -> str | None:
    """Return the dataset's checksum; None if the dataset must be created, or a user's folder inspected again."""
    description = peek_manifest(dataset, storage, root)
    if description and description.digest_of == manifest.NAMES_AND_SIZES:
        home = _home_folder(dataset, root)
        user_manifest = _user_manifest_path(dataset, home, root)
        try:
            description = manifest.load_valid(home, dataset, user_manifest) if user_manifest else description
        except RuntimeError:  # `prepare_dataset` reports the error
            return None
    return description.digest if description else None


def inspect_users_folder(dataset: Dataset, root: Path, say: Notify) -> str | None:
    """Return the checksum of a user's folder, inspected if necessary; None for a dataset that epochmeter makes."""
    if _is_generated(dataset):
        return None
    home = _home_folder(dataset, root)
    user_manifest = _user_manifest_path(dataset, home, root)
    if user_manifest is None:
        return None
    description = manifest.load_valid(home, dataset, user_manifest) or adopt(dataset, home, user_manifest, say)
    return description.digest


def training_folder(dataset: Dataset, storage: Storage, root: Path) -> Path | None:
    """Return the folder that the dataset is trained from, existing or not; None for generated data."""
    if _is_generated(dataset) or dataset.root is None:
        return None
    home, storage_root = _home_folder(dataset, root), _resolve_path(root, storage.root)
    is_default = storage.medium is None and storage.root == "data"
    if is_default or home.resolve().is_relative_to(storage_root.resolve()):
        return home
    return storage_root / home.name


def check_storage(storage: Storage, root: Path) -> None:
    """Raise ValueError if a storage outside the project is missing: created here, it would be on another disk."""
    storage_root = _resolve_path(root, storage.root)
    if storage_root.parent == SHARED_MEMORY and storage_root.parent.is_dir():
        storage_root.mkdir(exist_ok=True)  # memory is empty after a reboot
    if Path(storage.root).expanduser().is_absolute() and not storage_root.is_dir():
        raise input_error(
            f"`storage.root={storage.root}` is not an existing folder",
            "mount the storage device, or give an existing folder: `storage.root=/media/disk`",
        )


def _prepare_home(dataset: Dataset, home: Path, root: Path, say: Notify) -> Manifest:
    """Return the manifest of the dataset in its home, created or inspected if necessary."""
    user_manifest = _user_manifest_path(dataset, home, root)
    if not (description := manifest.load_valid(home, dataset, user_manifest)):
        description = adopt(dataset, home, user_manifest, say) if user_manifest else make(dataset, home, say)
    _check_arguments(dataset, description, home)
    return description


def make(dataset: Dataset, folder: Path, say: Notify) -> Manifest:
    """Create the dataset in `folder`, unless another process has just done so.

    The function named by `dataset.make` gets an empty folder to fill and `say`, and returns `Facts`. Archives and other
    files to keep go next to that folder.
    """
    if not dataset.make:
        raise input_error(f"dataset.root={dataset.root} does not exist or is empty", "set it to a folder of samples")
    if Path(dataset.root or "").expanduser().is_absolute() and not folder.parent.is_dir():
        raise input_error(
            f"dataset.root={folder}: {folder.parent} does not exist", "mount the storage device, or set another folder"
        )
    if folder.is_mount():
        raise ValueError(f"dataset.root={folder} is a mount point: set a folder on it, as {folder / dataset.name}.")
    with explain_errors(f"write dataset {dataset.name} to {folder.parent}"), creation_lock(folder, say):
        if existing := manifest.load_valid(folder, dataset):
            return existing
        say(f"preparing dataset {dataset.name} in {folder}")
        with create_atomically(folder, dataset.resumable) as unfinished:
            facts = _get_facts(dataset, "make", unfinished, say)
            description = manifest.describe_folder(unfinished, dataset, facts, "make", say)
            description.write(unfinished / MANIFEST_NAME)
    return description


def adopt(dataset: Dataset, folder: Path, user_manifest: Path, say: Notify) -> Manifest:
    """Inspect a user's folder by the function named by `dataset.adopt`, without changing it, and write its manifest."""
    with explain_errors(f"read dataset folder {folder}"):
        say(f"inspecting dataset {dataset.name} in {folder}")
        facts = _get_facts(dataset, "adopt", folder, say)
        description = manifest.describe_folder(folder, dataset, facts, "adopt", say)
    with explain_errors(f"write {user_manifest}"):
        user_manifest.parent.mkdir(parents=True, exist_ok=True)
        description.write(user_manifest)
    return description


def _get_facts(dataset: Dataset, action: Literal["make", "adopt"], folder: Path, say: Notify) -> Facts:
    """Call the dataset's function on the folder and return its facts; ValueError if some are missing."""
    spec = getattr(dataset, action)
    try:
        returned = instantiate_spec(spec, folder, say=say)
    except (ValueError, RuntimeError, OSError):
        raise
    except Exception as error:  # of a user's function
        raise RuntimeError(f"dataset {dataset.name}: {spec['_target_']} failed\n{traceback.format_exc()}") from error
    facts = cast("Facts", returned if isinstance(returned, dict) else {})
    missing = [f"splits.{split}" for split in ("train", "val") if split not in facts.get("splits", {})]
    if dataset.classes is not None and "classes" not in facts:
        missing.append("classes")
    if missing:
        returned_text = f"{spec['_target_']} returned {type(returned).__name__} without {', '.join(missing)}"
        hint = "see docs/extending.md for the return value"
        raise input_error(f"dataset {dataset.name}: {returned_text}", hint)
    return facts


def _prepare_copy(dataset: Dataset, home: Path, root: Path, folder: Path, say: Notify) -> Manifest:
    """Return the manifest of the dataset's copy on the storage; a copy that came with its device needs no home."""
    if not _has_files(home) and (copy := _existing_copy(folder, dataset, home, original=None)):
        _check_arguments(dataset, copy, folder)
        return copy
    original = _prepare_home(dataset, home, root, say)
    if not _existing_copy(folder, dataset, home, original):
        stage(dataset, home, original, folder, say)
    return replace(original, staged_from=str(home))  # the same files, but the splits may have changed


def stage(dataset: Dataset, home: Path, original: Manifest, folder: Path, say: Notify) -> None:
    """Copy the dataset to `folder`, unless another process just did; RuntimeError if the copy differs from `home`."""
    activity = f"staging dataset {dataset.name}"
    with explain_errors(f"write dataset {dataset.name} to {folder.parent}"), creation_lock(folder, say):
        if _existing_copy(folder, dataset, home, original) is not None:
            return
        with create_atomically(folder) as copy:
            if original.bytes > (free_bytes := shutil.disk_usage(copy).free):
                raise OSError(errno.ENOSPC, f"{original.bytes / 1e6:,.1f} MB needed, {free_bytes / 1e6:,.1f} MB free")
            say(f"{activity} from {home} to {folder}: {original.files} files, {original.bytes / 1e6:.1f} MB")
            progress = Progress(activity, say, original.bytes, MB)
            is_users = original.digest_of == manifest.NAMES_AND_SIZES
            task = partial(_copy_or_link if is_users else _copy_and_hash, copy)
            total = checksum.sum_files(home, task, is_users, lambda done: progress.update(done.bytes))
            if is_users:
                total = checksum.sum_files(copy, checksum.hash_name_and_size)
            if (total.files, total.bytes, total.hexdigest) != (original.files, original.bytes, original.digest):
                same_size = (total.files, total.bytes) == (original.files, original.bytes)
                raise machine_error(
                    f"dataset folder {home} has {total.files} files of {total.bytes} bytes; its manifest lists "
                    f"{original.files} files of {original.bytes} bytes{', with other contents' if same_size else ''}",
                    manifest.REMEDY,
                    file=str(home),
                )
            replace(original, staged_from=str(home)).write(copy / MANIFEST_NAME)


def _existing_copy(folder: Path, dataset: Dataset, home: Path, original: Manifest | None) -> Manifest | None:
    """Return the manifest of the complete copy in `folder`; None if it must be staged, or staged again.

    With an `original` of None, any complete copy is accepted. Raises RuntimeError if `folder` is not a copy of `home`.
    """
    copy = manifest.load_valid(folder, dataset)
    if copy and (original is None or copy.digest == original.digest):
        return copy
    existing = manifest.try_read_manifest(folder / MANIFEST_NAME)
    if existing and existing.staged_from != str(home):
        origin = existing.staged_from or "the function that made it there"
        raise machine_error(f"{folder} is not overwritten: its dataset is from {origin}", manifest.REMEDY)
    return None


def _copy_and_hash(copy: Path, home: Path, path: str) -> Checksum:
    os.makedirs(os.path.dirname(os.path.join(copy, path)), exist_ok=True)
    shutil.copyfile(os.path.join(home, path), os.path.join(copy, path))
    return checksum.hash_contents(copy, path)


def _copy_or_link(copy: Path, home: Path, path: str) -> Checksum:
    """Copy a file of a user's folder; of one that cannot be read, make a link, for training to skip or to name it."""
    source, target = os.path.join(home, path), os.path.join(copy, path)
    try:
        return _copy_and_hash(copy, home, path)
    except OSError as error:
        is_unreadable = error.filename == source and error.errno in checksum.NO_FILE
        if os.path.isfile(source) and not is_unreadable:
            raise
    with suppress(FileNotFoundError):
        os.unlink(target)
    os.symlink(os.path.abspath(source), target)
    return checksum.hash_name_and_size(home, path)


def _check_arguments(dataset: Dataset, description: Manifest, folder: Path) -> None:
    """Raise ValueError if the dataset was created with other arguments than configured now."""
    maker = description.maker or {}
    spec = manifest.maker_spec(dataset, maker["_target_"]) or {}
    created, configured = redact_tree(target_arguments(maker)), redact_tree(target_arguments(spec))
    # An argument in only one of the two belongs to another version of the function.
    changed = [key for key in configured if key in created and configured[key] != created[key]]
    expected, actual = (
        ", ".join(f"{key}={format_value(arguments[key])}" for key in changed if key not in ORIGIN_KEYS)
        for arguments in (configured, created)
    )
    if expected:
        raise input_error(
            f"dataset {dataset.name}: {expected} is configured, but {folder} was made with {actual}", manifest.REMEDY
        )


def _user_manifest_path(dataset: Dataset, home: Path, root: Path) -> Path | None:
    """Return the path of a user folder's manifest; None for a folder made by epochmeter, or a missing one."""
    is_made = manifest.try_read_manifest(home / MANIFEST_NAME) is not None
    if not dataset.adopt or is_made or not _has_files(home):
        return None
    key = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return root / USER_MANIFESTS / f"{dataset.name}-{key}.json"


def _has_files(folder: Path) -> bool:
    with explain_errors(f"read dataset folder {folder}"):
        return folder.is_dir() and any(folder.iterdir())


def _home_folder(dataset: Dataset, root: Path) -> Path:
    if dataset.root is None:
        raise ValueError(f"dataset={dataset.name} needs a folder of your own: set dataset.root=.")
    home = _resolve_path(root, dataset.root)
    return home.resolve() if home.is_symlink() else home  # folders are created next to the target and renamed


def _resolve_path(root: Path, path: str) -> Path:
    return Path(os.path.abspath(root / Path(path).expanduser()))


def _is_generated(dataset: Dataset) -> bool:
    return not dataset.make and not dataset.adopt


def _generated_manifest(dataset: Dataset) -> Manifest:
    count = dataset.count or 0
    specification = json.dumps(dataset.to_dict(), sort_keys=True, default=str)
    return Manifest(
        name=dataset.name,
        version=dataset.version,
        layout=dataset.layout,
        count=count,
        splits={"train": count, "val": max(1, count // 5)},
        classes=dataset.classes,
        channels=dataset.channels,
        source="generated",
        files=0,
        bytes=0,
        digest=hashlib.sha256(specification.encode()).hexdigest(),
        digest_of="specification",
    )
