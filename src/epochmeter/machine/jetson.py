"""Properties of a Jetson: release, power modes, clocks and fan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.sysfs import drop_empty, match_group, read_text

GPU = re.compile(r"gpu(?!-nvd)|gp10b|gv11b|ga10b")
"""The kernel's names of the GPU's frequency; Thor's video engines have other names and scale independently."""
LOCKED, UNLOCKED = "locked", "free"
FAN = re.compile(r"pwm.?fan")
"""The kernel's names of the fan, which NVIDIA has spelled in several ways."""

CONF_FILE = "etc/nvpmodel.conf"


class Mode(NamedTuple):
    """A power mode; `gating` has masks of the GPU's parts without power, which only a reboot can change."""

    number: int
    name: str
    cores: int
    gating: frozenset[tuple[str, str]]

    def __str__(self) -> str:
        return f"{self.name} (id:{self.number})"

    @property
    def watts(self) -> float | None:
        """The watts in the mode's name, if there are any."""
        words = (re.fullmatch(r"(\d+)W", word) for word in self.name.upper().split("_"))
        return next((float(word[1]) for word in words if word), None)


def read_modes(conf: str) -> tuple[Mapping[int, Mode], int | None]:
    """The modes of an nvpmodel.conf by number, in its order, and the number of the default."""
    modes: dict[int, Mode] = {}
    default = mode = None
    for line in conf.splitlines():
        words = line.partition("#")[0].replace("<", " < ").replace(">", " > ").split()
        match words:
            case ["<", "POWER_MODEL", number, name, ">"] if parse_value(number).isdigit():
                mode = Mode(int(parse_value(number)), parse_value(name), 0, frozenset())
            case ["<", "PM_CONFIG", number, ">"] if parse_value(number).isdigit():
                default, mode = int(parse_value(number)), None
            case ["<", *_]:
                mode = None
            case ["CPU_ONLINE", _, "1"] if mode:
                mode = mode._replace(cores=mode.cores + 1)
            case [_, mask, bits] if mode and mask.endswith("_PG_MASK"):
                mode = mode._replace(gating=mode.gating | {(mask, bits)})
        if mode:
            modes[mode.number] = mode
    return modes, default


def parse_value(assignment: str) -> str:
    """The text after `=`."""
    return assignment.partition("=")[2]


def current_mode(root: Path) -> int | None:
    """The id of the current mode, from nvpmodel's status file; None if there is none."""
    number = match_group(r"pmode:(\d+)", read_text(root / "var/lib/nvpmodel/status"))
    return int(number) if number else None


def l4t(root: Path) -> str:
    """The release of Linux for Tegra, such as 36.4.3."""
    release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", read_text(root / "etc/nv_tegra_release"))
    return ".".join(release.groups()) if release else ""


def power_mode(root: Path) -> dict[str, str | int]:
    """The current power mode: its id, and its name on this board."""
    number = current_mode(root)
    if number is None:
        return {}
    available, _ = read_modes(read_text(root / CONF_FILE))
    return {"id": number, **drop_empty({"name": available[number].name if number in available else ""})}


def gpu_devfreqs(root: Path) -> list[Path]:
    """The devfreq folders of a board's GPU clocks."""
    return [folder for folder in sorted(root.glob("sys/class/devfreq/*")) if GPU.search(folder.name)]


def clocks(root: Path) -> str:
    """Whether the clocks are `locked`, as by jetson_clocks, or `free`; empty if none can be read."""
    lowest = list(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_min_freq"))
    lowest += [gpu / "min_freq" for gpu in gpu_devfreqs(root)]
    bounds = [(read_text(low), read_text(low.with_name(low.name.replace("min", "max")))) for low in lowest]
    readable = [(low, high) for low, high in bounds if low and high]
    if not readable:
        return ""
    return LOCKED if all(low == high for low, high in readable) else UNLOCKED


def fan_duty(root: Path) -> Path | None:
    """The file of the fan's duty, 0 to 255; None if there is no fan. OSError if the sensors cannot be read."""
    names = sorted(root.glob("sys/class/hwmon/hwmon*/name"))
    fans = [name.with_name("pwm1") for name in names if FAN.fullmatch(name.read_text().strip())]
    return next((duty for duty in (root / "sys/devices/pwm-fan/target_pwm", *fans) if duty.exists()), None)


def fan(root: Path) -> dict[str, str | int]:
    """The fan's duty, 0 to 255, and its profile, as far as they are available."""
    try:
        duty = fan_duty(root)
    except OSError:
        duty = None
    pwm = read_text(duty) if duty else ""
    profile = match_group(r"FAN_PROFILE[:\s]+(\w+)", read_text(root / "var/lib/nvfancontrol/status"))
    return {
        **({"pwm": int(pwm)} if pwm.isdigit() else {}),
        **drop_empty({"profile": profile or default_fan_profile(root)}),
    }


def default_fan_profile(root: Path) -> str:
    """The fan profile that the service nvfancontrol starts with; empty if unknown."""
    return match_group(r"FAN_DEFAULT_PROFILE\s+(\w+)", read_text(root / "etc/nvfancontrol.conf"))
