"""Prepare a dataset before a run: create it in its home folder, or inspect a user's folder, and stage it.

The home is where the dataset is created, or a user's own folder. If the storage is elsewhere, the dataset is copied
(staged) there.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from epochmeter.config.secrets import redact_tree
from epochmeter.config.validation import format_value
from epochmeter.datasets import manifest
from epochmeter.datasets.atomic_folder import Notify
from epochmeter.datasets.stage import REMEDY as COPY_REMEDY
from epochmeter.datasets.stage import existing_copy
from epochmeter.shared.instantiate import target_arguments

SOURCE_ROOT = str(Path(__file__).parents[2])
SHARED_MEMORY = Path("/dev/shm")
USER_MANIFESTS = "data/.manifests"
"""Folder for the manifests of users' own folders."""
ORIGIN_KEYS = ("url", "md5", "archives", "train", "val", "devkit")
"""Arguments of makers that affect where files come from but not their content."""


def prepare_dataset(dataset: dict[str, Any], storage: dict[str, Any], root: Path, say: Notify) -> dict[str, Any]:
    """Prepare the dataset.

    A dataset that exists is checked quickly. Otherwise it is created, inspected or staged by a separate process, so
    that its imports and memory do not stay in the controller.

    Args:
        dataset: The dataset's configuration.
        storage: The storage's configuration.
        root: Base of relative paths.
        say: Receives progress messages.

    Returns:
        The manifest, with the `folder` to train from and the `home`.

    Raises:
        ValueError: The configuration is wrong.
        RuntimeError: The dataset is damaged or cannot be prepared.
    """
    if _is_generated(dataset):
        return _generated_manifest(dataset)
    check_storage(storage, root)
    home, folder = _home_folder(dataset, root), training_folder(dataset, storage, root)
    assert folder
    if folder == home:
        description = _prepare_home(dataset, home, root, say)
    else:
        if folder.is_relative_to(home):
            raise ValueError(
                f"storage.root={storage['root']} is inside the dataset's own folder, {home}: give another."
            )
        description = _prepare_copy(dataset, home, folder, storage, root, say)
    if dataset.get("classes") is not None and description.get("classes", dataset["classes"]) != dataset["classes"]:
        raise ValueError(
            f"dataset.classes={dataset['classes']}, but {home} has {description['classes']}: give "
            f"dataset.classes={description['classes']}, or another folder with dataset.root=."
        )
    facts = {key: value for key, value in description.items() if key != "sample"}
    return {**facts, "name": dataset["name"], "layout": dataset["layout"], "folder": str(folder), "home": str(home)}


def peek_manifest(dataset: dict[str, Any], storage: dict[str, Any], root: Path) -> dict[str, Any] | None:
    """Return the dataset's manifest, unchecked; None before the dataset is prepared."""
    if _is_generated(dataset):
        return _generated_manifest(dataset)
    if dataset.get("root") is None:
        return None
    home, folder = _home_folder(dataset, root), training_folder(dataset, storage, root)
    manifest_path = _user_manifest_path(dataset, home, root)
    paths = [manifest_path or home / manifest.MANIFEST_NAME, *([folder / manifest.MANIFEST_NAME] if folder else [])]
    candidates = (manifest.read_unchecked(path) for path in paths)
    return next((content for content in candidates if content and "digest" in content), None)


def dataset_checksum(dataset: dict[str, Any], storage: dict[str, Any], root: Path) -> str | None:
    """Return the dataset's checksum; None if the dataset must be created, or a user's folder inspected again."""
    description = peek_manifest(dataset, storage, root)
    if description and description.get("digest_of") == manifest.NAMES_AND_SIZES:
        home = _home_folder(dataset, root)
        note = _user_manifest_path(dataset, home, root)
        try:
            description = manifest.load_valid(home, dataset, note) if note else description
        except RuntimeError:  # `prepare_dataset` reports the error
            return None
    return description["digest"] if description else None


def training_folder(dataset: dict[str, Any], storage: dict[str, Any], root: Path) -> Path | None:
    """Return the folder that the dataset is trained from, existing or not; None for generated data."""
    if _is_generated(dataset) or dataset.get("root") is None:
        return None
    home, storage_root = _home_folder(dataset, root), _resolve_path(root, storage["root"])
    is_default = storage.get("medium") is None and storage["root"] == "data"
    if is_default or home.resolve().is_relative_to(storage_root.resolve()):
        return home
    return storage_root / home.name


def _prepare_home(dataset: dict[str, Any], home: Path, root: Path, say: Notify) -> dict[str, Any]:
    """Return the manifest of the dataset in its home, created or inspected if necessary."""
    description = _valid_manifest(dataset, home, root)
    if description:
        return description
    manifest_path = _user_manifest_path(dataset, home, root)
    if manifest_path:
        _run_command("adopt", say, dataset=dataset, folder=str(home), note=str(manifest_path))
    elif dataset.get("make"):
        if Path(dataset["root"]).expanduser().is_absolute() and not home.parent.is_dir():
            raise ValueError(
                f"dataset.root={home}: {home.parent} does not exist. Mount the storage device, or set another folder."
            )
        if home.is_mount():
            raise ValueError(f"dataset.root={home} is a mount point. {_remedy(dataset, home)}")
        _run_command("make", say, dataset=dataset, folder=str(home))
    else:
        raise ValueError(f"dataset.root={dataset['root']} does not exist or is empty. Set it to a folder of samples.")
    description = _valid_manifest(dataset, home, root)
    assert description, "a successful process leaves a complete dataset"
    return description


