"""A thread that looks at something now and then, and at once when asked to."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

MOST = 0.01
"""The fraction of a core that looks may take: on a slow board they are further apart. Waking up for them adds to it."""


class Rounds:
    """Goes round every `period_s` or so, in uneven steps, so that no periodic load is always met at one phase.

    All looking is done by this one thread: what hangs in it holds up who asks for `patience_s`, once, and never again.
    `pace_s` is how far its looks are apart by now, on average: more than was asked for where a look is dear.
    """

    def __init__(self, look: Callable[[], None], *, period_s: float, patience_s: float, name: str) -> None:
        self._look = look
        self._period_s = self.pace_s = period_s
        self._patience_s = patience_s
        self._turn = threading.Condition()
        self._asked = self._answered = 0
        self._closed = False
        self._thread = threading.Thread(target=self._go, name=name, daemon=True)
        self._thread.start()

    def now(self) -> None:
        """Returns when the thread has looked once more, or hangs."""
        with self._turn:
            hangs = self._asked > self._answered
            self._asked += 1
            asked = self._asked
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._answered >= asked, 0 if hangs else self._patience_s)

    def close(self) -> bool:
        """Ends the thread; whether it has ended, or hangs."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
        self._thread.join(self._patience_s)
        return not self._thread.is_alive()

    def _go(self) -> None:
        cost_s = took_s = 0.0  # of a core's time, and of time: one look, on average
        chance = random.Random()
        while True:
            begun_s, used_s = time.monotonic(), time.thread_time()
            with self._turn:
                asked = self._asked
            self._look()
            with self._turn:
                self._answered = asked
                self._turn.notify_all()
                lasted_s = time.monotonic() - begun_s
                cost_s += (time.thread_time() - used_s - cost_s) / 16
                took_s += (lasted_s - took_s) / 16
                self.pace_s = max(self._period_s, cost_s / MOST, 1.5 * took_s)
                left_s = next(pauses(self.pace_s, chance, took_s=lasted_s)) - lasted_s
                self._turn.wait_for(lambda: self._closed or self._asked > self._answered, max(0.0, left_s))
                if self._closed:
                    return


def pauses(period_s: float, chance: random.Random, took_s: float = 0.0) -> Iterator[float]:
    """Yield the time from one look to the next: `period_s` on average, uniform from 0.5 to 1.5 times that.

    A look that lasts for most of the period would remove this jitter, and a load could be in step with the resulting
    fixed period. Therefore the time after a look is at least a random fraction of its duration.

    Args:
        period_s: the mean time, in seconds.
        chance: the random numbers.
        took_s: how long the look took, in seconds.
    """
    while True:
        yield max(chance.uniform(0.5, 1.5) * period_s, chance.uniform(1.0, 2.0) * took_s)
