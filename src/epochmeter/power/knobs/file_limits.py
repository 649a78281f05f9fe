"""Power limits in kernel files, in microwatts: of CPU packages (RAPL) and of AMD GPUs (amdgpu's hwmon files)."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from epochmeter.machine import privilege
from epochmeter.machine.amd import board_card, find_cards
from epochmeter.machine.host import long_term_limits
from epochmeter.power.knobs.watt_limit import DeviceLimit, WattLimit


def open_rapl_limit(root: str | Path) -> WattLimit | None:
    """Open the power limit of all CPU packages, RAPL's long-term constraint; None if the kernel has no limit."""
    try:
        files = long_term_limits(Path(root))
    except OSError as error:
        raise privilege.unreadable_error(error) from error
    packages = {}
    for file in files:
        low, high = (file.with_name(file.name.replace("power_limit", name)) for name in ("min_power", "max_power"))
        check = partial(_refuse_off, file.with_name("enabled"))
        packages[file.parent.name] = _file_limit(file, low, high)._replace(check=check)
    return WattLimit("RAPL", packages) if packages else None


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
    limits = {
        board.bus: _file_limit(cap, cap.with_name("power1_cap_min"), cap.with_name("power1_cap_max"))
        for board in sorted(boards)
        for cap in sorted(board.folder.glob("hwmon/hwmon*/power1_cap"))
    }
    return WattLimit("amdgpu", limits) if len(limits) == len(boards) and limits else None


def _file_limit(file: Path, low: Path, high: Path) -> DeviceLimit:
    """The power limit in a file, with its bounds in two others."""

    def read() -> float:
        try:
            return int(file.read_text()) / 1e6
        except ValueError as error:
            raise RuntimeError(f"{file} is not a number: {error}") from error

    return DeviceLimit(
        _read_bound_w(low),
        _read_bound_w(high),
        read,
        lambda watts: privilege.write_file(file, str(round(watts * 1e6))),
        lambda watts: f"echo {round(watts * 1e6)} | sudo tee {shlex.quote(str(file))}",
        file,
    )


def _read_bound_w(file: Path) -> float | None:
    """Read a bound in watts; None if the file is missing, not a number or 0."""
    try:
        return int(file.read_text()) / 1e6 or None
    except (OSError, ValueError):
        return None
