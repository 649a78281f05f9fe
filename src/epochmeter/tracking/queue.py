"""On-disk queue of runs still to be published: one file per run in `multirun/.queue`.

A run is added before its record exists, and removed when it is published and its record has an end. Every start closes
dead runs of the queue and publishes unpublished ones. A run that was published at another address than its own has a
file in `multirun/.published`; one that was exported to another tracker has a file in `multirun/.exported`.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.run_status import RUNNING
from epochmeter.results.sweep_order import start_key
from epochmeter.shared.record import Record
from epochmeter.shared.record_files import MAX_JSON_BYTES, read_bytes


def multirun_of(record: Record) -> Path:
    """Return the folder of all sweeps that a run belongs to, also for an archived attempt."""
    folder = record.folder.absolute()
    return folder.parents[2 if folder.name.startswith("attempt") else 1]


def enqueue(record: Record, record_id: str) -> None:
    """Add a run that is about to start in the record's folder; a full disk will cause an error later."""
    folder = record.folder.absolute()
    with suppress(OSError):
        file = _entry(record, record_id)
        file.parent.mkdir(exist_ok=True)
        partial = file.with_name(f".{file.name}")
        # The path is relative, as multirun/ may be mounted in a container, or be moved. Not flushed to disk.
        partial.write_text(f"{folder.relative_to(multirun_of(record))}\n")
        partial.replace(file)


def dequeue(record: Record) -> None:
    """Remove a published run; a run without a recorded end stays, to be closed."""
    with suppress(*READ_ERRORS):
        run_folder = RunFolder(record.folder)
        if run_folder.recorded_end:
            _entry(record, run_folder.run.record_id).unlink()


def pending_runs(multirun: Path) -> Iterator[Record]:
    """Yield the records of queued runs; entries without a record are removed."""
    try:
        entries = [file for file in (multirun / ".queue").iterdir() if not file.name.startswith(".")]
    except OSError:
        return
    for file in entries:
        with suppress(*READ_ERRORS):
            start = Record(multirun / _started_in(file))
            record = _find_record(file.name, start)
            if record is None and start.folder.exists():
                with start.locked():  # another process may be starting a run there
                    record = _find_record(file.name, start)
            if record:
                yield record
            else:
                file.unlink()


def running_sweeps(multirun: Path) -> list[Path]:
    """Return the folders of sweeps of which a run is running on this host, the newest last. The queue is only read."""
    sweeps = set()
    for file in (multirun / ".queue").glob("[!.]*"):
        with suppress(*READ_ERRORS):
            run_folder = RunFolder(multirun / _started_in(file))
            # A run of another host is assumed to be running, also if it was killed.
            if run_folder.state == RUNNING and run_folder.run.host == platform.node():
                sweeps.add(run_folder.path.parent)
    return sorted(sweeps, key=start_key)


def mark_published(record: Record, address: str) -> None:
    """Note that a finished run is published at another address than its own, which may no longer exist."""
    with suppress(*READ_ERRORS):
        mark = _mark(record)
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(address)
        dequeue(record)


def is_published_elsewhere(record: Record) -> bool:
    """Return whether a run is published at another address than its own."""
    with suppress(*READ_ERRORS):
        return _mark(record).exists()
    return False


def mark_exported(record: Record, exporter: str, state: str | None) -> None:
    """Note that a run is exported to another tracker in this state; None: not at all, as another export begins."""
    with suppress(*READ_ERRORS):
        mark = _export_mark(record, exporter)
        if state is None:
            mark.unlink(missing_ok=True)
            return
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(state)


def is_exported(record: Record, exporter: str) -> bool:
    """Return whether a run is exported to another tracker in its present state."""
    with suppress(*READ_ERRORS):
        return read_bytes(_export_mark(record, exporter), MAX_JSON_BYTES).decode() == RunFolder(record.folder).state
    return False


def _started_in(file: Path) -> str:
    """Return the folder, relative to multirun/, in which a queued run started."""
    return read_bytes(file, MAX_JSON_BYTES).decode().strip()


def _entry(record: Record, record_id: str) -> Path:
    return _state_file(record, ".queue", record_id)


def _mark(record: Record) -> Path:
    return _state_file(record, ".published", RunFolder(record.folder).run.record_id)


def _export_mark(record: Record, exporter: str) -> Path:
    mark = _state_file(record, ".exported", RunFolder(record.folder).run.record_id)
    return mark.with_name(f"{mark.name}.{quote(exporter, safe='')}")


def _state_file(record: Record, folder: str, record_id: str) -> Path:
    return multirun_of(record) / folder / os.path.basename(record_id)  # of a foreign record: maybe a path


def _find_record(record_id: str, start: Record) -> Record | None:
    """Return that run's record: where it started, or in the archive of a later attempt."""
    for record in chain([start], start.attempts()):
        with suppress(*READ_ERRORS):
            if RunFolder(record.folder).run.record_id == record_id:
                return record
    return None
