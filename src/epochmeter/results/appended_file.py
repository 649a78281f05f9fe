"""Files of a record that grow: only the part appended since the last look is read, and no file is kept open."""

import os
from collections.abc import Sequence
from pathlib import Path

from epochmeter.results.documents import Window
from epochmeter.results.run_folder import parse_window, unreadable_lines
from epochmeter.shared.record import WINDOWS_FILE, step_count
from epochmeter.shared.record_files import open_file

MAX_HEADER_BYTES = 2**16


class AppendedFile:
    """A file, not necessarily there, to which another process appends lines; at most the newest bytes are read.

    `first_line` is its first line, at most `MAX_HEADER_BYTES` of it. `error` is why it cannot be read; empty if it can,
    or is not there.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self.first_line = b""
        self.error = ""
        self._max_bytes = max_bytes
        self._inode, self._end = 0, 0

    def new_lines(self) -> tuple[list[bytes], bool]:
        """Return the complete lines since the last call, and whether the file is another one than before."""
        self.error = ""
        try:
            with open_file(self.path) as file:
                status = os.fstat(file.fileno())
                is_new = status.st_ino != self._inode or status.st_size < self._end
                if is_new:
                    begin = file.read(MAX_HEADER_BYTES)
                    self.first_line, newline, _ = begin.partition(b"\n")
                    if not newline and len(begin) < MAX_HEADER_BYTES:
                        return [], False
                earlier_end = 0 if is_new else self._end
                start = max(earlier_end, status.st_size - (self._max_bytes or status.st_size))
                file.seek(start)
                content = file.read(status.st_size - start) or b""  # may be less, as on NFS
        except FileNotFoundError:
            return [], False
        except OSError as error:
            self.error = f"{self.path.name} cannot be read: {error.strerror}"
            return [], False
        # Noted after the file was read: after an error, it is new once more.
        self._inode = status.st_ino
        *lines, partial = content.split(b"\n")
        if start > earlier_end:  # it starts within a line
            lines = lines[1:]
        self._end = start + len(content) - len(partial)
        return lines, is_new


class WindowLog:
    """The windows of a record as they are recorded, for a reader that needs each once, in order.

    A window is parsed once, and forgotten when the reader has it: the cost of a look does not depend on the number of
    earlier windows.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / WINDOWS_FILE
        self._begin()

    def _begin(self) -> None:
        self._file = AppendedFile(self._path)
        self._windows: list[Window] = []  # those that the reader does not have
        self._earlier, self._steps = 0, 0  # number of windows, and their steps, before these

    def after(self, count: int) -> tuple[Sequence[Window], int]:
        """Return the closed windows after the first `count`, and the number of steps before them.

        Raises:
            OSError: They cannot be read.
            ValueError: One is damaged: whose steps follow is not known.
        """
        if count < self._earlier:  # the reader has lost some
            self._begin()
        self._read()
        taken = self._windows[: count - self._earlier]
        self._windows = self._windows[len(taken) :]
        self._earlier, self._steps = self._earlier + len(taken), self._steps + step_count(taken)
        return self._windows, self._steps

    def check(self) -> None:
        """Read the windows so far unless some were read before; errors as those of `after`."""
        if not (self._windows or self._earlier):
            self._read()

    def _read(self) -> None:
        lines, is_new = self._file.new_lines()
        if self._file.error:
            raise OSError(self._file.error)
        if is_new:  # a resumed run has another file, without the windows after its checkpoint
            self._windows, self._earlier, self._steps = [], 0, 0
        windows = [parse_window(line) for line in lines]
        if damaged := windows.count(None):
            self._begin()  # the next look finds them again
            raise ValueError(unreadable_lines(damaged))
        self._windows += [window for window in windows if window]
