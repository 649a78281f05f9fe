"""A power limit in watts of one or several devices: the knob that NVML, RAPL and amdgpu have in common."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from epochmeter.power.knobs.knob import Knob, SettingTarget, poll_until

TOLERANCE = 0.01  # largest relative rounding of a limit by the device
LIMITS, ROUND_W = 8, 5.0
"""Steps between the lowest and the highest limit of a search, and the watts of which each step is a multiple."""
LOWEST_FRACTION = 0.4  # lowest limit of a search, as a fraction of the highest, if the device does not report it


class DeviceLimit(NamedTuple):
    """The power limit of one device, between `low_w` and `high_w` watts (None: unknown)."""

    low_w: float | None
    high_w: float | None
    read: Callable[[], float]  # returns the limit in watts; raises OSError or RuntimeError
    write: Callable[[float], None]
    by_hand: Callable[[float], str]  # returns the shell command that sets a limit
    file: Path | None = None  # the kernel's file of the limit, if there is one
    check: Callable[[], None] = lambda: None  # raises RuntimeError if a limit would have no effect


class WattLimit(Knob):
    """The power limit of several devices, as a `Knob`. A setting is "250 W", or "250 W, 300 W" if they differ."""

    def __init__(self, name: str, limits: Mapping[str, DeviceLimit]) -> None:
        self.name = name
        self.devices = list(limits)
        self._device_limits = list(limits.values())
        self.files = [limit.file for limit in self._device_limits if limit.file]
        self.commands = [("tee", str(file)) for file in self.files]
        # The common range of all devices in watts.
        self._low_w = max((limit.low_w for limit in self._device_limits if limit.low_w), default=None)
        self._high_w = min((limit.high_w for limit in self._device_limits if limit.high_w), default=None)

    def get(self) -> str:
        limits = [format_watts(limit.read()) for limit in self._device_limits]
        return ", ".join(limits if len(set(limits)) > 1 else limits[:1])

    def set(self, setting: str) -> None:
        """Set the limit of each device and wait until all can be read back.

        Every device is tried, so that a refusal by one device does not prevent the restoration of the others.
        """
        written, refusals = [], []
        for limit, watts in zip(self._device_limits, self._limits(setting), strict=True):
            try:
                limit.write(watts)
                written.append((limit, watts))
            except RuntimeError as error:
                refusals.append(str(error))
        self.pending = bool(written)
        reached = poll_until(lambda: all(is_close(limit.read(), watts) for limit, watts in written))
        self.pending = not reached
        if refusals:
            raise RuntimeError("\n".join(refusals))
        if not reached:
            raise RuntimeError(f"cannot set {self.name} to {setting}: the device is at {self.get()}.")

    def is_equal(self, setting: str, other: str) -> bool:
        """Whether two settings are equal except for rounding by the device."""
        return all(map(is_close, self._limits(setting), self._limits(other)))

    def choices(self) -> str:
        """The range of limits; RuntimeError if no limit would have an effect."""
        for limit in self._device_limits:
            limit.check()
        low_w, high_w = self._low_w, self._high_w
        if low_w is None:
            return f"{f'up to {high_w:g} W' if high_w else 'watts'} (lowest limit unknown)"
        return f"{low_w:g} to {high_w:g} W" if high_w else f"{low_w:g} W and more"

    def target_for(self, value: str | float) -> SettingTarget:
        choices = self.choices()
        if isinstance(value, str):
            raise ValueError(
                f"power_limit={value} is a power mode, which only a Jetson has\n"
                f"hint: {self.name} has a limit in watts: {choices}"
            )
        if (self._low_w and value < self._low_w) or (self._high_w and value > self._high_w):
            raise ValueError(f"power_limit={value} is out of the range of {self.name}: {choices}")
        return SettingTarget(format_watts(value), value, max_w=self._high_w)

    def limits(self) -> list[SettingTarget]:
        self.choices()
        now_w = min(limit.read() for limit in self._device_limits)
        high_w = self._high_w or now_w
        low_w = self._low_w or LOWEST_FRACTION * high_w
        step_w = max(1.0, (high_w - low_w) / LIMITS)
        if step_w > ROUND_W:
            step_w = ROUND_W * round(step_w / ROUND_W)
        watts = [high_w - number * step_w for number in range(1 + int((high_w - low_w) / step_w + TOLERANCE))]
        others = [limit_w for limit_w in watts if not is_close(limit_w, now_w)]
        return [SettingTarget(format_watts(limit_w), limit_w, max_w=high_w) for limit_w in sorted([now_w, *others])]

    def by_hand(self, setting: str) -> str:
        limits = zip(self._device_limits, self._limits(setting), strict=True)
        return " && ".join(limit.by_hand(watts) for limit, watts in limits)

    def _limits(self, setting: str) -> list[float]:
        limits = [float(text.removesuffix(" W")) for text in setting.split(", ")]
        return limits * len(self._device_limits) if len(limits) == 1 else limits


def is_close(watts: float, requested_w: float) -> bool:
    """Whether a limit is the requested one except for rounding by the device."""
    return abs(watts - requested_w) <= TOLERANCE * requested_w


def format_watts(watts: float) -> str:
    """Format watts with microwatt resolution, so that the original value is restored exactly."""
    return f"{watts:.6f}".rstrip("0").rstrip(".") + " W"
