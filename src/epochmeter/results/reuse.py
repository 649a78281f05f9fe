"""Reuse of completed runs: a sweep refers to a run of the same identity, whatever command measured it.

The folder of such a run has `reused.json` in place of a record: the reused run, and the overrides of the new run.
The identity covers the configuration, the dataset, the host and its GPUs. It does not cover code, drivers and
libraries, nor the state of the machine.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.record import Record, is_partial

REFERENCE = "reused.json"
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""Exceptions raised by reading a damaged record or reference."""


@lru_cache(maxsize=1)
def reuse_pool(sweep: Path) -> dict[str, list[Path]]:
    """Return the completed runs next to a sweep by identity, the earliest first, without runs that it references."""
    references = [record for path in sweep.glob(f"*/{REFERENCE}") if (record := referenced_record(path.parent))]
    used = {(record.folder.parent.name, record.folder.name) for record in references}
    ends: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for path in sweep.parent.glob("[!.]*/[0-9]*/completed.json"):
        folder = path.parent
        if folder.parent != sweep and (folder.parent.name, folder.name) not in used:
            with suppress(*READ_ERRORS):
                completion = read_json(path)
                ends[completion["identity"]].append((completion["finished"], folder))
    return {identity: [folder for _, folder in sorted(own)] for identity, own in ends.items()}


def find_completed(folder: Path, identity: str) -> Record | None:
    """Return the referenced run if it still has this identity, else a completed run that is not referenced yet."""
    record = referenced_record(folder)
    if record and read_json(record.folder / "completed.json").get("identity") == identity:
        return record
    unused = reuse_pool(folder.parent).get(identity, [])  # of the cache, so that no run is returned twice
    while unused:
        if is_usable(record := Record(unused.pop(0)), identity):
            return record
    return None


def is_usable(record: Record, identity: str) -> bool:
    """Return whether a run can be reused: completed, not a rehearsal, its record undamaged."""
    try:
        run, windows, summary = record.run(), record.windows(), record.summary()
        epochs = [window for window in windows if window["window"] == "epoch"]
        return (
            record.is_completed(identity)
            and run["identity"] == identity
            and not run["rehearsal"]
            and summary["state"] == "completed"
            and summary["metrics"]["total/epochs"] == sum(not is_partial(epoch) for epoch in epochs)
            and record.is_complete(windows, len(epochs), record.job()["evaluate"])
        )
    except READ_ERRORS:
        return False


def write_reference(folder: Path, record: Record, overrides: Sequence[str]) -> None:
    """Write a reference to a completed run into a run's folder; the record of an earlier attempt is archived."""
    origin, reference = record.folder.resolve(), read_reference(folder)
    if reference and reference["folder"] == str(origin):
        return
    own = Record(folder)
    with own.locked():
        own.archive_attempt()
    write_json(
        folder / REFERENCE,
        {
            "run": f"{origin.parent.name}/{origin.name}",
            "folder": str(origin),
            "record_id": record.run()["record_id"],
            "overrides": list(overrides),
            "referred": datetime.now().astimezone().isoformat(timespec="seconds"),
        },
    )


def read_reference(folder: Path) -> Mapping[str, Any] | None:
    """Return the contents of a run's `reused.json`; None for a run with its own record."""
    if (folder / "job.json").exists():
        return None
    try:
        return read_json(folder / REFERENCE)
    except (OSError, ValueError):
        return None


def referenced_record(folder: Path) -> Record | None:
    """Return the completed run that a run's folder references, also if all sweeps were moved; None if it is gone."""
    if reference := read_reference(folder):
        with suppress(*READ_ERRORS):
            for origin in (folder.absolute().parents[1] / reference["run"], Path(reference["folder"])):
                record = Record(origin)
                if record.is_completed() and record.run()["record_id"] == reference["record_id"]:
                    return record
    return None


def measured_commit(record: Record) -> str | None:
    """Return the git commit at which a run was measured; None if it is not recorded."""
    with suppress(*READ_ERRORS):
        return str(record.host()["git"]["commit"])
    return None


def is_run(folder: Path) -> bool:
    """Return whether a folder has a record or a reference to one, or may not be read."""
    try:
        return (folder / "job.json").exists() or (folder / REFERENCE).exists()
    except PermissionError:
        return True


def record_of(folder: Path) -> Record:
    """Return the record of a run: its own, or that of the reused run."""
    return referenced_record(folder) or Record(folder)
