"""Probes of training at one setting: steps, time and energy, between readings of the meter at progress messages."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from epochmeter.console.console import Terminal
from epochmeter.power.instrument import shortest_s
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import Reading, energy_of_window
from epochmeter.shared.units import NANOSECOND

PROBE_S, MAX_PROBE_S = 3.0, 60.0
SETTLE_S = 1.0  # time from a change of the limit to the start of its probe
MIN_STEPS = 10
MAX_UNCERTAINTY = 0.02  # a probe lasts until the uncertainty of its energy is at most this fraction, or `MAX_PROBE_S`


class ProbeSums(NamedTuple):
    """Steps, time and energy of a probe: the sums over its pieces, which are in one or several windows.

    The uncertainties of pieces are independent, as their causes are the borders of a piece and power between samples.
    The uncertainty of a probe is therefore the square root of the sum of their squares.
    """

    steps: int = 0
    seconds: float = 0.0
    energy_j: float = 0.0
    uncertainty_j: float = 0.0


class ProbeMeter:
    """Measures probes, one after another: steps, time and energy at the limit that was set last.

    A probe that is longer than its window continues in the next epoch.
    """

    def __init__(self, meter: EnergyMeter, terminal: Terminal) -> None:
        self._meter, self._terminal = meter, terminal
        self.has_energy = meter.energy["source"] in ("counter", "sampled")
        self._shortest_s = max([PROBE_S, *(shortest_s(meter.domains[name]) for name in meter.energy["domains"])])
        self._read_after_s = self._shortest_s  # duration at which a probe within a window is read
        self.restart()

    def restart(self) -> None:
        """Begin a new probe after the limit was set."""
        self._set_ns = time.monotonic_ns()
        self._ended: tuple[Reading, int] | None = None  # of the last complete probe, if it ended within a window
        self._drop()

    def _drop(self) -> None:
        self._closed = ProbeSums()  # the pieces of the probe in earlier windows
        self._begin: tuple[Reading, int] | None = None  # of the piece in this window: reading, and number of the step
        self._earlier: list[tuple[Reading, int]] = []  # of pieces in windows that have not been closed yet

    def go_on(self) -> None:
        """Begin a new probe at the same limit, where the last one ended."""
        self._drop()
        self._begin = self._ended

    def open_window(self, reading: Reading) -> None:
        """Begin a piece with the window, unless the limit was set just before.

        The end of an earlier window may follow, as power sensors report it later, and this start may be repeated then.
        """
        if self._begin:
            if reading.at_ns <= self._begin[0].at_ns:
                return
            self._earlier.append(self._begin)
        self._begin = (reading, 0) if self._is_settled(reading.at_ns) else None

    def read_step(self, steps: int, read: Callable[[], Reading]) -> ProbeSums | None:
        """Begin or read the probe, if it is time; return it if it is complete.

        `read` returns the meter's reading at the end of the last of `steps`.
        """
        if self._begin is None:
            if self._is_settled(time.monotonic_ns()):
                reading = read()
                self._begin = (reading, steps) if self._is_settled(reading.at_ns) else None
            return None
        begun, begin_steps = self._begin
        seconds = self._closed.seconds + (time.monotonic_ns() - begun.at_ns) * NANOSECOND
        if seconds < self._read_after_s or self._closed.steps + steps - begin_steps < MIN_STEPS:
            return None
        reading = read()
        probe = self._probe_until(self._begin, reading, steps)
        if self._is_complete(probe):
            self._ended = reading, steps
            return probe
        if probe.steps and self._read_after_s < MAX_PROBE_S:
            self._read_after_s = min(MAX_PROBE_S, 2 * self._read_after_s)
            self._terminal.info(f"The power sensor needs probes of {self._read_after_s:.0f} s.", style="dim")
        return None

    def close_window(self, reading: Reading, steps: int) -> ProbeSums | None:
        """End the piece with the window; return the probe if it is complete."""
        begun = [*self._earlier, *filter(None, [self._begin])]
        ended = [begin for begin in begun if begin[0].at_ns < reading.at_ns]
        if ended:
            self._earlier = [begin for begin in self._earlier if begin not in ended]
            self._begin = None if self._begin in ended else self._begin
            self._closed = self._probe_until(ended[-1], reading, steps)
        self._ended = None
        return self._closed if self._is_complete(self._closed) else None

    def _is_settled(self, at_ns: int) -> bool:
        return (at_ns - self._set_ns) * NANOSECOND >= SETTLE_S

    def _probe_until(self, begin: tuple[Reading, int], reading: Reading, steps: int) -> ProbeSums:
        """Return the probe with a piece up to a reading; empty if a reading failed: the probe then restarts.

        The piece is not closed, as each border adds uncertainty.
        """
        before, begin_steps = begin
        seconds = (reading.at_ns - before.at_ns) * NANOSECOND
        if steps <= begin_steps or seconds <= 0:
            return self._closed
        used = energy_of_window(before, reading, self._meter, seconds).term
        if self.has_energy and "energy_j" not in used:
            self._drop()
            return self._closed
        return ProbeSums(
            self._closed.steps + steps - begin_steps,
            self._closed.seconds + seconds,
            self._closed.energy_j + used.get("energy_j", seconds),
            math.hypot(self._closed.uncertainty_j, used.get("energy_uncertainty_j", 0.0)),
        )

    def _is_complete(self, probe: ProbeSums) -> bool:
        """Return whether a probe is long enough for the training and the sensor, and precise enough."""
        is_precise = probe.uncertainty_j <= MAX_UNCERTAINTY * probe.energy_j or probe.seconds >= MAX_PROBE_S
        is_long = probe.steps >= MIN_STEPS and probe.seconds >= self._shortest_s
        return is_long and is_precise and probe.energy_j > 0  # a counter may not have advanced
