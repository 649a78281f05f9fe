"""The power limit of CPU packages: RAPL's long-term constraint."""

from __future__ import annotations

import os
import re
from pathlib import Path

from epochmeter.machine.cpu import long_term_limits
from epochmeter.machine.sysfs import read_text
from epochmeter.power.knobs import privilege
from epochmeter.power.knobs.watt_limit import DeviceLimit, WattLimit, file_limit, read_bound

PPCC = (
    "sys/bus/pci/devices/*/power_limits/power_limit_0_min_uw",
    "sys/bus/platform/devices/INT3401*/power_limits/power_limit_0_min_uw",
)
"""The lowest long-term limit of a laptop's package by the firmware's PPCC table, as int340x_thermal shows it."""
RAPL_POWER_UNIT, PKG_POWER_INFO = 0x606, 0x614
"""Registers (MSRs) of Intel's CPUs."""


def open_rapl_limit(root: str | Path) -> WattLimit | None:
    """Open the power limit of all packages below `root`; None if the kernel has no limit."""
    root = Path(root)
    try:
        limits = long_term_limits(root)
    except OSError as error:
        raise privilege.unreadable_error(error) from error
    return WattLimit("RAPL", {limit.parent.name: package_limit(limit, root) for limit in limits}) if limits else None


def package_limit(limit: Path, root: Path) -> DeviceLimit:
    """Open a package's limit by its file, with its bounds and the check that it is switched on."""
    low_w, source = lowest_limit_w(limit, root)
    high_w = read_bound(limit.with_name(limit.name.replace("power_limit_uw", "max_power_uw")))
    return file_limit(limit, low_w=low_w, high_w=high_w)._replace(
        low_source=source, check=lambda: refuse_off(limit.with_name("enabled"))
    )


def refuse_off(switch: Path) -> None:
    """Refuse a limit that is switched off, since setting it would have no effect; RuntimeError with the remedy."""
    if switch.exists() and privilege.read_file(switch) == "0":
        raise RuntimeError(f"the CPU's power limit is switched off: {switch} is 0\nhint: echo 1 | sudo tee {switch}")


def lowest_limit_w(limit: Path, root: Path) -> tuple[float | None, str]:
    """The lowest limit that a package can hold.

    Returns:
        Watts and the source: the kernel, the firmware or the CPU. None and the reason if it is unknown; the kernel
        accepts lower limits, but the package does not hold them.
    """
    if low_w := read_bound(limit.with_name(limit.name.replace("power_limit_uw", "min_power_uw"))):
        return low_w, "the kernel's min_power_uw"
    for pattern in PPCC:
        if low_w := next(filter(None, map(read_bound, root.glob(pattern))), None):
            return low_w, "the firmware's PPCC table"
    try:
        low_w = min_package_power_w(read_text(limit.with_name("name")), root)
    except OSError:
        return None, "kernel and firmware do not report it, and reading it from the CPU needs root and `modprobe msr`"
    return (low_w, "the CPU's MSR_PKG_POWER_INFO") if low_w else (None, "kernel, firmware and CPU do not report it")


def min_package_power_w(package: str, root: Path) -> float | None:
    """The minimum power of a package such as `package-0`, in watts; None where the CPU reports 0.

    By MSR_PKG_POWER_INFO, bits 30:16, in units of MSR_RAPL_POWER_UNIT, bits 3:0 (Intel 64 and IA-32 Architectures
    Software Developer's Manual, volume 3, "Package RAPL Domain").

    Raises:
        OSError: The register cannot be read.
    """
    number = re.match(r"package-(\d+)", package)
    for ids in sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id")):
        if number and read_text(ids) == number[1]:
            descriptor = os.open(root / "dev/cpu" / ids.parts[-3].removeprefix("cpu") / "msr", os.O_RDONLY)
            try:
                unit, info = (
                    int.from_bytes(os.pread(descriptor, 8, at), "little") for at in (RAPL_POWER_UNIT, PKG_POWER_INFO)
                )
            finally:
                os.close(descriptor)
            return (info >> 16 & 0x7FFF) / 2 ** (unit & 0xF) or None
    raise FileNotFoundError(f"no CPU of {package}")
