"""A load that is switched on and off, and the readings of instruments meanwhile."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol

import numpy as np

from epochmeter.power.instrument import Instrument
from epochmeter.power.phases.step_timeline import Timeline

CYCLES_S = (0.083, 0.19, 0.43, 0.97, 2.3)
"""Mean cycles of the load: no multiples of each other or of a sensor's period, so that no sensor is in step."""
UNEVEN = 0.35  # largest change of a pulse or a pause, as a fraction
LOAD, PAUSE = 0, 1
PHASES = ("load", "pause")
MAX_FAILED = 0.2  # fraction of the readings that may fail
MAX_GAP_S = 1.0  # longest time without a reading

Switch = tuple[float, float]  # a pulse and the pause after it, in seconds
Pulse = tuple[float, float]  # begin and end of a pulse, on the clock


class Clock(NamedTuple):
    """The clock of readings, which tests script."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_CLOCK = Clock()


class Work(NamedTuple):
    """A known number of operations: when it ran, and its floating-point operations."""

    begun_s: float
    ended_s: float
    flop: float


class Load(Protocol):
    """A load that runs beside the readings."""

    def switch(self, switches: Sequence[Switch]) -> None:
        """Begin to switch the load on and off."""

    def pulses(self) -> list[Pulse]:
        """Wait for the end of the last pause, and return the actual pulses."""

    def work(self, seconds: float) -> None:
        """Begin work of a fixed number of operations, which take about this time."""

    def done(self) -> Work:
        """Wait for the end of the work."""


class Readings(NamedTuple):
    """Readings of one instrument in the order of time: joules of a counter, watts of a power sensor."""

    times_s: np.ndarray
    values: np.ndarray
    failed: int = 0  # readings that failed
    error: str = ""  # the last error

    def between(self, begin_s: float, end_s: float) -> "Readings":
        """Return the readings from one moment to another."""
        within = (self.times_s >= begin_s) & (self.times_s <= end_s)
        return self._replace(times_s=self.times_s[within], values=self.values[within])

    def problem(self, begin_s: float, end_s: float) -> str:
        """Return why these readings are not enough for a time; empty if they are."""
        count = len(self.times_s)
        if not count or self.failed > MAX_FAILED * (count + self.failed):
            return f"{self.failed} of {count + self.failed} readings failed: {self.error}"
        gap_s = float(np.diff(self.times_s, prepend=begin_s, append=end_s).max())
        if gap_s > MAX_GAP_S:
            return f"no reading for {gap_s:.1f} s" + (f": {self.error}" if self.error else "")
        return ""


class Recording(NamedTuple):
    """The readings of all instruments by name while a load was switched."""

    begun_s: float
    ended_s: float
    pulses: Sequence[Pulse]
    readings: Mapping[str, Readings]

    @property
    def timeline(self) -> Timeline:
        """Load and pause at each moment since `begun_s`."""
        edges = np.array([self.begun_s, *(edge for pulse in self.pulses for edge in pulse), self.ended_s])
        durations = np.maximum(0.0, np.diff(edges))
        return Timeline(np.arange(len(durations) + 1)[1:] % 2, durations, PHASES)


def schedule(seconds: float, chance: Random) -> list[Switch]:
    """Return pulses and pauses for about these seconds: each cycle for an equal part of the time, in random order."""
    switches: list[Switch] = []
    for cycle_s in CYCLES_S:
        cycles = max(2, math.floor(seconds / len(CYCLES_S) / cycle_s))
        for _ in range(cycles):
            on_s, off_s = (cycle_s / 2 * chance.uniform(1 - UNEVEN, 1 + UNEVEN) for _ in range(2))
            switches.append((on_s, off_s))
    chance.shuffle(switches)
    return switches


def read_until(
    instruments: Mapping[str, Instrument], end_s: float, period_s: float, clock: Clock
) -> dict[str, Readings]:
    """Read instruments about every `period_s` until a moment.

    The time of a reading is the middle of its duration. One that fails is left out, and counted.
    """
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in instruments}
    failed, errors = dict.fromkeys(instruments, 0), dict.fromkeys(instruments, "")
    chance = Random(0)
    while (begun_s := clock.now_s()) < end_s:
        for name, instrument in instruments.items():
            before_s = clock.now_s()
            try:
                value = instrument.read()
                rows[name].append(((before_s + clock.now_s()) / 2, value))
            except (OSError, ValueError) as error:
                failed[name] += 1
                errors[name] = str(error)
        took_s = clock.now_s() - begun_s
        clock.sleep(max(0.2 * period_s, period_s * chance.uniform(0.8, 1.2) - took_s))
    return {name: _as_arrays(rows[name], failed[name], errors[name]) for name in instruments}


def _as_arrays(rows: Sequence[tuple[float, float]], failed: int, error: str) -> Readings:
    table = np.array(rows, float).reshape(-1, 2)
    return Readings(table[:, 0], table[:, 1], failed, error)


def record(
    instruments: Mapping[str, Instrument], load: Load, seconds: float, *, period_s: float, clock: Clock, seed: int = 0
) -> Recording:
    """Switch a load for about these seconds, and read the instruments meanwhile."""
    switches = schedule(seconds, Random(seed))
    begun_s = clock.now_s()
    ends_s = begun_s + sum(on_s + off_s for on_s, off_s in switches)
    load.switch(switches)
    readings = read_until(instruments, ends_s, period_s, clock)
    within = [pulse for pulse in load.pulses() if pulse[0] < ends_s]
    if within and within[-1][1] > ends_s:  # the load was late: its last pulse was not read to its end
        ends_s = within.pop()[0]
    return Recording(begun_s, ends_s, within, readings)
