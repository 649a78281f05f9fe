"""Thermal settling: training until the spread of power and clock is below the noise that a decision needs.

A device that warms up uses more power and may lower its clock, which looks like an effect of the setting that is tried.
The training itself warms it. What is measured until then is warm-up.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from epochmeter.power.instrument import shortest_s
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import Reading, energy_of_window
from epochmeter.shared.units import NANOSECOND, percent

SPREAD = 0.01
"""Largest spread of the power and of the clock, relative to their mean: the difference in cost that counts as equal."""
UNKNOWN = "neither its power nor its clock is known"
PIECES, PIECE_S = 4, 3.0  # number and shortest duration of the successive pieces that are compared
SHARE = 0.2  # largest part of the expected training time that settling before a search may take
TOO_SHORT = "the training is too short for it"
Clock = Callable[[], float | None]


class Piece(NamedTuple):
    """Mean power of a part of the training and its uncertainty, and the clock at its end; None if not known."""

    power_w: float | None
    uncertainty_w: float
    clock_hz: float | None


class Settling:
    """Whether the device has settled: `add` pieces of training until `is_over`.

    Args:
        most_s: Longest duration; 0: it is over at once.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s, self._pieces = most_s, deque[Piece](maxlen=PIECES)
        self._waited_s = 0.0
        self._bounded_s: float | None = None  # the longest duration that the training leaves, if it is shorter

    def bound(self, training_s: float, piece_s: float) -> None:
        """Let it last at most a part of the expected training time, or not at all if its pieces have no room in it."""
        most_s = SHARE * training_s
        if most_s >= self._most_s:
            return
        has_begun = bool(self._pieces)
        self._most_s = self._bounded_s = most_s if has_begun or PIECES * piece_s <= most_s else 0.0

    def add(self, seconds: float, piece: Piece) -> None:
        self._waited_s += seconds
        self._pieces.append(piece)

    @property
    def is_over(self) -> bool:
        is_unknown = len(self._pieces) == PIECES and not self.spreads
        return self.is_settled or is_unknown or self._waited_s >= self._most_s

    @property
    def is_settled(self) -> bool:
        """Whether all spreads that are known are small enough; False if none is known."""
        spreads = self.spreads
        if len(self._pieces) < PIECES or not spreads:
            return False
        return all(value <= SPREAD + self._noise(name) for name, value in spreads.items())

    @property
    def spreads(self) -> dict[str, float]:
        """The range of the last pieces' power and clock, relative to the mean, as far as they are known."""
        columns = {
            "power": [piece.power_w for piece in self._pieces],
            "clock": [piece.clock_hz for piece in self._pieces],
        }
        known = {name: [value for value in values if value] for name, values in columns.items()}
        complete = {name: values for name, values in known.items() if values and len(values) == len(self._pieces)}
        return {name: (max(values) - min(values)) * len(values) / sum(values) for name, values in complete.items()}

    def document(self) -> dict[str, object]:
        """Return how long it took and whether it succeeded, for the record."""
        spreads = {f"{name}_spread": value for name, value in self.spreads.items()}
        bounded = {} if self._bounded_s is None else {"longest_s": round(self._bounded_s, 3)}
        reason = {"reason": self.reason} if self.reason else {}
        return {"waited_s": round(self._waited_s, 3), "is_settled": self.is_settled, **bounded, **spreads, **reason}

    @property
    def reason(self) -> str:
        """Why it did not settle, unless its spreads show it."""
        if self._bounded_s is not None and self._waited_s >= self._bounded_s and not self.is_settled:
            return TOO_SHORT
        return UNKNOWN if self._pieces and not self.spreads else ""

    def __str__(self) -> str:
        spreads = ", ".join(f"{name} within {percent(value, 1)}" for name, value in self.spreads.items())
        state = "has settled" if self.is_settled else "has not settled"
        why = "; ".join(filter(None, [spreads, self.reason])) or UNKNOWN
        return f"The device {state} after {self._waited_s:.0f} s ({why})."

    def _noise(self, name: str) -> float:
        """The spread of constant power by the uncertainty of its measurement, relative to the mean."""
        if name != "power":
            return 0.0
        return max(piece.uncertainty_w / piece.power_w for piece in self._pieces if piece.power_w)


