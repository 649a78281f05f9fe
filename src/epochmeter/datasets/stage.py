"""Stage a dataset: copy it from its home to the storage device to train from, and verify the copy."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from functools import partial
from os.path import dirname, join
from pathlib import Path

from epochmeter.config.schema import Dataset
from epochmeter.datasets import checksum, manifest
from epochmeter.datasets.atomic_folder import create_atomically, explain_errors, folder_lock
from epochmeter.datasets.checksum import MANIFEST_NAME, Checksum
from epochmeter.datasets.manifest import Manifest
from epochmeter.datasets.progress import MB, Notify, Progress


def stage(dataset: Dataset, home: Path, original: Manifest, folder: Path, say: Notify) -> None:
    """Copy the dataset to `folder`, unless another process just did; RuntimeError if the copy differs from `home`."""
    activity = f"staging dataset {dataset.name}"
    with explain_errors(f"write dataset {dataset.name} to {folder.parent}"), folder_lock(folder, say):
        if existing_copy(folder, dataset, home, original) is not None:
            return
        with create_atomically(folder) as copy:
            if original.bytes > (free_bytes := shutil.disk_usage(copy).free):
                raise OSError(errno.ENOSPC, f"{original.bytes / 1e6:,.1f} MB needed, {free_bytes / 1e6:,.1f} MB free")
            say(f"{activity} from {home} to {folder}: {original.files} files, {original.bytes / 1e6:.1f} MB")
            progress = Progress(activity, say, original.bytes, MB)
            task, is_users = partial(_copy_and_hash, copy), original.digest_of == manifest.NAMES_AND_SIZES
            total = checksum.sum_files(home, task, is_users, lambda done: progress.update(done.bytes))
            if is_users:
                total = checksum.sum_files(copy, checksum.hash_name_and_size)
            _compare_with_manifest(home, original, total)
            replace(original, staged_from=str(home)).write(copy / MANIFEST_NAME)


def existing_copy(folder: Path, dataset: Dataset, home: Path, original: Manifest | None) -> Manifest | None:
    """Return the manifest of the complete copy in `folder`; None if it must be staged, or staged again.

    With an `original` of None, any complete copy is accepted. Raises RuntimeError if `folder` is no copy of `home`.
    """
    copy = manifest.load_valid(folder, dataset)
    if copy and (original is None or copy.digest == original.digest):
        return copy
    existing = manifest.try_read_manifest(folder / MANIFEST_NAME)
    if existing and existing.staged_from != str(home):
        origin = existing.staged_from or "the function that made it there"
        raise RuntimeError(f"{folder} is not overwritten: its dataset is from {origin}. {manifest.REMEDY}")
    return None


def _copy_and_hash(copy: Path, home: Path, path: str) -> Checksum:
    os.makedirs(join(copy, dirname(path)), exist_ok=True)
    shutil.copyfile(join(home, path), join(copy, path))
    return checksum.hash_contents(copy, path)


def _compare_with_manifest(home: Path, original: Manifest, total: Checksum) -> None:
    if (total.files, total.bytes, total.hexdigest) != (original.files, original.bytes, original.digest):
        suffix = ", with other contents" if (total.files, total.bytes) == (original.files, original.bytes) else ""
        raise RuntimeError(
            f"dataset folder {home} has {total.files} files of {total.bytes} bytes; its manifest lists "
            f"{original.files} files of {original.bytes} bytes{suffix}. {manifest.REMEDY}"
        )
