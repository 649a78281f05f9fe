"""The manifest of a dataset: `manifest.json` in its folder, written last, says what a whole one is."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainmeter.record import read_json, write_json

NAME = "manifest.json"

REMEDY = "Move that folder away to have the dataset made again, or give another with dataset.root=."


def write(folder: Path, dataset: dict[str, Any], facts: dict[str, Any]) -> None:
    """Describes the files now in `folder`; `facts` is what their maker says of them."""
    files, size = _measure(folder)
    manifest = {
        "name": dataset["name"],
        "version": dataset.get("version", 1),
        "count": sum(facts["splits"].values()),
        **facts,
        "layout": dataset["layout"],
        "files": files,
        "bytes": size,
        "digest": _digest(folder),
    }
    write_json(folder / NAME, manifest)


def fitting(folder: Path, dataset: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of the whole dataset in `folder`; None where it is still to be made, or to be made anew.

    RuntimeError for a folder that is not as its manifest says, or has none: that is the user's to clear.
    """
    version = dataset.get("version", 1)
    try:
        if not folder.exists() or not any(folder.iterdir()):
            return None
        manifest = read_json(folder / NAME)
        if manifest["version"] != version:
            return None
        found, told = _measure(folder), (manifest["files"], manifest["bytes"])
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RuntimeError(f"{folder} is not of trainmeter's making: it has no {NAME}. {REMEDY}") from error
    except OSError as error:
        raise RuntimeError(
            f"dataset folder {folder} cannot be read: {error}. Check its permissions and its storage, or "
            "give another folder with dataset.root=."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"{folder / NAME} is no manifest: {error!r}. {REMEDY}") from error
    if found != told:
        raise RuntimeError(
            f"dataset folder {folder} holds {found[0]} files of {found[1]} bytes; its manifest tells of "
            f"{told[0]} files of {told[1]} bytes. {_unreadable(folder, dataset)}{REMEDY}"
        )
    return manifest


def _measure(folder: Path) -> tuple[int, int]:
    """The number of files and their bytes: what of the contents can be checked without reading them."""
    sizes = [os.stat(path).st_size for path in _files(folder)]
    return len(sizes), sum(sizes)


def _digest(folder: Path) -> str:
    """SHA-256 over the files in the order of their names: each one's name, size and contents."""
    total = hashlib.sha256()
    for path in sorted(_files(folder)):
        with open(path, "rb") as file:
            total.update(f"{os.path.relpath(path, folder)}\0{os.fstat(file.fileno()).st_size}\0".encode())
            while chunk := file.read(1 << 20):
                total.update(chunk)
    return total.hexdigest()


def _unreadable(folder: Path, dataset: dict[str, Any]) -> str:
    """Names the first image that cannot be read, such as one that was cut short; empty where there is none."""
    if dataset["layout"] != "files":
        return ""
    from PIL import Image

    for path in sorted(_files(folder)):
        try:
            with Image.open(path) as image:
                image.load()
        except Exception as error:  # by format and fault, Pillow raises many kinds
            return f"{path} cannot be read: {error}. "
    return ""


def _files(folder: Path) -> Iterator[str]:
    own = str(folder / NAME)
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending.append(entry.path)
                elif entry.path != own:
                    yield entry.path
