"""A limit in watts, of one device or of several alike: the knob that NVML, RAPL and amdgpu have in common."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

from trainmeter.power.knobs import privilege
from trainmeter.power.knobs.knob import Wish

TOLERANCE = 0.01
"""By what share a device may round what it is asked for."""


class Dial(NamedTuple):
    """The power limit of one device, in watts; a bound that the device does not tell is None."""

    low_w: float | None
    high_w: float | None
    read: Callable[[], float]  # OSError or RuntimeError where it cannot
    write: Callable[[float], None]  # RuntimeError where it cannot
    by_hand: Callable[[float], str]


class WattLimit:
    """The same limit on each of some devices. Its setting is "250 W", or "250 W, 300 W" where they differ."""

    same = staticmethod(eq)

    def __init__(self, name: str, dials: Mapping[str, Dial]) -> None:
        self.name = name
        self.devices: Sequence[str] = list(dials)
        self._dials = list(dials.values())

    def get(self) -> str:
        limits = [spelled(dial.read()) for dial in self._dials]
        return ", ".join(limits if len(set(limits)) > 1 else limits[:1])

    def set(self, setting: str) -> None:
        for dial, watts in zip(self._dials, self._limits(setting), strict=True):
            dial.write(watts)
            now = dial.read()
            if abs(now - watts) > TOLERANCE * watts:
                raise RuntimeError(f"{self.name}: asked for {spelled(watts)}, the device is at {spelled(now)}.")

    def choices(self) -> str:
        low, high = self._bounds()
        return f"{low or 0:g} to {high:g} W" if high else f"{low or 0:g} W and more"

    def wish(self, asked: Any) -> Wish:
        if isinstance(asked, str):
            raise ValueError(
                f"power_limit={asked} names a power mode, which a Jetson has; {self.name} limits in watts: "
                f"{self.choices()}."
            )
        low, high = self._bounds()
        if (low and asked < low) or (high and asked > high):
            raise ValueError(f"power_limit={asked} is out of the range of {self.name}: {self.choices()}.")
        return Wish(spelled(asked), asked, most_w=high)

    def by_hand(self, setting: str) -> str:
        limits = zip(self._dials, self._limits(setting), strict=True)
        return " && ".join(dial.by_hand(watts) for dial, watts in limits)

    def _limits(self, setting: str) -> list[float]:
        limits = [float(text.removesuffix(" W")) for text in setting.split(", ")]
        return limits * len(self._dials) if len(limits) == 1 else limits

    def _bounds(self) -> tuple[float | None, float | None]:
        """The range that all the devices have in common."""
        lows = [dial.low_w for dial in self._dials if dial.low_w]
        highs = [dial.high_w for dial in self._dials if dial.high_w]
        return max(lows, default=None), min(highs, default=None)


def file_dial(file: Path, *, low_w: float | None, high_w: float | None) -> Dial:
    """A limit that is a file of microwatts."""

    def read() -> float:
        try:
            return int(file.read_text()) / 1e6
        except ValueError as error:
            raise RuntimeError(f"{file} holds no number: {error}") from error

    return Dial(
        low_w,
        high_w,
        read,
        lambda watts: privilege.write(file, str(round(watts * 1e6))),
        lambda watts: f"echo {round(watts * 1e6)} | sudo tee {shlex.quote(str(file))}",
    )


def bound(file: Path) -> float | None:
    """A bound that a file of microwatts tells; None where it tells none, or 0."""
    try:
        return int(file.read_text()) / 1e6 or None
    except (OSError, ValueError):
        return None


def spelled(watts: float) -> str:
    """Watts to the microwatt, so that what was there comes back exactly."""
    return f"{watts:.6f}".rstrip("0").rstrip(".") + " W"
