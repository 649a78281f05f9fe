"""The power mode of a Jetson, set by its program nvpmodel."""

import math
import re
from contextlib import suppress
from pathlib import Path

from epochmeter.machine import privilege
from epochmeter.machine.jetson import CONF_FILE, LOCKED, Mode, clocks, current_mode, read_modes
from epochmeter.machine.sysfs import match_group
from epochmeter.power.knobs import jtop_control
from epochmeter.power.knobs.jtop_control import run_by_jtop_or_sudo
from epochmeter.power.knobs.knob import Knob, SettingTarget, wait_until_set

QUERY_COMMAND = ("nvpmodel", "-q")


class Nvpmodel(Knob):
    """The power mode, as a `Knob`."""

    name = "nvpmodel"
    pending = False  # true: jtop's service may still apply a mode that it did not apply in time

    def __init__(self, root: Path) -> None:
        self._root = root
        conf = privilege.read_file(root / CONF_FILE)
        self._modes, self._default = read_modes(conf)
        written = (root / path for path in re.findall(r"^\w+\s+/(\S+)", conf, re.MULTILINE))
        self.files = [file for file in written if file.exists()]
        self.commands = [QUERY_COMMAND, *(("nvpmodel", "-m", str(number)) for number in self._modes)]

    def get(self) -> str:
        return str(self._current())

    def set(self, setting: str) -> None:
        """Change the power mode: as root, by jtop's service for its group, or by sudo."""
        mode = self._mode_of(setting)
        if mode == self._current() and not self.pending:
            return
        if clocks(self._root) == LOCKED:
            raise RuntimeError(
                f"cannot change the power mode: jetson_clocks has locked the clocks of {self.get()}\n"
                "hint: sudo jetson_clocks --restore"
            )
        output = run_by_jtop_or_sudo(
            lambda: jtop_control.set_mode(mode.number, mode.name),
            # Its prompt for a reboot gets no input, so it never reboots.
            lambda: privilege.run_as_root("nvpmodel", "-m", str(mode.number)),
        )
        if re.search(r"reboot|bad input", output, re.I):
            output = f"It needs a reboot: sudo nvpmodel -m {mode.number}"
        wait_until_set(self, str(mode), output)

    def choices(self) -> str:
        """All power modes; those that need a reboot are listed separately."""
        with suppress(RuntimeError):  # the current mode is unknown, and with it the modes that need a reboot
            current = self._current()
            after_reboot = [mode for mode in self._modes.values() if mode.gating != current.gating]
            if after_reboot and current.number in self._modes:
                at_once = ", ".join(str(mode) for mode in self._modes.values() if mode not in after_reboot)
                return f"{at_once}; after a reboot: {', '.join(map(str, after_reboot))}"
        return ", ".join(map(str, self._modes.values()))

    def target_for(self, value: str | float) -> SettingTarget:
        """Select a mode by name, `id:n` or watts."""
        candidates, rule = self._matching_modes(value)
        mode = max(candidates, key=self._rank)
        note = None
        if rule or len(candidates) > 1:
            alternatives = f" of {', '.join(map(str, candidates))}" if len(candidates) > 1 else ""
            note = f"power_limit={value} selects {mode}{alternatives}: {rule}."
        current = self._current()
        if current.number in self._modes and current.gating != mode.gating:
            raise RuntimeError(
                f"power_limit={value}: changing from {current} to {mode} needs a reboot, since it switches parts of "
                f"the GPU on or off\nhint: set it, reboot, and run this command again: {self.by_hand(str(mode))}"
            )
        return SettingTarget(str(mode), mode.watts, note, self._max_mode_w())

    def limits(self) -> list[SettingTarget]:
        """One mode per limit in watts, the current mode among them; a mode without watts, such as MAXN, is the last."""
        current = self._current()
        modes: dict[float, Mode] = {}
        for mode in sorted((m for m in self._modes.values() if m.gating == current.gating), key=self._rank):
            modes[math.inf if mode.watts is None else mode.watts] = mode
        modes[math.inf if current.watts is None else current.watts] = current
        return [SettingTarget(str(mode), mode.watts, max_w=self._max_mode_w()) for _, mode in sorted(modes.items())]

    def by_hand(self, setting: str) -> str:
        return f"sudo nvpmodel -m {self._mode_of(setting).number}"

    def _rank(self, mode: Mode) -> tuple[int, bool, int]:
        """Order of modes with the same watts, the preferred one last."""
        return mode.cores, mode.number == self._default, -mode.number

    def _max_mode_w(self) -> float | None:
        """The largest watts of all modes; None if one has no limit in its name, such as MAXN."""
        watts = [mode.watts for mode in self._modes.values()]
        return None if None in watts else max(filter(None, watts), default=None)

    def _matching_modes(self, value: str | float) -> tuple[list[Mode], str]:
        """The modes that a value matches, and the rule that selects one; ValueError if there is none."""
        text = str(value).upper()
        modes = self._modes.values()
        if matching := [mode for mode in modes if text in (mode.name.upper(), f"ID:{mode.number}")]:
            return matching, ""
        if text == "MAXN" and (matching := [mode for mode in modes if mode.name.upper() == "MAXN_SUPER"]):
            return matching, "there is no mode MAXN"
        watts = re.fullmatch(r"(\d+(?:\.\d+)?)W?", text)
        if watts and (matching := [mode for mode in modes if mode.watts == float(watts[1])]):
            return matching, "the most CPU cores, then the board's default, then the lowest id" * (len(matching) > 1)
        raise ValueError(f"power_limit={value} is not a power mode of this board\nhint: it has {self.choices()}")

    def _current(self) -> Mode:
        """The current mode, from its status file, else from `nvpmodel -q`."""
        number = current_mode(self._root)
        if number is None:
            output = privilege.run_program(*QUERY_COMMAND)
            match = match_group(r"NV Power Mode:.*\n(\d+)", output)
            if not match:
                raise RuntimeError(f"nvpmodel does not report the power mode: {output.strip()}")
            number = int(match)
        return self._mode_by_number(number)

    def _mode_of(self, setting: str) -> Mode:
        return self._mode_by_number(int(setting.rpartition("id:")[2].rstrip(")")))

    def _mode_by_number(self, number: int) -> Mode:
        return self._modes.get(number) or Mode(number, "unknown", 0, frozenset())


def open_nvpmodel(root: str | Path) -> Nvpmodel | None:
    """Open the power mode of the Jetson below `root`; None on other machines."""
    return Nvpmodel(Path(root)) if (Path(root) / CONF_FILE).exists() else None
