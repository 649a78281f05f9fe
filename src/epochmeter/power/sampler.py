"""The thread that samples power while a run is measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from epochmeter.machine.periodic_thread import Rounds
from epochmeter.power.meter import Power
from epochmeter.power.power_series import Powers, Sampling, Series
from epochmeter.shared.units import NANOSECOND

log = logging.getLogger(__name__)

LONGEST_SILENCE_S = 0.8
"""A power that cannot be read for longer is lost, and told within a second; what is shorter is bridged."""
BRIDGED = 3
"""So many of its pauses are bridged where they last longer than that: what is dear to read is read seldom."""

SLACK = 1.5
"""Longest time to the next sample, in sampling periods."""
LOOK_S = 0.1
"""How often it is looked whether a power is lost."""
PATIENCE_S = 0.8
"""How long a border waits for its fresh sample: an instrument that hangs costs the border no more."""


class Sampler:
    """Reads powers every `period_s` or so, and at once when asked to; the first time before it is handed out.

    `total` names those that together are the total power. If they only check a counter (`checks`), nothing waits
    for a sensor that lags.
    """

    def __init__(
        self, powers: Mapping[str, Power], *, total: Sequence[str], period_s: float, checks: bool = False
    ) -> None:
        self.domains = {name: power.domain for name, power in powers.items()}
        self._powers = powers
        self._checks = checks
        self._series = Series(
            powers,
            total=total,
            bridge_s=bridge_s(period_s),
            steps_w={name: domain.step for name, domain in self.domains.items()},
            responses={name: domain.response for name, domain in self.domains.items()},
        )
        self._told: set[str] = set()
        self._rounds = Rounds(self._take, period_s=period_s, patience_s=PATIENCE_S, name="sampler")
        self._watch = Rounds(self._look, period_s=LOOK_S, patience_s=PATIENCE_S, name="sampler's watch")
        self._rounds.now()  # on a busy machine a border that asks for no fresh sample might find none at all

    def joules(self, *, fresh: bool = True) -> dict[str, float]:
        """Each power's joules up to now, by a sample taken now where `fresh`; without those that cannot be read."""
        if fresh:
            self._rounds.now()
        return self._series.joules(time.monotonic_ns())

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling:
        """How well the stretch between two moments was sampled.

        Returns when the sensor has reported all power up to the end, after the time of its memory.
        """
        if not self._checks and (settled_s := self._series.settled_s):
            wait_s = settled_s + SLACK * self._rounds.pace_s - (time.monotonic_ns() - closed_ns) * NANOSECOND
            time.sleep(max(0.0, wait_s))
        return self._series.sampling(opened_ns, closed_ns)

    def drain(self, before_ns: int) -> Powers:
        """Hands over the samples before a moment, and forgets them."""
        return self._series.drain(before_ns)

    def close(self) -> bool:
        """Ends the thread as soon as it has read; whether it has ended, or hangs."""
        self._watch.close()
        return self._rounds.close()

    def _take(self) -> None:
        """One sample of all powers, stamped with the middle of its reading."""
        begun_ns = time.monotonic_ns()
        watts, failed = {}, {}
        for name, power in self._powers.items():
            try:
                watts[name] = power.read()
            except (OSError, ValueError) as error:
                failed[name] = str(error)
        ended_ns = time.monotonic_ns()
        if (took_s := (ended_ns - begun_ns) * NANOSECOND) > LONGEST_SILENCE_S:  # who knows when it looked
            watts, failed = {}, dict.fromkeys(self._powers, f"a reading took {took_s:.1f} s")
        self._series.add((begun_ns + ended_ns) // 2, watts, failed)

    def _look(self) -> None:
        """Tells what is lost, once, at the pace that is kept: a thread of its own, for the one that reads may hang."""
        self._series.bridge_s = bridge_s(self._rounds.pace_s)
        lost = self._series.lost(time.monotonic_ns())
        for name in lost.keys() - self._told:
            log.warning("The power of %s cannot be read any more: %s", name, lost[name])
        self._told = set(lost)


def bridge_s(pace_s: float) -> float:
    """Over how much is bridged what is sampled at that pace."""
    return max(LONGEST_SILENCE_S, BRIDGED * pace_s)
