"""A dataset is ready on its storage before its run begins."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from trainmeter.datasets import manifest
from trainmeter.datasets.make import Say

SOURCES = str(Path(__file__).parents[2])


def ready(dataset: dict[str, Any], storage: dict[str, Any], root: Path, say: Say) -> dict[str, Any]:
    """The dataset's manifest, with the `folder` it lies in; relative folders are relative to `root`.

    A dataset that is there is checked at little cost: the number of its files, and their bytes. One that is
    not is made by a process of its own, so that nothing it imports or holds stays with the steward.
    """
    _check_root(storage["root"], root)
    folder = root / dataset["root"]
    found = manifest.fitting(folder, dataset)
    if found is None:
        _make(dataset, folder, say)
        found = manifest.fitting(folder, dataset)
    assert found, "a maker that ended well has left a whole dataset"
    return {**found, "name": dataset["name"], "folder": str(folder)}


def _check_root(place: str, root: Path) -> None:
    """A storage outside the project has to be there: made here, it would be a folder of another disk."""
    if Path(place).is_absolute() and not Path(place).is_dir():
        raise ValueError(
            f"storage.root={place} is not there, or is no folder. Mount the medium, or give a folder that is."
        )


def _make(dataset: dict[str, Any], folder: Path, say: Say) -> None:
    command = [sys.executable, "-m", "trainmeter.datasets", json.dumps(dataset), str(folder)]
    path = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as errors:
        maker = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            for line in maker.stdout or ():
                say(line.rstrip())
            code = maker.wait()
        except BaseException:
            maker.terminate()
            maker.wait()
            raise
        if code != 0:
            errors.seek(0)
            why = errors.read().strip() or f"making dataset {dataset['name']} ended with exit code {code}."
            raise (ValueError if code == 2 else RuntimeError)(why)
