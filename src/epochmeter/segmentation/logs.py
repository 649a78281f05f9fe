"""The logs of a script's processes, read while they are written."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from epochmeter.shared.events import COLLATED, LOAD_FAILED, LOADED, LOST, RECORD, SEGMENT_BYTES, Event

CHUNK_BYTES = 256 * RECORD.size
KIND = RECORD.size - 1  # position of the kind in a record, which is 0 until the record is written
MAX_HOLE = 64  # number of records after an unwritten one that are looked at, as a signal may have interrupted the write


class ThreadLog:
    """The log of one thread. It can be pickled, and is then read from the same position."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._oldest = self._segment = self._offset = 0  # the oldest file that is not forgotten, and the position
        self._descriptor: int | None = None
        self._seen = 0  # number of written records from the offset on, at the last read
        self._is_hole = False  # whether the record at the offset was unwritten, but a later one was not

    def read(self, *, is_at_rest: bool) -> Iterator[Event]:
        """Yield the new events.

        An event is returned at the second read after it was written, since a write may be under way during the first.
        `is_at_rest`: the process has ended, or waits; then all events are returned.
        """
        while self._open():
            written = self._written()
            self._is_hole = self._is_hole and not written
            count = len(written) if is_at_rest else min(self._seen, len(written))
            yield from written[:count]
            self._offset += count * RECORD.size
            self._seen = len(written) - count
            if self._offset < SEGMENT_BYTES and not self._skipped_hole(is_at_rest=is_at_rest):
                return
            if self._offset == SEGMENT_BYTES:
                self._close()

    def lost_at_end(self) -> float:
        """Return how many events were lost, at least, after the last one of a process that has ended."""
        if self._descriptor is not None or self._segment == self._oldest:
            return 0.0
        with open(self._file(self._segment - 1), "rb") as file:
            file.seek(SEGMENT_BYTES)
            behind = file.read(RECORD.size)
        event = Event._make(RECORD.unpack(behind)) if len(behind) == RECORD.size else None
        return event.value if event and event.kind == LOST else 0.0

    def close(self) -> None:
        """End reading."""
        if self._descriptor is not None:
            self._close()

    @property
    def read_count(self) -> int:
        """Number of files that were read to their end, and are not forgotten."""
        return self._segment - self._oldest

    def forget(self) -> list[Path]:
        """Forget the files that were read to their end, and return them."""
        read = [self._file(number) for number in range(self._oldest, self._segment)]
        self._oldest = self._segment
        return read

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_descriptor": None}

    def _open(self) -> bool:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._file(self._segment), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
        return True

    def _close(self) -> None:
        assert self._descriptor is not None
        os.close(self._descriptor)
        self._descriptor, self._offset, self._seen = None, 0, 0
        self._segment += 1

    def _file(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _written(self) -> list[Event]:
        """Return the written events from the offset up to the first record that is not written."""
        assert self._descriptor is not None
        events: list[Event] = []
        offset = self._offset
        while chunk := os.pread(self._descriptor, min(CHUNK_BYTES, SEGMENT_BYTES - offset), offset):
            records = len(chunk) // RECORD.size
            kinds = chunk[KIND :: RECORD.size]
            written = kinds.find(0) if 0 in kinds else records
            events += map(Event._make, RECORD.iter_unpack(chunk[: written * RECORD.size]))
            if written < records or records == 0:
                break
            offset += records * RECORD.size
        return events

    def _skipped_hole(self, *, is_at_rest: bool) -> bool:
        """Skip a record that stays unwritten while later ones are written; return whether it was skipped."""
        if self._seen:
            return False
        assert self._descriptor is not None
        ahead = os.pread(self._descriptor, MAX_HOLE * RECORD.size, self._offset)
        was_hole, self._is_hole = self._is_hole, any(ahead[KIND :: RECORD.size])
        if not (self._is_hole and (was_hole or is_at_rest)):
            return False
        self._offset += RECORD.size
        self._is_hole = False
        return True


class LoadsFile:
    """The events that DataLoader workers have appended, up to the first damaged one, as on a full disk."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._is_damaged = False

    def read(self) -> Iterator[Event]:
        """Yield the new events."""
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            while not self._is_damaged and len(record := file.read(RECORD.size)) == RECORD.size:
                event = Event._make(RECORD.unpack(record))
                is_known = event.kind in (LOADED, COLLATED, LOAD_FAILED)
                self._is_damaged = not (is_known and 0 < event.begun_ns <= event.time_ns)
                if not self._is_damaged:
                    self._offset += RECORD.size
                    yield event


class FactsFile:
    """The facts that a process has written, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> Iterator[Mapping[str, Any]]:
        """Yield the new facts; a line that is not complete, or damaged, is left out."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                lines = file.read()
        except FileNotFoundError:
            return
        complete = lines[: lines.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            try:
                facts = json.loads(line)
            except ValueError:
                continue
            if isinstance(facts, dict):
                yield facts
