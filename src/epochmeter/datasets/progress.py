"""Progress messages of activities that take long."""

import time
from collections.abc import Callable

Notify = Callable[[str], object]  # receives one message
INTERVAL_S = 2.0  # shortest time between two messages
MB = "MB"  # unit of amounts in bytes


class Progress:
    """Progress of one activity out of `total`, in bytes with the unit `MB`; reported at most every few seconds."""

    def __init__(self, activity: str, say: Notify, total: int | None = None, unit: str = "files") -> None:
        self._activity, self._say, self._total, self._unit = activity, say, total, unit
        self._scale = 1e6 if unit == MB else 1
        self._start_s = self._reported_s = time.monotonic()

    def update(self, done: int) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s < INTERVAL_S:
            return
        self._reported_s = now_s
        of_total = f" of {self._total / self._scale:.0f}" if self._total else ""
        time_left = f", {(now_s - self._start_s) * (self._total / done - 1):.0f} s left" if self._total and done else ""
        self._say(f"{self._activity}: {done / self._scale:.0f}{of_total} {self._unit}{time_left}")
