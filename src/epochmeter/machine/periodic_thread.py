"""A thread that runs a callback periodically with jitter, and at once on request."""

import random
import threading
import time
from collections.abc import Callable

MAX_CPU_FRACTION = 0.01  # of a core that the callback may use; on a slow board the period is longer


class PeriodicThread:
    """Run a callback about every `period_s` seconds, with jitter, so that sampling does not alias with a periodic load.

    If the callback hangs, the first request waits for `patience_s`, and later ones do not wait. `mean_interval_s` is
    the present mean period, longer than `period_s` if the callback is expensive.
    """

    def __init__(self, callback: Callable[[], None], *, period_s: float, patience_s: float, name: str) -> None:
        self._callback = callback
        self._period_s = self.mean_interval_s = period_s
        self._patience_s = patience_s
        self._round_done = threading.Condition()
        self._requested_rounds = self._completed_rounds = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    def run_now(self) -> None:
        """Run the callback in the thread now; returns when it has run, or after `patience_s`."""
        with self._round_done:
            hangs = self._requested_rounds > self._completed_rounds
            self._requested_rounds += 1
            request = self._requested_rounds
            self._round_done.notify_all()
            self._round_done.wait_for(lambda: self._completed_rounds >= request, 0 if hangs else self._patience_s)

    def close(self) -> bool:
        """End the thread; False if it hangs."""
        with self._round_done:
            self._closed = True
            self._round_done.notify_all()
        self._thread.join(self._patience_s)
        return not self._thread.is_alive()

    def _run_loop(self) -> None:
        cost_s = took_s = 0.0  # mean CPU time and mean duration of a callback
        chance = random.Random()
        while True:
            begun_s, used_s = time.monotonic(), time.thread_time()
            with self._round_done:
                request = self._requested_rounds
            self._callback()
            with self._round_done:
                self._completed_rounds = request
                self._round_done.notify_all()
                lasted_s = time.monotonic() - begun_s
                cost_s += (time.thread_time() - used_s - cost_s) / 16
                took_s += (lasted_s - took_s) / 16
                self.mean_interval_s = max(self._period_s, cost_s / MAX_CPU_FRACTION, 1.5 * took_s)
                pause_s = jittered_s(self.mean_interval_s, chance, took_s=lasted_s) - lasted_s
                self._round_done.wait_for(
                    lambda: self._closed or self._requested_rounds > self._completed_rounds, max(0.0, pause_s)
                )
                if self._closed:
                    return


def jittered_s(period_s: float, chance: random.Random, took_s: float = 0.0) -> float:
    """Draw the time from one callback to the next: `period_s` on average, uniform from 0.5 to 1.5 times that.

    A callback that takes most of the period would remove this jitter, and a load could be in step with the resulting
    fixed period. Therefore the pause after a callback is at least a random fraction of its duration.
    """
    return max(chance.uniform(0.5, 1.5) * period_s, chance.uniform(1.0, 2.0) * took_s)
