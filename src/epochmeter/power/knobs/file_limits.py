"""Power limits in kernel files, in microwatts: of CPU packages (RAPL) and of AMD GPUs (amdgpu's hwmon files)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from epochmeter.machine.amd import board_card, find_cards
from epochmeter.machine.cpu import long_term_limits
from epochmeter.power.knobs import privilege
from epochmeter.power.knobs.watt_limit import DeviceLimit, WattLimit


def open_rapl_limit(root: str | Path) -> WattLimit | None:
    """Open the power limit of all CPU packages, RAPL's long-term constraint; None if the kernel has no limit."""
    try:
        limits = long_term_limits(Path(root))
    except OSError as error:
        raise privilege.unreadable_error(error) from error
    return WattLimit("RAPL", {limit.parent.name: _package_limit(limit) for limit in limits}) if limits else None


def _package_limit(limit: Path) -> DeviceLimit:
    low, high = (limit.with_name(limit.name.replace("power_limit", f"{which}_power")) for which in ("min", "max"))
    return _file_limit(limit, low, high)._replace(check=lambda: _refuse_off(limit.with_name("enabled")))


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
            low, high = (cap.with_name(f"power1_cap_{which}") for which in ("min", "max"))
            limits[board.bus] = _file_limit(cap, low, high)
    return WattLimit("amdgpu", limits) if len(limits) == len(boards) and limits else None


def _file_limit(file: Path, low: Path, high: Path) -> DeviceLimit:
    """The power limit in a file, with the files of its bounds."""

    def read() -> float:
        try:
            return int(file.read_text()) / 1e6
        except ValueError as error:
            raise RuntimeError(f"{file} is not a number: {error}") from error

    return DeviceLimit(
        _read_bound(low),
        _read_bound(high),
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
