"""A dataset is ready on its storage before its run begins.

It has a home, where it is made, or lies if it is a user's own folder; where the storage is another place, it is
staged there.
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

from epochmeter.config.secrets import redacted_tree
from epochmeter.config.validation import typed
from epochmeter.datasets import manifest
from epochmeter.datasets.atomic_folder import Say
from epochmeter.datasets.stage import REMEDY as COPY_REMEDY
from epochmeter.datasets.stage import standing
from epochmeter.shared.instantiate import arguments

SOURCES = str(Path(__file__).parents[2])
SHARED_MEMORY = Path("/dev/shm")
NOTES = "data/.manifests"
"""Where the manifests lie of folders that are users' own."""
WHERE_FROM = ("url", "md5", "archives", "train", "val", "devkit")
"""Arguments of makers that say where files come from, not what they become."""


def ready(dataset: dict[str, Any], storage: dict[str, Any], root: Path, say: Say) -> dict[str, Any]:
    """The dataset's manifest, with the `folder` to train it from, and its `home`; relative ones are relative to `root`.

    A dataset that is there is checked at little cost. One that is not is made, adopted or staged by a process of its
    own, so that nothing it imports or holds stays with the steward.
    """
    if _generated(dataset):
        return _facts_of_generated(dataset)
    check_storage(storage, root)
    home, folder = _home(dataset, root), place(dataset, storage, root)
    assert folder
    if folder == home:
        found = _at_home(dataset, home, root, say)
    else:
        if folder.is_relative_to(home):
            raise ValueError(f"storage.root={storage['root']} lies in the dataset's own folder, {home}: give another.")
        found = _staged(dataset, home, folder, storage, root, say)
    if dataset.get("classes") is not None and found.get("classes", dataset["classes"]) != dataset["classes"]:
        raise ValueError(
            f"dataset.classes={dataset['classes']}, and {home} has {found['classes']}: give "
            f"dataset.classes={found['classes']}, or another folder with dataset.root=."
        )
    facts = {key: value for key, value in found.items() if key != "sample"}
    return {**facts, "name": dataset["name"], "layout": dataset["layout"], "folder": str(folder), "home": str(home)}


def known(dataset: dict[str, Any], storage: dict[str, Any], root: Path) -> dict[str, Any] | None:
    """What the dataset's manifest says, unchecked; None where there is none yet."""
    if _generated(dataset):
        return _facts_of_generated(dataset)
    if dataset.get("root") is None:
        return None
    home, folder = _home(dataset, root), place(dataset, storage, root)
    note = _note(dataset, home, root)
    paths = [note or home / manifest.NAME, *([folder / manifest.NAME] if folder else [])]
    found = (manifest.peeked(path) for path in paths)
    return next((each for each in found if each and "digest" in each), None)


def digest(dataset: dict[str, Any], storage: dict[str, Any], root: Path) -> str | None:
    """The dataset's digest; None where it is still to be made, or a user's folder to be looked at again."""
    found = known(dataset, storage, root)
    if found and found.get("digest_of") == manifest.NAMES:
        home = _home(dataset, root)
        note = _note(dataset, home, root)
        try:
            found = manifest.fitting(home, dataset, note) if note else found
        except RuntimeError:  # `ready` says why
            return None
    return found["digest"] if found else None


def place(dataset: dict[str, Any], storage: dict[str, Any], root: Path) -> Path | None:
    """The folder that the dataset is trained from, there or not; None where there is none."""
    if _generated(dataset) or dataset.get("root") is None:
        return None
    home, store = _home(dataset, root), _below(root, storage["root"])
    as_it_lies = storage.get("medium") is None and storage["root"] == "data"
    if as_it_lies or home.resolve().is_relative_to(store.resolve()):
        return home
    return store / home.name


def _at_home(dataset: dict[str, Any], home: Path, root: Path, say: Say) -> dict[str, Any]:
    """The manifest of the dataset in its home, made or adopted if need be."""
    found = _lying(dataset, home, root)
    if found:
        return found
    note = _note(dataset, home, root)
    if note:
        _run("adopt", say, dataset=dataset, folder=str(home), note=str(note))
    elif dataset.get("make"):
        if Path(dataset["root"]).expanduser().is_absolute() and not home.parent.is_dir():
            raise ValueError(f"dataset.root={home}: {home.parent} is not there. Mount the medium, or give another.")
        if home.is_mount():
            raise ValueError(f"dataset.root={home} is no folder to make a dataset in. {_remedy(dataset, home)}")
        _run("make", say, dataset=dataset, folder=str(home))
    else:
        raise ValueError(f"dataset.root={dataset['root']} is not there, or is empty. Give a folder of samples.")
    found = _lying(dataset, home, root)
    assert found, "what ended well has left a whole dataset"
    return found


