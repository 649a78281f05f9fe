"""The memory of a run's processes at the borders of windows."""

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.cpu_load import family
from epochmeter.machine.marks import Marks

ANONYMOUS = re.compile(rb"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


class ProcessMemory:
    """The anonymous memory of processes and all their descendants, in bytes, without that of this process.

    Anonymous memory is what processes allocate, without the files that they map. Memory that a forked process has in
    common with its parent counts in both.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.own_pids: set[int] = set()
        self._proc = proc
        self._marks: Marks[int] = Marks()

    def mark(self) -> None:
        """Read the memory, at a border of a window."""
        pids = set(family(self.own_pids, self._proc)) - {os.getpid()}
        if memory_bytes := anonymous_bytes(pids, self._proc):
            self._marks.add(time.monotonic_ns(), memory_bytes)

    def window(self, opened_ns: int, closed_ns: int) -> dict[str, float]:
        """Return the metric of a window, the memory at its end; empty if it is not known."""
        borders = self._marks.at_borders(opened_ns, closed_ns)
        return {"process_memory_bytes": borders[1]} if borders else {}

    def discard_before(self, before_ns: int) -> None:
        """Discard the readings before a moment except the last of them."""
        self._marks.discard_before(before_ns)


NO_MEMORY = ProcessMemory()  # without processes


def anonymous_bytes(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """Return the anonymous memory of processes together; 0 if none can be read."""
    total = 0
    for pid in pids:
        with suppress(OSError), open(f"{proc}/{pid}/status", "rb") as file:
            if found := ANONYMOUS.search(file.read()):
                total += 1024 * int(found[1])
    return total
