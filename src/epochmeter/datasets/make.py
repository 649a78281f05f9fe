"""Create a dataset atomically, or inspect a user's dataset without changing it."""

from pathlib import Path
from typing import Literal, cast

from epochmeter.config.schema import Dataset
from epochmeter.datasets import manifest
from epochmeter.datasets.atomic_folder import create_atomically, folder_lock, remove_leftovers
from epochmeter.datasets.disk_space import check_free_space, explain_write_errors
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify
from epochmeter.shared.instantiate import instantiate_spec


def make(dataset: Dataset, folder: Path, say: Notify) -> None:
    """Create the dataset in `folder`, unless another process has just done so.

    The function named by `dataset.make` is called with an empty folder to fill and with `say`, and returns `Facts`.
    Files to keep for the next time, such as archives, go next to that folder.

    Raises:
        ValueError: The configuration is wrong.
        RuntimeError: The disk is full or not writable.
    """
    with explain_write_errors(folder.parent, f"dataset {dataset.name}"), folder_lock(folder, say):
        if manifest.load_valid(folder, dataset) is not None:
            return
        remove_leftovers(folder)  # before the space is checked
        check_free_space(folder.parent, dataset.space_bytes or 0, f"dataset {dataset.name}")
        say(f"preparing dataset {dataset.name} in {folder}")
        with create_atomically(folder) as partial:
            facts = _get_facts(dataset, "make", partial, say)
            manifest.describe_folder(partial, dataset, facts, "make").write(partial / manifest.MANIFEST_NAME)


def adopt(dataset: Dataset, folder: Path, user_manifest: Path, say: Notify) -> None:
    """Inspect a user's folder, without changing it, and write its manifest to the file `user_manifest`.

    The function named by `dataset.adopt` is called with the folder and with `say`, and returns `Facts`.
    """
    with manifest.explain_read_errors(folder):
        say(f"inspecting dataset {dataset.name} in {folder}")
        facts = _get_facts(dataset, "adopt", folder, say)
        description = manifest.describe_folder(folder, dataset, facts, "adopt")
    with explain_write_errors(user_manifest.parent, f"the manifest of dataset {dataset.name}"):
        description.write(user_manifest)


def _get_facts(dataset: Dataset, action: Literal["make", "adopt"], folder: Path, say: Notify) -> Facts:
    """Call the dataset's function on the folder and return its facts; ValueError if some are missing."""
    spec = getattr(dataset, action)
    returned = instantiate_spec(spec, folder, say=say)
    facts = cast("Facts", returned if isinstance(returned, dict) else {})
    missing = [f"splits.{split}" for split in ("train", "val") if split not in facts.get("splits", {})]
    if dataset.classes is not None and "classes" not in facts:
        missing.append("classes")
    if missing:
        raise ValueError(
            f"dataset {dataset.name}: {spec['_target_']} returned {type(returned).__name__} without "
            f"{', '.join(missing)}. See docs/extending.md for the return value."
        )
    return facts
