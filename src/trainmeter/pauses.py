"""Whether this process was stopped and went on: by Ctrl-Z, or by a cluster that lent its node to another job.

No clock can tell: the time that passed meanwhile is in every one of them.
"""

from __future__ import annotations

import signal
import time


class Pauses:
    """The moments at which this process was let go on, as long as it is watched."""

    def __init__(self) -> None:
        self._ended_ns: list[int] = []
        self._before = signal.signal(signal.SIGCONT, lambda number, frame: self._ended_ns.append(time.monotonic_ns()))

    def count(self, opened_ns: int, closed_ns: int) -> int:
        """How many pauses ended between two moments."""
        return sum(opened_ns <= at_ns <= closed_ns for at_ns in self._ended_ns)

    def close(self) -> None:
        signal.signal(signal.SIGCONT, self._before)


class Unpaused:
    """Stands for it where nobody watches."""

    def count(self, opened_ns: int, closed_ns: int) -> int:
        return 0
