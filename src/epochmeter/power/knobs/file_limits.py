"""Power limits in kernel files, in microwatts: of CPU packages (RAPL) and of AMD GPUs (amdgpu's hwmon files)."""

import os
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from epochmeter.machine import privilege
from epochmeter.machine.amd import board_card, find_cards
from epochmeter.machine.cpu import long_term_limits
from epochmeter.machine.sysfs import read_text
from epochmeter.power.knobs.watt_limit import DeviceLimit, WattLimit

PPCC = (
    "sys/bus/pci/devices/*/power_limits/power_limit_0_min_uw",
    "sys/bus/platform/devices/INT3401*/power_limits/power_limit_0_min_uw",
)
"""The lowest long-term limit of a laptop's package by the firmware's PPCC table, as int340x_thermal shows it."""
RAPL_POWER_UNIT, PKG_POWER_INFO = 0x606, 0x614
"""Registers (MSRs) of Intel's CPUs."""


def open_rapl_limit(root: str | Path) -> WattLimit | None:
    """Open the power limit of all CPU packages, RAPL's long-term constraint; None if the kernel has no limit."""
    try:
        limits = long_term_limits(Path(root))
    except OSError as error:
        raise privilege.unreadable_error(error) from error
    packages = {}
    for limit in limits:
        low_w, source = _lowest_limit_w(limit, Path(root))
        high_w = _read_bound(limit.with_name(limit.name.replace("power_limit", "max_power")))
        check = partial(_refuse_off, limit.with_name("enabled"))
        packages[limit.parent.name] = _file_limit(limit, low_w, high_w)._replace(low_source=source, check=check)
    return WattLimit("RAPL", packages) if packages else None


def _lowest_limit_w(limit: Path, root: Path) -> tuple[float | None, str]:
    """The lowest limit that a package can hold, in watts, and its source; None and the reason if it is unknown.

    The kernel accepts lower limits, but the package does not hold them.
    """
    if low_w := _read_bound(limit.with_name(limit.name.replace("power_limit", "min_power"))):
        return low_w, "the kernel's min_power_uw"
    for pattern in PPCC:
        if low_w := next(filter(None, map(_read_bound, root.glob(pattern))), None):
            return low_w, "the firmware's PPCC table"
    try:
        low_w = _min_package_power_w(read_text(limit.with_name("name")), root)
    except OSError:
        return None, "kernel and firmware do not report it, and reading it from the CPU needs root and `modprobe msr`"
    return (low_w, "the CPU's MSR_PKG_POWER_INFO") if low_w else (None, "kernel, firmware and CPU do not report it")


def _min_package_power_w(package: str, root: Path) -> float | None:
    """The minimum power of a package such as `package-0`, in watts; None where the CPU reports 0.

    By MSR_PKG_POWER_INFO, bits 30:16, in units of MSR_RAPL_POWER_UNIT, bits 3:0 (Intel 64 and IA-32 Architectures
    Software Developer's Manual, volume 3, "Package RAPL Domain").
    """
    number = re.match(r"package-(\d+)", package)
    for ids in sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id")):
        if number and read_text(ids) == number[1]:
            with open(root / "dev/cpu" / ids.parts[-3].removeprefix("cpu") / "msr", "rb", buffering=0) as registers:
                unit, info = (
                    int.from_bytes(os.pread(registers.fileno(), 8, at), "little")
                    for at in (RAPL_POWER_UNIT, PKG_POWER_INFO)
                )
            return (info >> 16 & 0x7FFF) / 2 ** (unit & 0xF) or None
    raise FileNotFoundError(f"no CPU of {package}")


def _refuse_off(switch: Path) -> None:
    """Refuse a limit that is switched off, since setting it would have no effect; RuntimeError with the remedy."""
    if switch.exists() and privilege.read_file(switch) == "0":
        raise RuntimeError(f"the CPU's power limit is switched off: {switch} is 0\nhint: echo 1 | sudo tee {switch}")


def open_amd_cap(buses: Sequence[str], root: str | Path) -> WattLimit | None:
    """Open the power limit of GPUs, one per board; None unless each GPU has one."""
    cards = find_cards(Path(root))
    try:
        boards = {board_card(bus, cards) for bus in buses}
    except OSError:
        return None
    limits = {}
    for board in sorted(boards):
        for cap in sorted(board.folder.glob("hwmon/hwmon*/power1_cap")):
            low_w, high_w = (_read_bound(cap.with_name(f"power1_cap_{which}")) for which in ("min", "max"))
            limits[board.bus] = _file_limit(cap, low_w, high_w)
    return WattLimit("amdgpu", limits) if len(limits) == len(boards) and limits else None


def _file_limit(file: Path, low_w: float | None, high_w: float | None) -> DeviceLimit:
    """The power limit in a file, with its bounds in watts."""

    def read() -> float:
        try:
            return int(file.read_text()) / 1e6
        except ValueError as error:
            raise RuntimeError(f"{file} is not a number: {error}") from error

    return DeviceLimit(
        low_w,
        high_w,
        read,
        lambda watts: privilege.write_file(file, str(round(watts * 1e6))),
        lambda watts: f"echo {round(watts * 1e6)} | sudo tee {shlex.quote(str(file))}",
        file,
    )


def _read_bound(file: Path) -> float | None:
    """Read a bound in watts; None if the file is missing, not a number or 0."""
    try:
        return int(file.read_text()) / 1e6 or None
    except (OSError, ValueError):
        return None
