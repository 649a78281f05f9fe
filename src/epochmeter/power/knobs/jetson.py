"""Power mode, clocks and fan of a Jetson.

They need root: an ordinary user's changes are made by jtop's service, which runs as root and serves the members of its
group, or else by sudo. The service may apply a setting late or not at all, so it is read back.
"""

import math
import os
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from epochmeter.machine import jetson, privilege
from epochmeter.machine.jtop import connect_client
from epochmeter.machine.recorded.root import root_folder
from epochmeter.machine.sysfs import match_group
from epochmeter.power.knobs.knob import NO_EFFECT_HINT, Knob, SettingTarget, wait_until_set
from epochmeter.shared.problem import MachineError, input_error, machine_error, problem_of

JTOP_INTERVAL_S = 0.5
JOIN_JTOP = "sudo usermod -aG jtop $USER, then log in again: jtop's service sets it for its group"
STORED_BY_JTOP = "/usr/local/jtop/l4t_dfs.conf"  # the original clocks if jtop's service locked them
MAX_DUTY = 255
MANUAL, KERNEL = "manual", "temp_control"
SERVICE = "nvfancontrol"


def run_by_jtop_or_sudo(by_jtop: Callable[[], None], by_sudo: Callable[[], str]) -> str:
    """Change a setting that needs root: directly as root, else by jtop's service, else by sudo; returns the output."""
    if os.geteuid() == 0:
        return by_sudo()
    try:
        by_jtop()
        return ""
    except RuntimeError as no_jtop:
        try:
            return by_sudo()
        except RuntimeError as no_sudo:
            other = problem_of(no_jtop).within("jtop's service could do it too, but failed")
            raise MachineError(problem_of(no_sudo), other) from no_sudo


class Nvpmodel(Knob):
    """The power mode, set by NVIDIA's program nvpmodel."""

    name, by_jtop = "nvpmodel", True
    query = ("nvpmodel", "-q")
    pending = False  # true: jtop's service may still apply a mode that it did not apply in time

    def __init__(self, root: Path) -> None:
        self._root = root
        conf = privilege.read_file(root / jetson.CONF_FILE)
        self._modes, self._default = jetson.read_modes(conf)
        watts = [mode.watts for mode in self._modes.values()]
        # Unknown if a mode has no limit in its name, such as MAXN.
        self._max_w = None if None in watts else max(filter(None, watts), default=None)
        paths = re.findall(r"^\w+\s+/(\S+)", conf, re.MULTILINE)
        self.files = [root / path for path in paths if (root / path).exists()]
        self.commands = [self.query, *(("nvpmodel", "-m", str(number)) for number in self._modes)]

    def get(self) -> str:
        return str(self._current())

    def set(self, setting: str) -> None:
        mode = self._mode_of(setting)
        if mode == self._current() and not self.pending:
            return
        if jetson.clocks(self._root) == jetson.LOCKED:
            raise machine_error(
                f"cannot change the power mode: jetson_clocks has locked the clocks of {self.get()}",
                "sudo jetson_clocks --restore",
            )
        output = run_by_jtop_or_sudo(
            lambda: request_mode(mode.number, mode.name),
            # Its prompt for a reboot gets no input, so it never reboots.
            lambda: privilege.run_as_root("nvpmodel", "-m", str(mode.number)),
        )
        reboot = f"it needs a reboot: sudo nvpmodel -m {mode.number}"
        needs_reboot = re.search(r"reboot|bad input", output, re.I)
        wait_until_set(self, str(mode), output, reboot if needs_reboot else NO_EFFECT_HINT)

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
        candidates, rule = self._matching_modes(value)
        mode = max(candidates, key=self._rank)
        alternatives = f" of {', '.join(map(str, candidates))}" if len(candidates) > 1 else ""
        note = f"power_limit={value} selects {mode}{alternatives}: {rule}." if rule else None
        current = self._current()
        if current.number in self._modes and current.gating != mode.gating:
            raise machine_error(
                f"power_limit={value}: changing from {current} to {mode} needs a reboot, since it switches parts of "
                "the GPU on or off",
                f"set it, reboot, and run this command again: {self.by_hand(str(mode))}",
            )
        return SettingTarget(str(mode), mode.watts, note, self._max_w)

    def limits(self) -> list[SettingTarget]:
        """One mode per limit in watts, the current mode among them; a mode without watts, such as MAXN, is the last."""
        current = self._current()
        without_reboot = sorted(
            (mode for mode in self._modes.values() if mode.gating == current.gating), key=self._rank
        )
        modes = {mode.watts or math.inf: mode for mode in (*without_reboot, current)}  # the last one of each limit
        return [SettingTarget(str(mode), mode.watts, max_w=self._max_w) for _, mode in sorted(modes.items())]

    def by_hand(self, setting: str) -> str:
        return f"sudo nvpmodel -m {self._mode_of(setting).number}"

    def _rank(self, mode: jetson.Mode) -> tuple[int, bool, int]:
        """Order of modes with the same watts, the preferred one last."""
        return mode.cores, mode.number == self._default, -mode.number

    def _matching_modes(self, value: str | float) -> tuple[list[jetson.Mode], str]:
        """The modes that a value matches, and the rule that selects one; ValueError if there is none."""
        text = str(value).upper()
        modes = self._modes.values()
        if matching := [mode for mode in modes if text in (mode.name.upper(), f"ID:{mode.number}")]:
            return matching, ""
        if text == "MAXN" and (matching := [mode for mode in modes if mode.name.upper() == "MAXN_SUPER"]):
            return matching, "there is no mode MAXN"
        watts = re.fullmatch(r"(\d+(?:\.\d+)?)W?", text)
        if watts and (matching := [mode for mode in modes if mode.watts == float(watts[1])]):
            rule = "the most CPU cores, then the board's default, then the lowest id"
            return matching, rule if len(matching) > 1 else ""
        raise input_error(f"power_limit={value} is not a power mode of this board", f"it has {self.choices()}")

    def _current(self) -> jetson.Mode:
        number = jetson.current_mode(self._root)
        if number is None:
            output = privilege.run_program(*self.query)
            match = match_group(r"NV Power Mode:.*\n(\d+)", output)
            if not match:
                raise RuntimeError(f"nvpmodel does not report the power mode: {output.strip()}")
            number = int(match)
        return self._mode_by_number(number)

    def _mode_of(self, setting: str) -> jetson.Mode:
        return self._mode_by_number(int(setting.rpartition("id:")[2].removesuffix(")")))

    def _mode_by_number(self, number: int) -> jetson.Mode:
        return self._modes.get(number) or jetson.Mode(number, "unknown", 0, frozenset())


