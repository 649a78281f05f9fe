"""The log of one thread: events in memory-mapped files, which outlive the process."""

import itertools
import mmap
import os
import struct
from typing import Callable, Iterator, Optional, Union

from epochmeter.agent.frames import Suppressed
from epochmeter.shared.events import LOST, MAX_SEGMENTS, RECORD, SEGMENT_BYTES, SEGMENT_RECORDS

pack_into = RECORD.pack_into


class EventLog:
    """Writes the events of one thread; a write takes less than a microsecond and makes no system call.

    The disk space of a segment is reserved when it is created, since a write to a file's hole on a full disk would
    end the process. Without space, or if the controller does not read, events are lost and counted: behind the last
    file's events, and in the next file if there is one.
    """

    before_write: Optional[Callable[[], object]] = None
    """Writes earlier events that were only noted."""
    _segment: Union[mmap.mmap, bytearray]
    _offsets: Iterator[int]

    def __init__(self, folder: str, name: str) -> None:
        self._path = os.path.join(folder, name)
        self._number = self._oldest = 0  # of the next segment, and of the oldest that may be unread
        self._lost = 0
        self._begin_segment()

    def write(
        self,
        kind: int,
        time_ns: int,
        begun_ns: int = 0,
        value: float = 0.0,
        thing: int = 0,
        other: int = 0,
        number: int = 0,
        detail: int = 0,
        flags: int = 0,
    ) -> None:
        """Write an event with the fields of `Event`, from several threads or signal handlers at a time too."""
        if self.before_write is not None:
            self.before_write()
        try:
            pack_into(
                self._segment, next(self._offsets), time_ns, begun_ns, value, thing, other, number, detail, flags, kind
            )
        except struct.error:
            if next(self._offsets) < SEGMENT_BYTES:
                raise  # a value is out of range
            self._begin_segment()
            self.write(kind, time_ns, begun_ns, value, thing, other, number, detail, flags)

    def _begin_segment(self) -> None:
        while self._oldest < self._number and not os.path.exists(self._segment_path(self._oldest)):
            self._oldest += 1
        segment = None
        if self._number - self._oldest < MAX_SEGMENTS:
            with Suppressed(OSError):
                segment = self._created(self._segment_path(self._number))
        self._offsets = itertools.count(0, RECORD.size)
        if segment is None:
            self._lost += SEGMENT_RECORDS
            self._note_loss()
            self._segment = bytearray(SEGMENT_BYTES)  # a file is tried again when this is full
            return
        self._segment = segment
        self._number += 1
        if self._lost:
            pack_into(segment, next(self._offsets), 0, 0, float(self._lost), 0, 0, 0, 0, 0, LOST)
            self._lost = 0

    def _note_loss(self) -> None:
        """Write how many events are lost into the room behind those of the last file, if there is one."""
        with Suppressed(OSError):
            descriptor = os.open(self._segment_path(self._number - 1), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, RECORD.pack(0, 0, float(self._lost), 0, 0, 0, 0, 0, LOST), SEGMENT_BYTES)
            finally:
                os.close(descriptor)

    def _segment_path(self, number: int) -> str:
        return "{}.{}".format(self._path, number)

    @staticmethod
    def _created(path: str) -> mmap.mmap:
        """Return a new mapped file with reserved disk space; OSError without space."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                os.posix_fallocate(descriptor, 0, SEGMENT_BYTES + RECORD.size)
                return mmap.mmap(descriptor, SEGMENT_BYTES)
            except OSError:
                os.unlink(path)
                raise
        finally:
            os.close(descriptor)
