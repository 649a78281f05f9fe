"""A thread that samples power sensors periodically, and at once at the borders of windows."""

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np

from epochmeter.machine.periodic_thread import PeriodicThread
from epochmeter.power.instrument import Instrument
from epochmeter.power.power_series import PowerSeries, Sampling
from epochmeter.shared.units import NANOSECOND

log = logging.getLogger(__name__)

MAX_SILENCE_S = 0.8
"""Longest gap that is interpolated, in seconds. After a longer one the power is unavailable, reported within 1 s."""
MAX_BRIDGED_PERIODS = 3
"""Longest interpolated gap in sampling periods, if longer: sensors that are expensive to read are read rarely."""
HEALTH_CHECK_S = 0.1  # period of the check for unavailable power, in seconds
READ_LIMIT_S = 0.8
"""Longest wait of a border for its sample, in seconds, so that a sensor that hangs does not block the run."""


class Sampler(PowerSeries):
    """Sample power sensors about every `period_s` seconds, and at once on request; power is integrated to joules.

    If the samples only check a counter (`checks`), no window waits for a delayed reading.
    """

    def __init__(
        self, powers: Mapping[str, Instrument], *, total: Sequence[str], period_s: float, checks: bool = False
    ) -> None:
        domains = {name: power.domain for name, power in powers.items()}
        super().__init__(domains, total=total, bridge_s=max_gap_s(period_s))
        self.instruments, self._checks = powers, checks
        self._reported: set[str] = set()
        self._thread = PeriodicThread(self._take, period_s=period_s, patience_s=READ_LIMIT_S, name="sampler")
        self._watch = PeriodicThread(
            self._watch_health, period_s=HEALTH_CHECK_S, patience_s=READ_LIMIT_S, name="sampler's watch"
        )
        self._thread.run_now()  # on a busy machine a border that takes no sample itself might find none at all

    def read(self, *, fresh: bool = True) -> dict[str, float]:
        """Joules of each domain up to now; domains that cannot be read are missing. `fresh`: take a sample first."""
        if fresh:
            self._thread.run_now()
        return self.joules(time.monotonic_ns())

    def sampling(self, opened_ns: int, closed_ns: int, borders_s: np.ndarray | None = None) -> Sampling:
        """Sampling statistics of a window, after the sensors have reported all power up to its end."""
        if not self._checks and (settled_s := self.settled_s):
            time.sleep(max(0.0, settled_s - (time.monotonic_ns() - closed_ns) * NANOSECOND))
            self._thread.run_now()
        return super().sampling(opened_ns, closed_ns, borders_s)

    def close(self) -> bool:
        """Stop the threads; False if a read hangs."""
        self._watch.close()
        return self._thread.close()

    def _take(self) -> None:
        """Take one sample of all sensors, with the middle of the reading time as timestamp."""
        begun_ns = time.monotonic_ns()
        watts, failed = {}, {}
        for name, power in self.instruments.items():
            try:
                watts[name] = power.read()
            except (OSError, ValueError) as error:
                failed[name] = str(error)
        ended_ns = time.monotonic_ns()
        if (took_s := (ended_ns - begun_ns) * NANOSECOND) > MAX_SILENCE_S:  # the time of the reading is unknown
            watts, failed = {}, dict.fromkeys(self.instruments, f"a reading took {took_s:.1f} s")
        self.add((begun_ns + ended_ns) // 2, watts, failed)

    def _watch_health(self) -> None:
        """Warn once of each domain that is unavailable. It has its own thread, since the sampling thread may hang."""
        self.bridge_s = max_gap_s(self._thread.mean_interval_s)
        unavailable = self.unavailable(time.monotonic_ns())
        for name in unavailable.keys() - self._reported:
            log.warning("the power of %s is no longer available: %s", name, unavailable[name])
        self._reported = set(unavailable)


def max_gap_s(period_s: float) -> float:
    """Longest gap that is interpolated at an actual sampling period, both in seconds."""
    return max(MAX_SILENCE_S, MAX_BRIDGED_PERIODS * period_s)