def request_mode(number: int, name: str) -> None:
    """Request a power mode; RuntimeError if jtop, which counts the modes itself, has another number for it."""
    with connect_client(JTOP_INTERVAL_S, to_change=True) as client:
        if client.nvpmodel is None or client.nvpmodel.models[number : number + 1] != [name]:
            raise RuntimeError(f"jtop has no power mode {number} named {name}")
        client.nvpmodel.set_nvpmodel_id(number)


def open_nvpmodel(root: str | Path) -> Nvpmodel | None:
    """Open the power mode of the Jetson below `root`; None on other machines."""
    return Nvpmodel(root_folder(root)) if (root_folder(root) / jetson.CONF_FILE).exists() else None


class JetsonClocks(Knob):
    """Clocks locked at the maximum of the power mode, which disables frequency scaling, or free."""

    name, by_jtop = "jetson_clocks", True
    query = ("jetson_clocks", "--show")
    commands = ()  # none: `--restore FILE` writes the contents of any file as root

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._stored = folder / "l4t_dfs.conf"
        """The original clocks in the program's format; the file exists while this tool has locked them by it."""
        self.pending = self._stored.exists()  # `get` may read free although some clocks are locked
        lowest = [*root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_min_freq")]
        self.files = [*lowest, *(gpu / "min_freq" for gpu in jetson.gpu_devfreqs(root))]

    def get(self) -> str:
        if state := jetson.clocks(self._root):
            return state
        raise RuntimeError(f"cannot read any clock below {self._root / 'sys/devices/system/cpu'}")

    def set(self, setting: str) -> None:
        """Store the clocks and lock them, or restore them."""
        if setting == self.get() and (setting == jetson.LOCKED or not self.pending):
            return
        output = ""
        if setting == jetson.LOCKED:
            self._stored.unlink(missing_ok=True)  # otherwise the program prompts before it overwrites the file
            self.pending = False  # the clocks that an earlier run locked are restored
            output = run_by_jtop_or_sudo(lambda: request_clocks(True), self._lock)
        elif self._stored.exists():
            output = privilege.run_as_root("jetson_clocks", "--restore", str(self._stored), allow=JOIN_JTOP)
        else:
            request_clocks(False)
        wait_until_set(self, setting, output)
        if setting == jetson.UNLOCKED:
            self._stored.unlink(missing_ok=True)
        self.pending = self._stored.exists()

    def choices(self) -> str:
        return jetson.LOCKED

    def by_hand(self, setting: str) -> str:
        if setting == jetson.LOCKED:
            return "sudo jetson_clocks"
        by_jtop = jetson.clocks(self._root) == jetson.LOCKED and not self._stored.exists()
        return f"sudo jetson_clocks --restore {shlex.quote(STORED_BY_JTOP if by_jtop else str(self._stored))}"

    def _lock(self) -> str:
        self._stored.parent.mkdir(parents=True, exist_ok=True)
        output = privilege.run_as_root("jetson_clocks", "--store", str(self._stored), allow=JOIN_JTOP)
        if not self._stored.exists():
            raise RuntimeError(f"jetson_clocks did not store the original clocks: {' '.join(output.split())}")
        self.pending = True
        return privilege.run_as_root("jetson_clocks", allow=JOIN_JTOP)


def request_clocks(on: bool) -> None:
    """Request jetson_clocks, or the clocks from before jtop switched it on."""
    with connect_client(JTOP_INTERVAL_S, to_change=True) as client:
        if client.jetson_clocks is None:
            raise RuntimeError("jtop does not find jetson_clocks")
        client.jetson_clocks = on


def open_jetson_clocks(root: str | Path, folder: Path) -> JetsonClocks | None:
    """Open the clocks of a Jetson; None if the program is not installed."""
    return JetsonClocks(root_folder(root), folder) if shutil.which("jetson_clocks") else None


class Fan(Knob):
    """The fan: at full speed, its power and its cooling are the same in every run.

    A setting is a profile and a duty of 0 to 255, as in "quiet 77". The profile names the controller of the duty:
    `manual` for none, and `temp_control` for the kernel (JetPack 4). All others are profiles of the service
    nvfancontrol (JetPack 5 and later).
    """

    name, by_jtop = "fan", True

    def __init__(self, root: Path, duty: Path) -> None:
        self._root, self._duty = root, duty
        self._kernel = duty.with_name(KERNEL)
        self.files = [duty, self._kernel] if self._kernel.exists() else [duty]
        verbs = () if self._kernel.exists() else ("stop", "start")
        self.commands = [("tee", str(file)) for file in self.files] + [("systemctl", verb, SERVICE) for verb in verbs]

    def get(self) -> str:
        return f"{self._profile()} {self._duty.read_text().strip()}"

    def set(self, setting: str) -> None:
        profile, duty = setting.split()
        output = run_by_jtop_or_sudo(
            lambda: request_fan(profile, 100 * int(duty) / MAX_DUTY), lambda: self._by_sudo(profile, duty)
        )
        wait_until_set(self, setting, output)

    def is_equal(self, setting: str, other: str) -> bool:
        """Whether two settings have the same profile and, for `manual`, the same duty."""
        (profile, duty), (other_profile, other_duty) = setting.split(), other.split()
        return profile == other_profile and (profile != MANUAL or abs(int(duty) - int(other_duty)) <= 1)

    def choices(self) -> str:
        return "max"

    def target_for(self, value: str | float) -> SettingTarget:
        return SettingTarget(f"{MANUAL} {MAX_DUTY}")  # for `max`, the only value of `fan` other than keep

    def by_hand(self, setting: str) -> str:
        profile, duty = setting.split()
        if profile == MANUAL:
            return f"echo {duty} | sudo tee {shlex.quote(str(self._duty))}"
        if profile == KERNEL:
            return f"echo 1 | sudo tee {shlex.quote(str(self._kernel))}"
        return f"sudo systemctl start {SERVICE}"

    def _by_sudo(self, profile: str, duty: str) -> str:
        output = ""
        if self._kernel.exists():
            privilege.write_file(self._kernel, str(int(profile == KERNEL)))
        elif profile != MANUAL:
            return privilege.run_as_root("systemctl", "start", SERVICE)
        elif self._profile() != MANUAL:
            output = privilege.run_as_root("systemctl", "stop", SERVICE)
        privilege.write_file(self._duty, duty)
        return output

    def _profile(self) -> str:
        if self._kernel.exists():
            return KERNEL if self._kernel.read_text().strip() == "1" else MANUAL
        state = privilege.run_program("systemctl", "is-active", SERVICE) if shutil.which("systemctl") else ""
        return (jetson.default_fan_profile(self._root) or SERVICE) if state.strip() == "active" else MANUAL


def request_fan(profile: str, percent: float) -> None:
    """Request a fan profile, such as quiet, and the speed in percent if the profile is manual."""
    with connect_client(JTOP_INTERVAL_S, to_change=True) as client:
        name = next(iter(client.fan), None)
        if name is None:
            raise RuntimeError("jtop does not find a fan")
        client.fan.set_profile(name, profile)
        if profile == MANUAL:
            client.fan.set_speed(name, percent)


def open_fan(root: str | Path) -> Fan | None:
    """Open the fan of the Jetson below `root`; None if it has none."""
    root = root_folder(root)
    try:
        duty = jetson.fan_duty(root)
    except OSError as error:
        raise privilege.unreadable_error(error) from error
    return Fan(root, duty) if duty else None
