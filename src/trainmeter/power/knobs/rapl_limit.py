"""The power limit of the CPU packages, by the constraint that RAPL calls long-term."""

from __future__ import annotations

import re
from pathlib import Path

from trainmeter.power.knobs import privilege
from trainmeter.power.knobs.watts import Dial, WattLimit, bound, file_dial


def open_rapl_limit(root: str | Path) -> WattLimit | None:
    """The knob of all packages, watts each; None where the kernel shows no limit.

    What holds all packages (psys), and what shows them a second time (mmio), is left alone.
    """
    dials = {}
    for zone in sorted(Path(root).glob("sys/class/powercap/intel-rapl:*")):
        if re.match(r"package-\d", text(zone / "name")) and (dial := long_term(zone)):
            dials[zone.name] = dial
    return WattLimit("RAPL", dials) if dials else None


def long_term(zone: Path) -> Dial | None:
    """The limit that holds for seconds and longer; None where the zone counts, but has no limit."""
    for name in sorted(zone.glob("constraint_*_name")):
        limit, low, high = (
            name.with_name(name.name.replace("name", what))
            for what in ("power_limit_uw", "min_power_uw", "max_power_uw")
        )
        if text(name) == "long_term" and limit.exists():
            return switched(file_dial(limit, low_w=bound(low), high_w=bound(high)), zone / "enabled")
    return None


def switched(dial: Dial, switch: Path) -> Dial:
    """A limit that says so where it is switched off, and would be written for nothing."""

    def write(watts: float) -> None:
        if text(switch) == "0":
            raise RuntimeError(f"the CPU's power limit is switched off. Switch it on: echo 1 | sudo tee {switch}")
        dial.write(watts)

    return dial._replace(write=write)


def text(file: Path) -> str:
    return privilege.read(file) if file.exists() else ""
