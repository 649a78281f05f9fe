"""What the CPU is, and what holds it back."""

import re
from pathlib import Path
from typing import Any

from epochmeter.machine.sysfs import found, present, text, texts

ARM_CORES = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x4e", "0x003"): "Denver 2",
    ("0x4e", "0x004"): "Carmel",
}
"""Cores by the maker and the part that ARM's kernels tell in place of a name."""


def describe(root: Path) -> dict[str, Any]:
    """The CPU's model and its number of cores."""
    listing = text(root / "proc/cpuinfo")
    cores = len(re.findall(r"^processor\s*:", listing, re.MULTILINE))
    return present(
        {"model": arm_cores(listing) or found(r"^(?:model name|Hardware)\s*:\s*(.+)", listing), "cores": cores}
    )


def arm_cores(listing: str) -> str:
    """The kinds of cores in an ARM's cpuinfo, whose `model name` tells no more than the architecture."""
    told = re.findall(r"^CPU implementer\s*:\s*(\S+).*?^CPU part\s*:\s*(\S+)", listing, re.MULTILINE | re.DOTALL)
    return " + ".join(ARM_CORES.get(kind, "ARM core {}:{}".format(*kind)) for kind in dict.fromkeys(told))


def governors(root: Path) -> list[str]:
    """What decides on the frequency of the cores."""
    return sorted(set(texts(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")))


def power_limits_w(root: Path) -> dict[str, float]:
    """The long-term limit of each CPU package, in watts, where RAPL tells it."""
    try:
        limits = {text(limit.with_name("name")): text(limit) for limit in long_term_limits(root)}
    except OSError:
        return {}
    return {name: int(uw) / 1e6 for name, uw in limits.items() if uw.isdigit()}


def long_term_limits(root: Path) -> list[Path]:
    """The files, of microwatts, that hold each CPU package for seconds and longer; OSError where RAPL cannot be read.

    What holds all packages (psys), and what shows them a second time (mmio), is left alone.
    """
    zones = (name.parent for name in sorted(root.glob("sys/class/powercap/intel-rapl:*/name")))
    packages = [zone for zone in zones if re.match(r"package-\d", (zone / "name").read_text())]
    constraints = (name for zone in packages for name in sorted(zone.glob("constraint_*_name")))
    limits = (
        name.with_name(name.name.replace("name", "power_limit_uw"))
        for name in constraints
        if name.read_text().strip() == "long_term"
    )
    return [limit for limit in limits if limit.exists()]
