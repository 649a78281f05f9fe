"""CIFAR-10 from its archive, as torchvision lays it out."""

import pickle
import tarfile
from pathlib import Path
from typing import Any

from trainmeter.datasets.fetch import fetch
from trainmeter.datasets.make import Say


def make(folder: Path, url: str, md5: str, say: Say) -> dict[str, Any]:
    """Unpacks the archive that lies beside `folder`, fetched first if it does not."""
    archive = folder.parent / url.rpartition("/")[2]
    fetch(url, archive, md5, say)
    say(f"unpacking {archive}")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        batches = folder / "cifar-10-batches-py"
        return {
            "splits": {
                "train": sum(len(_load(path)["labels"]) for path in sorted(batches.glob("data_batch_*"))),
                "val": len(_load(batches / "test_batch")["labels"]),
            },
            "classes": len(_load(batches / "batches.meta")["label_names"]),
            "channels": 3,
            "source": url,
        }
    except (tarfile.TarError, pickle.UnpicklingError, EOFError, KeyError, FileNotFoundError) as error:
        raise ValueError(
            f"{archive} is not the archive of CIFAR-10's Python version: {error}. Remove it, and place "
            f"the one from {url}."
        ) from error


def _load(path: Path) -> dict[str, Any]:
    """A batch; pickles run what they please, and this one's archive has had its checksum verified."""
    with open(path, "rb") as file:
        return pickle.load(file, encoding="latin1")