def _staged(
    dataset: dict[str, Any], home: Path, folder: Path, storage: dict[str, Any], root: Path, say: Say
) -> dict[str, Any]:
    """The manifest of the dataset's copy on the storage: one that came with its medium does without a home."""
    there = home.is_dir() and any(home.iterdir())
    found = None if there else standing(folder, dataset, home, told=None, images=False)
    if found:
        _check_arguments(dataset, found, folder, COPY_REMEDY)
        return found
    told = _at_home(dataset, home, root, say)
    note = _note(dataset, home, root)
    images = note is not None
    found = standing(folder, dataset, home, told, images)
    if not found:
        _run("stage", say, dataset=dataset, home=str(home), note=note and str(note), place=str(folder),
             reread=bool(storage.get("reread")))  # fmt: skip
        found = standing(folder, dataset, home, told, images)
    assert found, "what ended well has left a whole copy"
    return {**found, **told}  # the same files, which may have been split otherwise since


def _lying(dataset: dict[str, Any], home: Path, root: Path) -> dict[str, Any] | None:
    remedy = _remedy(dataset, home)
    found = manifest.fitting(home, dataset, _note(dataset, home, root), remedy)
    if found:
        _check_arguments(dataset, found, home, remedy)
    return found


def _check_arguments(dataset: dict[str, Any], found: dict[str, Any], folder: Path, remedy: str) -> None:
    """Refuses what was made by other arguments than its maker would be given now; ValueError.

    One that only the manifest has, or only the maker by now, is of another version of it, and refuses nothing.
    """
    then = found["maker"]
    now = next(each for act in ("make", "adopt") if (each := dataset.get(act)) and each["_target_"] == then["_target_"])
    then, now = redacted_tree(arguments(then)), redacted_tree(arguments(now))
    others = [key for key in now if key in then and now[key] != then[key] and key not in WHERE_FROM]
    if others:
        names = {key: f"dataset.{key}" if key in dataset else f"dataset.make.{key}" for key in others}
        asked, made = (", ".join(f"{names[key]}={typed(of[key])}" for key in others) for of in (now, then))
        raise ValueError(f"{asked}, and {folder} was made with {made}. {remedy}")


def _remedy(dataset: dict[str, Any], home: Path) -> str:
    """What to do about a home that cannot be taken as it is."""
    if home.is_mount():
        return f"A medium is mounted there: give a folder on it, dataset.root={home / dataset['name']}."
    return manifest.REMEDY


def _note(dataset: dict[str, Any], home: Path, root: Path) -> Path | None:
    """Where the manifest lies of a folder that is a user's own; None where it is ours, or there is none."""
    if not dataset.get("adopt") or manifest.is_ours(home) or not home.is_dir() or not any(home.iterdir()):
        return None
    told = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return root / NOTES / f"{dataset['name']}-{told}.json"


def _home(dataset: dict[str, Any], root: Path) -> Path:
    if dataset.get("root") is None:
        raise ValueError(f"dataset={dataset['name']} is a folder of your own: give it with dataset.root=.")
    home = _below(root, dataset["root"])
    return home.resolve() if home.is_symlink() else home  # what is made comes to its place from beside it


def _below(root: Path, path: str) -> Path:
    return Path(os.path.abspath(root / Path(path).expanduser()))


def _generated(dataset: dict[str, Any]) -> bool:
    """Whether there is nothing to make: it is in no folder."""
    return not dataset.get("make") and not dataset.get("adopt")


def _facts_of_generated(dataset: dict[str, Any]) -> dict[str, Any]:
    """What a dataset is that the worker makes up as its specification says."""
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
    """A storage outside the project has to be there: made here, it would be a folder of another disk. ValueError."""
    store = _below(root, storage["root"])
    if store.parent == SHARED_MEMORY and store.parent.is_dir():
        store.mkdir(exist_ok=True)  # what lies in memory is gone with every start of the machine
    if Path(storage["root"]).expanduser().is_absolute() and not store.is_dir():
        raise ValueError(
            f"`storage.root={storage['root']}` is not an existing folder. Mount the storage device, or give "
            "an existing folder: `storage.root=/media/disk`"
        )


def _run(act: str, say: Say, **arguments: Any) -> None:
    command = [sys.executable, "-m", "epochmeter.datasets", act, json.dumps(arguments)]
    path = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))
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
            why = errors.read().strip() or f"{act}: dataset {name} was not got ready: exit code {code}."
            raise (ValueError if code == 2 else RuntimeError)(why)
