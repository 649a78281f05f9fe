"""Properties of a Jetson: release, power modes, clocks and fan."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.sysfs import drop_empty, match_group, read_text

GPU = re.compile(r"gpu(?!-nvd)|gp10b|gv11b|ga10b")
"""The kernel's names of the GPU's frequency; Thor's video engines have other names and scale independently."""
LOCKED, UNLOCKED = "locked", "free"
FAN = re.compile(r"pwm.?fan")  # the kernel's names of the fan, which NVIDIA has spelled in several ways

JTOP_SOCKET = "/run/jtop.sock"
JETSON_FILES = ("/etc/nv_tegra_release", JTOP_SOCKET)
"""Files that only a Jetson has; a container on a Jetson may show only the socket of jtop's service."""
CONF_FILE = "etc/nvpmodel.conf"
MEMORY_MHZ = {
    r"^(?!.*super).*p3767-000[3-5]": 2133,  # Orin Nano
    "p3767|p3701": 3199,  # Orin Nano Super, Orin NX, AGX Orin
    "p3834": 4266,  # Thor
    "p2888|p2972": 2133,  # AGX Xavier
    "p3668": 1866,  # Xavier NX
    "p3448|p3450": 1600,  # Nano
}
"""Highest clock of the memory by module, from the data sheets: only root can read it from the kernel."""


class Mode(NamedTuple):
    """A power mode; a clock of zero is not limited by the mode."""

    number: int
    name: str
    cores: int
    gating: frozenset[tuple[str, str]]  # masks of the GPU's parts without power, which only a reboot can change
    cpu_hz: int = 0
    gpu_hz: int = 0
    emc_hz: int = 0

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
        match re.findall(r"[<>]|[^\s<>=]+", line.partition("#")[0]):
            case ["<", "POWER_MODEL", "ID", number, "NAME", name, ">"] if number.isdigit():
                mode = Mode(int(number), name, 0, frozenset())
            case ["<", "PM_CONFIG", "DEFAULT", number, ">"] if number.isdigit():
                default, mode = int(number), None
            case ["<", *_]:
                mode = None
            case ["CPU_ONLINE", _, "1"] if mode:
                mode = mode._replace(cores=mode.cores + 1)
            case [_, mask, bits] if mode and mask.endswith("_PG_MASK"):
                mode = mode._replace(gating=mode.gating | {(mask, bits)})
            case ["GPU", "MAX_FREQ", hz] if mode and hz.isdigit():  # -1: not limited
                mode = mode._replace(gpu_hz=int(hz))
            case ["EMC", "MAX_FREQ", hz] if mode and hz.isdigit():
                mode = mode._replace(emc_hz=int(hz))
            case [cluster, "MAX_FREQ", khz] if mode and cluster.startswith("CPU") and khz.isdigit():
                mode = mode._replace(cpu_hz=max(mode.cpu_hz, 1000 * int(khz)))  # the fastest cluster counts
        if mode:
            modes[mode.number] = mode
    return modes, default


def current_mode(root: Path) -> int | None:
    """The id of the current mode, from nvpmodel's status file; None if there is none."""
    number = match_group(r"pmode:(\d+)", read_text(root / "var/lib/nvpmodel/status"))
    return int(number) if number else None


def runs_on_jetson() -> bool:
    """Whether this machine is a Jetson, whatever board is replayed."""
    return any(Path(file).exists() for file in JETSON_FILES)


def l4t(root: Path) -> str:
    """Return the release of Linux for Tegra, such as 36.4.3."""
    release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", read_text(root / "etc/nv_tegra_release"))
    return ".".join(release.groups()) if release else ""


def power_modes(root: Path) -> dict[str, object]:
    """Return the current power mode, and all that can be set without a reboot, with their cores and highest clocks."""
    available, _ = read_modes(read_text(root / CONF_FILE))
    number, highest = current_mode(root), _highest_clocks(root)
    if number is None:
        return {}
    if number not in available:
        return {"power_mode": {"id": number}}
    current = available[number]
    modes = [
        {
            "id": mode.number,
            "name": mode.name,
            **drop_empty({"cores": mode.cores, **{name: getattr(mode, name) or hz for name, hz in highest.items()}}),
        }
        for mode in available.values()
        if mode.gating == current.gating
    ]
    return {"power_mode": {"id": number, "name": current.name}, "power_modes": modes}


def _highest_clocks(root: Path) -> dict[str, int]:
    """Return the highest clocks of the hardware in Hz; zero if unknown."""
    cores = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq")
    core_khz = (int(text) for text in map(read_text, cores) if text)
    gpu_hz = (int(hz) for gpu in gpu_devfreqs(root) for hz in read_text(gpu / "available_frequencies").split())
    names = read_text(root / "sys/firmware/devicetree/base/compatible")
    memory_mhz = (mhz for module, mhz in MEMORY_MHZ.items() if re.search(module, names))
    return {
        "cpu_hz": 1000 * max(core_khz, default=0),
        "gpu_hz": max(gpu_hz, default=0),
        "emc_hz": 1_000_000 * next(memory_mhz, 0),
    }


def gpu_devfreqs(root: Path) -> list[Path]:
    return [folder for folder in sorted(root.glob("sys/class/devfreq/*")) if GPU.search(folder.name)]


def clocks(root: Path) -> str:
    """Whether the clocks are `locked`, as by jetson_clocks, or `free`; empty if none can be read."""
    lowest = list(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_min_freq"))
    lowest += [gpu / "min_freq" for gpu in gpu_devfreqs(root)]
    bounds = [(read_text(low), read_text(low.with_name(low.name.replace("min", "max")))) for low in lowest]
    readable = [(low, high) for low, high in bounds if low and high]
    state = LOCKED if all(low == high for low, high in readable) else UNLOCKED
    return state if readable else ""


def fan_duty(root: Path) -> Path | None:
    """The file of the fan's duty, 0 to 255; None if there is no fan. OSError if the sensors cannot be read."""
    names = sorted(root.glob("sys/class/hwmon/hwmon*/name"))
    fans = [name.with_name("pwm1") for name in names if FAN.fullmatch(name.read_text().strip())]
    return next((duty for duty in (root / "sys/devices/pwm-fan/target_pwm", *fans) if duty.exists()), None)


def default_fan_profile(root: Path) -> str:
    """The fan profile that the service nvfancontrol starts with; empty if unknown."""
    return match_group(r"FAN_DEFAULT_PROFILE\s+(\w+)", read_text(root / "etc/nvfancontrol.conf"))
