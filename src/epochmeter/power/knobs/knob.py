"""Knobs: device settings that a run can change."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from epochmeter.shared.problem import machine_error

Notify = Callable[[str], None]

NO_EFFECT_HINT = "another program may control it, such as tuned or thermald: stop it, and start the run again"
SETTLE_LIMIT_S = 10.0  # longest time until a new setting can be read back, in seconds
POLL_S = 0.05


class SettingTarget(NamedTuple):
    """A value of a device setting that a job requests."""

    setting: str
    watts: float | None = None  # its power limit; None if it has none
    note: str | None = None  # the rule that selected the setting if others match as well
    max_w: float | None = None  # the highest limit of the device; None if unknown


class Knob(Protocol):
    """A device setting, such as NVML. Its values are readable texts, like "250 W"."""

    name: str
    devices: Sequence[str] = ()  # identifiers, if a machine may have several
    files: Sequence[Path] = ()  # the kernel's files that a change writes
    commands: Sequence[Sequence[str]] = ()  # those that sudo runs; none if a rule for them would grant all rights
    query: Sequence[str] = ()  # a command that only reads the setting; none if there is no program for it
    by_jtop: bool = False  # whether jtop's service changes it for the members of its group
    pending: bool = False  # whether a change was requested that cannot be read back yet, and may still take effect

    def get(self) -> str:
        """Read the current setting; OSError or RuntimeError if it cannot be read."""

    def set(self, setting: str) -> None:
        """Change the setting and read it back; RuntimeError with a remedy if that fails."""

    def is_equal(self, setting: str, other: str) -> bool:
        """Whether two settings are equal, however they are written."""
        return setting == other

    def choices(self) -> str:
        """The possible settings, as text."""

    def target_for(self, value: str | float) -> SettingTarget:
        """Convert a job's value to a setting; ValueError if it is invalid, RuntimeError if it cannot be set now."""
        return SettingTarget(self.choices())  # if there is only one

    def limits(self) -> list[SettingTarget]:
        """The limits that can be set without a reboot, with the one in use, in ascending order; else none."""
        return []

    def watts_of(self, setting: str) -> float | None:
        """The power limit that a setting is for each device; None if it is no limit in watts, or has several."""
        return None

    def by_hand(self, setting: str) -> str:
        """The shell command that sets it."""


def wait_until_set(knob: Knob, setting: str, output: str, hint: str = NO_EFFECT_HINT) -> None:
    """Wait until a requested setting can be read back; RuntimeError, with the program's output and a hint, if not."""
    knob.pending = True
    if not poll_until(lambda: knob.is_equal(knob.get(), setting)):
        detail = " ".join([f"the device is at {knob.get()}.", *output.split()])
        raise machine_error(f"cannot set {knob.name} to {setting}: {detail}", hint)
    knob.pending = False


def poll_until(reached: Callable[[], bool]) -> bool:
    """Poll until a device has reached a state; False after `SETTLE_LIMIT_S` seconds."""
    end = time.monotonic() + SETTLE_LIMIT_S
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
