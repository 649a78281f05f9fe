"""The runs of which something is still to be told, as a queue on the disk: a file each in `multirun/.queue`.

    put ....... as a run begins, before its record tells of it
    waiting ... asked by every start, and by `make publish`: who died is closed, what MLflow lacks is published
    drop ...... once a run is shown where it is meant to be; it stays while its record tells no end

A board that is offline for days leaves its runs here, and the next start that finds the server publishes them. The
queue tells what to look at and nothing else: a lost one is made up for by `make publish`, which looks at every record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from epochmeter.results.run_status import said
from epochmeter.shared.record import Record

UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""What reading a broken record raises."""


def multirun_of(record: Record) -> Path:
    """The folder of all sweeps that a run belongs to, also where it was set aside."""
    folder = record.folder.absolute()
    return folder.parents[2 if folder.name.startswith("attempt") else 1]


def put(record: Record, record_id: str) -> None:
    """Notes that a run begins in the record's folder.

    It begins also where that cannot be noted: what keeps a small file from being written will tell of itself.
    """
    folder = record.folder.absolute()
    with suppress(OSError):
        entry = _entry(record, record_id)
        entry.parent.mkdir(exist_ok=True)
        partial = entry.with_name(f".{record_id}")
        # Relative: multirun/ may be looked at from a container, or be moved. The disk is not waited for.
        partial.write_text(f"{folder.relative_to(multirun_of(record))}\n")
        partial.replace(entry)


def drop(record: Record) -> None:
    """Notes that all is shown of the record's run; one whose end could not be written stays, to be closed."""
    with suppress(*UNREADABLE):
        if said(record):
            _entry(record, record.run()["record_id"]).unlink()


def waiting(multirun: Path) -> Iterator[Record]:
    """The records of the runs in the queue; an entry of which nothing is there is removed."""
    for entry in _entries(multirun):
        with suppress(*UNREADABLE):
            begun = Record(multirun / entry.read_text().strip())
            record = _of(entry.name, begun) or _settled(entry.name, begun)
            if record:
                yield record
            else:
                entry.unlink()


def _entry(record: Record, record_id: str) -> Path:
    return multirun_of(record) / ".queue" / record_id


def _entries(multirun: Path) -> list[Path]:
    try:
        return [entry for entry in (multirun / ".queue").iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []


def _of(record_id: str, begun: Record) -> Record | None:
    """The record of that run: where it began, or where a later attempt has set it aside."""
    for record in chain([begun], begun.attempts()):
        with suppress(*UNREADABLE):
            if record.run()["record_id"] == record_id:
                return record
    return None


def _settled(record_id: str, begun: Record) -> Record | None:
    """The same, once nobody is beginning a run there any more."""
    if not begun.folder.exists():
        return None
    with begun.alone():
        return _of(record_id, begun)
