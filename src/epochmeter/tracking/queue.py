"""On-disk queue of runs still to be published: one file per run in `multirun/.queue`.

A run is added before its record exists, and removed when it is published and its record has an end. Every start closes
dead runs of the queue and publishes unpublished ones.
"""

import platform
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from epochmeter.results.reuse import READ_ERRORS
from epochmeter.results.run_status import RUNNING, recorded_status, status_of
from epochmeter.results.sweep_files import sort_key
from epochmeter.shared.record import Record


def multirun_of(record: Record) -> Path:
    """Return the folder of all sweeps that a run belongs to, also for an archived attempt."""
    folder = record.folder.absolute()
    return folder.parents[2 if folder.name.startswith("attempt") else 1]


def enqueue(record: Record, record_id: str) -> None:
    """Add a run that is about to start in the record's folder; a full disk will cause an error later."""
    folder = record.folder.absolute()
    with suppress(OSError):
        entry = _entry(record, record_id)
        entry.parent.mkdir(exist_ok=True)
        partial = entry.with_name(f".{record_id}")
        # The path is relative, as multirun/ may be mounted in a container, or be moved. Not flushed to disk.
        partial.write_text(f"{folder.relative_to(multirun_of(record))}\n")
        partial.replace(entry)


def dequeue(record: Record) -> None:
    """Remove a published run; a run without a recorded end stays, to be closed."""
    with suppress(*READ_ERRORS):
        if recorded_status(record):
            _entry(record, record.run()["record_id"]).unlink()


def pending_runs(multirun: Path) -> Iterator[Record]:
    """Yield the records of queued runs; entries without a record are removed."""
    try:
        entries = [entry for entry in (multirun / ".queue").iterdir() if not entry.name.startswith(".")]
    except OSError:
        return
    for entry in entries:
        with suppress(*READ_ERRORS):
            start = Record(multirun / entry.read_text().strip())
            record = _find_record(entry.name, start)
            if record is None and start.folder.exists():
                with start.locked():  # another process may be starting a run there
                    record = _find_record(entry.name, start)
            if record:
                yield record
            else:
                entry.unlink()


def running_sweeps(multirun: Path) -> list[Path]:
    """Return the folders of sweeps of which a run is running on this host, by name. The queue is only read."""
    sweeps = set()
    for entry in (multirun / ".queue").glob("[!.]*"):
        with suppress(*READ_ERRORS):
            record = Record(multirun / entry.read_text().strip())
            # A run of another host is assumed to be running, also if it was killed.
            if status_of(record) == RUNNING and record.run()["host"] == platform.node():
                sweeps.add(record.folder.parent)
    return sorted(sweeps, key=lambda sweep: sort_key(sweep.name))


def _entry(record: Record, record_id: str) -> Path:
    return multirun_of(record) / ".queue" / record_id


def _find_record(record_id: str, start: Record) -> Record | None:
    """Return that run's record: where it started, or in the archive of a later attempt."""
    for record in chain([start], start.attempts()):
        with suppress(*READ_ERRORS):
            if record.run()["record_id"] == record_id:
                return record
    return None
