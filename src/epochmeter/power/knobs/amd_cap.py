"""The power limit of AMD GPUs, by the hwmon files of their driver, amdgpu."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from epochmeter.machine.amd import board_card, find_cards
from epochmeter.power.knobs.watt_limit import WattLimit, file_limit, read_bound


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
            low_w, high_w = (read_bound(cap.with_name(f"power1_cap_{which}")) for which in ("min", "max"))
            limits[board.bus] = file_limit(cap, low_w=low_w, high_w=high_w)
    return WattLimit("amdgpu", limits) if len(limits) == len(boards) and limits else None
