"""CPU model, cores, frequency governors and power limits."""

import re
from pathlib import Path

from epochmeter.machine.sysfs import drop_empty, match_group, read_text

ARM_CORES = {
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x4e", "0x003"): "Denver 2",
    ("0x4e", "0x004"): "Carmel",
}
"""Names of the cores of Jetsons and Grace, by the implementer and part that ARM kernels report instead of a name."""


def describe(root: Path) -> dict[str, str | int]:
    listing = read_text(root / "proc/cpuinfo")
    cores = len(re.findall(r"^processor\s*:", listing, re.MULTILINE))
    # On ARM, `model name` is only the architecture.
    kinds = re.findall(r"^CPU implementer\s*:\s*(\S+).*?^CPU part\s*:\s*(\S+)", listing, re.MULTILINE | re.DOTALL)
    arm_cores = " + ".join(ARM_CORES.get(kind, "ARM core {}:{}".format(*kind)) for kind in dict.fromkeys(kinds))
    model = arm_cores or match_group(r"^(?:model name|Hardware)\s*:\s*(.+)", listing)
    return drop_empty({"model": model, "cores": cores})


def governors(root: Path) -> list[str]:
    """The frequency governors of the cores, each once."""
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    return sorted({read_text(file) for file in files} - {""})


def power_limits_w(root: Path) -> dict[str, float]:
    """The long-term power limit of each CPU package in watts, from RAPL; empty if it has none."""
    try:
        limits = {read_text(limit.with_name("name")): read_text(limit) for limit in long_term_limits(root)}
    except OSError:
        return {}
    return {name: int(uw) / 1e6 for name, uw in limits.items() if uw.isdigit()}


def long_term_limits(root: Path) -> list[Path]:
    """List the files of each CPU package's long-term power limit, in microwatts; OSError if RAPL cannot be read.

    The limit of the whole platform (psys) and the second interface to the packages (mmio) are left out.
    """
    names = sorted(root.glob("sys/class/powercap/intel-rapl:*/name"))
    packages = [name.parent for name in names if re.match(r"package-\d", name.read_text())]
    constraints = (name for package in packages for name in sorted(package.glob("constraint_*_name")))
    terms = (name for name in constraints if name.read_text().strip() == "long_term")
    limits = (name.with_name(name.name.replace("name", "power_limit_uw")) for name in terms)
    return [limit for limit in limits if limit.exists()]