def _prepare_copy(
    dataset: dict[str, Any], home: Path, folder: Path, storage: dict[str, Any], root: Path, say: Notify
) -> dict[str, Any]:
    """Return the manifest of the dataset's copy on the storage; a copy that came with its device needs no home."""
    has_home = home.is_dir() and any(home.iterdir())
    copy = None if has_home else existing_copy(folder, dataset, home, told=None, images=False)
    if copy:
        _check_arguments(dataset, copy, folder, COPY_REMEDY)
        return copy
    original = _prepare_home(dataset, home, root, say)
    manifest_path = _user_manifest_path(dataset, home, root)
    images = manifest_path is not None
    copy = existing_copy(folder, dataset, home, original, images)
    if not copy:
        _run_command("stage", say, dataset=dataset, home=str(home), place=str(folder),
             note=manifest_path and str(manifest_path), reread=bool(storage.get("reread")))  # fmt: skip
        copy = existing_copy(folder, dataset, home, original, images)
    assert copy, "a successful process leaves a complete copy"
    return {**copy, **original}  # the same files, but the splits may have changed


def _valid_manifest(dataset: dict[str, Any], home: Path, root: Path) -> dict[str, Any] | None:
    """Return the checked manifest of the dataset in its home; None if it must be created."""
    remedy = _remedy(dataset, home)
    description = manifest.load_valid(home, dataset, _user_manifest_path(dataset, home, root), remedy)
    if description:
        _check_arguments(dataset, description, home, remedy)
    return description


def _check_arguments(dataset: dict[str, Any], description: dict[str, Any], folder: Path, remedy: str) -> None:
    """Raise ValueError if the dataset was created with other arguments than configured now.

    Arguments that only the manifest or only the configuration has belong to another version of the maker and are
    ignored.
    """
    created = description["maker"]
    configured = next(
        spec for act in ("make", "adopt") if (spec := dataset.get(act)) and spec["_target_"] == created["_target_"]
    )
    created, configured = redact_tree(target_arguments(created)), redact_tree(target_arguments(configured))
    changed = [
        key for key in configured if key in created and configured[key] != created[key] and key not in ORIGIN_KEYS
    ]
    if changed:
        names = {key: f"dataset.{key}" if key in dataset else f"dataset.make.{key}" for key in changed}
        expected, actual = (
            ", ".join(f"{names[key]}={format_value(of[key])}" for key in changed) for of in (configured, created)
        )
        raise ValueError(f"{expected}, but {folder} was made with {actual}. {remedy}")


def _remedy(dataset: dict[str, Any], home: Path) -> str:
    """Return the remedy for a home that cannot be used as it is."""
    if home.is_mount():
        return f"A storage device is mounted there: use a folder on it, dataset.root={home / dataset['name']}."
    return manifest.REMEDY


def _user_manifest_path(dataset: dict[str, Any], home: Path, root: Path) -> Path | None:
    """Return the path of a user folder's manifest; None for a folder of ours, or a missing one."""
    if not dataset.get("adopt") or manifest.has_manifest(home) or not home.is_dir() or not any(home.iterdir()):
        return None
    key = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return root / USER_MANIFESTS / f"{dataset['name']}-{key}.json"


def _home_folder(dataset: dict[str, Any], root: Path) -> Path:
    if dataset.get("root") is None:
        raise ValueError(f"dataset={dataset['name']} needs a folder of your own: set dataset.root=.")
    home = _resolve_path(root, dataset["root"])
    return home.resolve() if home.is_symlink() else home  # folders are created next to the target and renamed


def _resolve_path(root: Path, path: str) -> Path:
    return Path(os.path.abspath(root / Path(path).expanduser()))


def _is_generated(dataset: dict[str, Any]) -> bool:
    """Whether the dataset is generated in memory, without a folder."""
    return not dataset.get("make") and not dataset.get("adopt")


def _generated_manifest(dataset: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a dataset that the training process generates."""
    count = dataset.get("count", 0)
    return {
        "name": dataset["name"],
        "version": dataset.get("version", 1),
        "layout": dataset["layout"],
        "count": count,
        "splits": {"train": count, "val": max(1, count // 5)},
        **{key: dataset[key] for key in ("classes", "channels") if key in dataset},
        "source": "generated",
        "files": 0,
        "bytes": 0,
        "digest": hashlib.sha256(json.dumps(dataset, sort_keys=True, default=str).encode()).hexdigest(),
        "digest_of": "specification",
        "folder": None,
        "home": None,
    }


def check_storage(storage: dict[str, Any], root: Path) -> None:
    """Raise ValueError if a storage outside the project is missing: created here, it would be on another disk."""
    storage_root = _resolve_path(root, storage["root"])
    if storage_root.parent == SHARED_MEMORY and storage_root.parent.is_dir():
        storage_root.mkdir(exist_ok=True)  # memory is empty after a reboot
    if Path(storage["root"]).expanduser().is_absolute() and not storage_root.is_dir():
        raise ValueError(
            f"`storage.root={storage['root']}` is not an existing folder. Mount the storage device, or give "
            "an existing folder: `storage.root=/media/disk`"
        )


def _run_command(act: str, say: Notify, **arguments: Any) -> None:
    """Run `epochmeter.datasets` in a process of its own, forward its progress and raise its error."""
    command = [sys.executable, "-m", "epochmeter.datasets", act, json.dumps(arguments)]
    path = os.pathsep.join(filter(None, [SOURCE_ROOT, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            for line in process.stdout or ():
                say(line.rstrip())
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code != 0:
            errors.seek(0)
            name = arguments["dataset"]["name"]
            why = errors.read().strip() or f"{act}: cannot prepare dataset {name}: exit code {code}."
            raise (ValueError if code == 2 else RuntimeError)(why)
