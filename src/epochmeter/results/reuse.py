"""Reuse of completed runs: a sweep refers to a run of the same identity, whatever command measured it.

The folder of such a run has `reused.json` in place of a record: the reused run, and the overrides of the new run.
The identity covers the configuration, the dataset, the host and its GPUs. It does not cover code, drivers and
libraries, nor the state of the machine.
"""

import heapq
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path

from epochmeter.results import documents
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.run_info import RunInfo
from epochmeter.results.run_status import COMPLETED
from epochmeter.results.sweep_order import StartKey, start_key
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import COMPLETED_FILE, JOB_FILE, REFERENCE_FILE, Record, is_partial
from epochmeter.shared.types import Document

MAX_EXAMINED = 1000  # completed runs whose records are read for what they measured


@lru_cache(maxsize=1)
def reuse_pool(sweep: Path) -> dict[str, list[Path]]:
    """Return the completed runs next to a sweep by identity, in order of their start, without those it references."""
    references = [record for path in sweep.glob(f"*/{REFERENCE_FILE}") if (record := referenced_record(path.parent))]
    used = {(record.folder.parent.name, record.folder.name) for record in references}
    ends: dict[str, list[tuple[StartKey, str, Path]]] = defaultdict(list)
    key_of = cache(start_key)
    for path in sweep.parent.glob(f"[!.]*/[0-9]*/{COMPLETED_FILE}"):
        folder = path.parent
        is_used = folder.parent == sweep or (folder.parent.name, folder.name) in used
        if not is_used and (completion := RunFolder(folder).completion):
            ends[completion["identity"]].append((key_of(folder.parent), completion.get("finished", ""), folder))
    return {identity: [folder for *_, folder in sorted(completions)] for identity, completions in ends.items()}


@lru_cache(maxsize=1)
def completed_runs(sweep: Path) -> list[tuple[Document, RunInfo]]:
    """Return job and metadata of the newest completed runs in a sweep and next to it, as far as they can be read."""
    runs, key_of = [], cache(start_key)
    paths = sweep.parent.glob(f"[!.]*/[0-9]*/{COMPLETED_FILE}")
    for path in heapq.nlargest(MAX_EXAMINED, paths, key=lambda path: key_of(path.parents[1])):
        run_folder = RunFolder(path.parent)
        with suppress(*READ_ERRORS):
            runs.append((run_folder.job, run_folder.run))
    return runs


def recorded_digests(sweep: Path, dataset: str) -> list[str]:
    """Return the checksums with which completed runs in a sweep and next to it have recorded a dataset."""
    found: list[str] = []
    for job, run in completed_runs(sweep):
        with suppress(*READ_ERRORS):
            if job["dataset"]["name"] == dataset and run.dataset:
                found.append(run.dataset["digest"])
    return list(dict.fromkeys(found))


def find_completed(folder: Path, identity: str) -> Record | None:
    """Return the referenced run if it still has this identity, else a completed run that is not referenced yet."""
    record = referenced_record(folder)
    if record and record.is_completed(identity):
        return record
    unused = reuse_pool(folder.parent).get(identity, [])  # of the cache, so that no run is returned twice
    while unused:
        if is_usable(record := Record(unused.pop(0)), identity):
            return record
    return None


def is_usable(record: Record, identity: str) -> bool:
    """Return whether a run can be reused: completed, not a rehearsal, its record undamaged."""
    run_folder = RunFolder(record.folder)
    try:
        windows, summary = run_folder.all_windows, run_folder.summary
        epochs = [window for window in windows if window["window"] == "epoch"]
        return (
            run_folder.completion is not None
            and run_folder.completion["identity"] == run_folder.run.identity == identity
            and not run_folder.run.rehearsal
            and summary is not None
            and summary["state"] == COMPLETED
            and summary["metrics"]["total/epochs"] == sum(not is_partial(epoch) for epoch in epochs)
            and record.is_complete(windows, len(epochs), run_folder.job["evaluate"])
        )
    except READ_ERRORS:
        return False


def write_reference(folder: Path, record: Record, overrides: Sequence[str]) -> None:
    """Write a reference to a completed run into a run's folder; the record of an earlier attempt is archived."""
    origin, reference = record.folder.resolve(), read_reference(folder)
    if reference and reference["folder"] == str(origin):
        return
    own_record = Record(folder)
    with own_record.locked():
        own_record.archive_attempt()
    write_json(
        folder / REFERENCE_FILE,
        {
            "run": f"{origin.parent.name}/{origin.name}",
            "folder": str(origin),
            "record_id": RunFolder(record.folder).run.record_id,
            "overrides": list(overrides),
            "referred": datetime.now().astimezone().isoformat(timespec="seconds"),
        },
    )


def read_reference(folder: Path) -> documents.Reference | None:
    """Return the contents of a run's `reused.json`; None for a run with its own record."""
    if (folder / JOB_FILE).exists():
        return None
    try:
        reference: documents.Reference = documents.read(folder / REFERENCE_FILE, documents.Reference)
        return reference
    except (OSError, ValueError):
        return None


def referenced_record(folder: Path) -> Record | None:
    """Return the completed run that a run's folder references, also if all sweeps were moved; None if it is gone."""
    if reference := read_reference(folder):
        with suppress(*READ_ERRORS):
            for origin in (folder.absolute().parents[1] / reference["run"], Path(reference["folder"])):
                run_folder = RunFolder(origin)
                if run_folder.completion and run_folder.run.record_id == reference["record_id"]:
                    return run_folder.record
    return None


def measured_commit(record: Record) -> str | None:
    """Return the git commit at which a run was measured; None if it is not recorded."""
    return (RunFolder(record.folder).host.get("git") or {}).get("commit")


def is_run(folder: Path) -> bool:
    """Return whether a folder has a record or a reference to one, also a damaged one, or may not be read."""
    for name in (JOB_FILE, REFERENCE_FILE):
        try:
            os.lstat(f"{folder}/{name}")  # many times as fast as a path's
            return True
        except PermissionError:
            return True
        except (OSError, ValueError):  # there is none
            continue
    return False


def record_of(folder: Path) -> Record:
    """Return the record of a run: its own, or that of the reused run."""
    return referenced_record(folder) or Record(folder)