class Part(NamedTuple):
    """The part of a piece so far: its time, its energy (NaN: not known) and the uncertainty of that."""

    seconds: float = 0.0
    energy_j: float = 0.0
    uncertainty_j: float = 0.0


class WarmUp:
    """The settling of a run while its first epochs train (`sweep.settle`). A piece may extend over short epochs."""

    def __init__(self, meter: EnergyMeter, clock_hz: Clock, most_s: float) -> None:
        self.settling = Settling(most_s)
        self._meter, self._clock_hz = meter, clock_hz
        self._piece_s = max([PIECE_S, *(shortest_s(meter.domains[name]) for name in meter.energy["domains"])])
        self._begun: list[Reading] = []  # of the parts in epochs that have not ended, in order
        self._opened_ns = 0  # when the last one of these began
        self._closed = Part()  # in earlier epochs

    def begin(self, reading: Reading) -> None:
        """Continue the piece, or begin one, at the start of an epoch.

        The end of an earlier epoch may follow, as power sensors report it later. It is no matter if that start is
        repeated then.
        """
        if reading.at_ns > max([self._opened_ns, *(begun.at_ns for begun in self._begun[-1:])]):
            self._begun.append(reading)
            self._opened_ns = reading.at_ns

    def progress(self, read: Callable[[], Reading]) -> None:
        """End the piece if it is long enough, and begin the next one; `read` returns the meter's reading now."""
        if not self._begun or self.settling.is_over:
            return
        if self._closed.seconds + (time.monotonic_ns() - self._begun[-1].at_ns) * NANOSECOND >= self._piece_s:
            self._begun[-1] = self._read(self._begun[-1], read())

    def end(self, reading: Reading, *, is_epoch: bool) -> None:
        """Note the end of an epoch; what was none is left out."""
        ended = [begun for begun in self._begun if begun.at_ns < reading.at_ns]
        self._begun = self._begun[len(ended) :]
        if ended and is_epoch and not self.settling.is_over:
            self._read(ended[-1], reading)

    def _read(self, begun: Reading, reading: Reading) -> Reading:
        """Add the time between readings to the piece, which ends if it is long enough; return where the next begins."""
        seconds = (reading.at_ns - begun.at_ns) * NANOSECOND
        if seconds <= 0:
            return begun
        used = energy_of_window(begun, reading, self._meter, seconds).term
        self._closed = Part(
            self._closed.seconds + seconds,
            self._closed.energy_j + used.get("energy_j", math.nan),
            math.hypot(self._closed.uncertainty_j, used.get("energy_uncertainty_j", 0.0)),
        )
        if self._closed.seconds >= self._piece_s:
            taken_s, energy_j, uncertainty_j = self._closed
            known = {"energy_j": energy_j, "energy_uncertainty_j": uncertainty_j} if math.isfinite(energy_j) else {}
            self.settling.add(taken_s, piece_of(known, taken_s, self._clock_hz()))
            self._closed = Part()
        return reading


def settling_note(recorded: Mapping[str, object], *, has_mean: bool) -> list[str]:
    """Return a note on a run whose device had not settled, or only in its last epoch, so that it has no mean epoch."""
    if not recorded:
        return []
    if recorded.get("is_settled"):
        settled = f"sweep.settle=true: the device settled after {recorded['waited_s']:g} s of training"
        return [] if has_mean else [f"{settled}, and no epoch began after that; train longer."]
    why = f": {recorded['reason']}" if "reason" in recorded else ""
    after = f"after {recorded['waited_s']:g} s of training"
    return [f"sweep.settle=true: the device had not settled {after}{why}; train longer, or raise `sweep.settle_s=`."]


def piece_of(used: Mapping[str, float], seconds: float, clock_hz: float | None) -> Piece:
    """Return a piece of training, from its energy in J under the short names of metrics."""
    energy_j = used.get("energy_j")
    power_w = None if energy_j is None else energy_j / seconds
    return Piece(power_w, used.get("energy_uncertainty_j", 0.0) / seconds, clock_hz)
