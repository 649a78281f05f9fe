"""The power mode of a Jetson, which its program nvpmodel sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from operator import eq
from pathlib import Path
from typing import Any

from epochmeter.machine.jetson import LOCKED, clocks
from epochmeter.machine.power_modes import CONF, Mode, current, modes
from epochmeter.machine.sysfs import found
from epochmeter.power.knobs import jtop_control, privilege
from epochmeter.power.knobs.jtop_control import jtop_or_sudo
from epochmeter.power.knobs.knob import Wish, settled

ASKS = ("nvpmodel", "-q")


class Nvpmodel:
    name = "nvpmodel"
    devices: Sequence[str] = ()
    pending = False  # true: jtop's service may still apply a mode that it did not apply in time
    same = staticmethod(eq)

    def __init__(self, root: Path) -> None:
        self._root = root
        conf = privilege.read(root / CONF)
        self._modes, self._default = modes(conf)
        written = (root / path for path in re.findall(r"^\w+\s+/(\S+)", conf, re.MULTILINE))
        self.files: Sequence[Path] = [file for file in written if file.exists()]
        self.commands: Sequence[Sequence[str]] = [ASKS, *(("nvpmodel", "-m", str(number)) for number in self._modes)]

    def get(self) -> str:
        return str(self._current())

    def set(self, setting: str) -> None:
        """Turns to a mode: as root, by jtop's service for its group, or by sudo."""
        mode = self._of(setting)
        if mode == self._current() and not self.pending:
            return
        if clocks(self._root) == LOCKED:
            raise RuntimeError(
                f"jetson_clocks is on, and its clocks are those of {self.get()}. Turn it off before the power mode "
                "changes: sudo jetson_clocks --restore"
            )
        settled(self, str(mode), meant(turn(mode), mode))

    def choices(self) -> str:
        """All power modes; those that need a reboot are listed separately."""
        with suppress(RuntimeError):  # the current mode is unknown, and with it the modes that need a reboot
            current = self._current()
            apart = [mode for mode in self._modes.values() if needs_reboot(current, mode)]
            if apart and current.number in self._modes:
                at_once = ", ".join(str(mode) for mode in self._modes.values() if mode not in apart)
                return f"{at_once}; after a reboot: {', '.join(map(str, apart))}"
        return ", ".join(map(str, self._modes.values()))

    def wish(self, asked: Any) -> Wish:
        """A mode by name, `id:n`, or watts; RuntimeError where only a reboot leads there."""
        fitting, rule = self._fitting(asked)
        mode = max(fitting, key=lambda mode: (mode.cores, mode.number == self._default, -mode.number))
        note = None
        if rule or len(fitting) > 1:
            among = f" of {', '.join(map(str, fitting))}" if len(fitting) > 1 else ""
            note = f"power_limit={asked} is taken for {mode}{among}: {rule}."
        current = self._current()
        if current.number in self._modes and needs_reboot(current, mode):
            raise RuntimeError(
                f"power_limit={asked}: from {current} to {mode} takes a reboot, since it switches parts of the GPU "
                f"on or off. Set it, reboot, and run this again: {self.by_hand(str(mode))}"
            )
        return Wish(str(mode), mode.watts, note, self._most_w())

    def by_hand(self, setting: str) -> str:
        return f"sudo nvpmodel -m {self._of(setting).number}"

    def _most_w(self) -> float | None:
        """The most watts of a mode; None where any has none in its name, as MAXN draws what it can."""
        watts = [mode.watts for mode in self._modes.values()]
        return None if None in watts else max(filter(None, watts), default=None)

    def _fitting(self, asked: Any) -> tuple[list[Mode], str]:
        """The modes that are meant, and the rule by which one of them is picked; ValueError where there is none."""
        text = str(asked).upper()
        known = self._modes.values()
        if fitting := [mode for mode in known if text in (mode.name.upper(), f"ID:{mode.number}")]:
            return fitting, ""
        if text == "MAXN" and (fitting := [mode for mode in known if mode.name.upper() == "MAXN_SUPER"]):
            return fitting, "there is no mode MAXN"
        watts = re.fullmatch(r"(\d+(?:\.\d+)?)W?", text)
        if watts and (fitting := [mode for mode in known if mode.watts == float(watts[1])]):
            return fitting, "the most CPU cores, then the board's default, then the lowest id" * (len(fitting) > 1)
        raise ValueError(f"power_limit={asked} is no power mode of this board. It has: {self.choices()}.")

    def _current(self) -> Mode:
        """The mode that is set, by its status file, or by asking nvpmodel where there is none."""
        number = current(self._root)
        if number is None:
            said = privilege.answer(*ASKS)
            told = found(r"NV Power Mode:.*\n(\d+)", said)
            if not told:
                raise RuntimeError(f"nvpmodel does not tell the power mode: {said.strip()}")
            number = int(told)
        return self._numbered(number)

    def _of(self, setting: str) -> Mode:
        return self._numbered(int(setting.rpartition("id:")[2].rstrip(")")))

    def _numbered(self, number: int) -> Mode:
        return self._modes.get(number) or Mode(number, "unknown", 0, frozenset())


def open_nvpmodel(root: str | Path) -> Nvpmodel | None:
    """The knob of a Jetson; None for another machine."""
    return Nvpmodel(Path(root)) if (Path(root) / CONF).exists() else None


def needs_reboot(current: Mode, mode: Mode) -> bool:
    """Whether a change of the power mode needs a reboot, since it switches parts of the GPU on or off."""
    return current.gating != mode.gating


def turn(mode: Mode) -> str:
    """Has nvpmodel turn to a mode, and returns what it says; nothing is typed to it, so it never reboots."""
    return jtop_or_sudo(
        lambda: jtop_control.set_mode(mode.number, mode.name),
        lambda: privilege.as_root("nvpmodel", "-m", str(mode.number)),
    )


def meant(said: str, mode: Mode) -> str:
    """What nvpmodel says, in words that help where it asks on its standard input whether to reboot."""
    return f"It takes a reboot: sudo nvpmodel -m {mode.number}" if re.search(r"reboot|bad input", said, re.I) else said
