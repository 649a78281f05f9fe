"""The power limit of the CPU packages, by the constraint that RAPL calls long-term."""

from __future__ import annotations

from pathlib import Path

from trainmeter.machine.cpu import long_term_limits
from trainmeter.power.knobs import privilege
from trainmeter.power.knobs.watts import Dial, WattLimit, bound, file_dial


def open_rapl_limit(root: str | Path) -> WattLimit | None:
    """The knob of all packages, watts each; None where the kernel shows no limit."""
    try:
        limits = long_term_limits(Path(root))
    except OSError as error:
        raise privilege.unreadable(error) from error
    return WattLimit("RAPL", {limit.parent.name: dial(limit) for limit in limits}) if limits else None


def dial(limit: Path) -> Dial:
    """A package's limit by its file, with its bounds and its switch beside it."""
    low, high = (
        limit.with_name(limit.name.replace("power_limit_uw", bounded)) for bounded in ("min_power_uw", "max_power_uw")
    )
    return switched(file_dial(limit, low_w=bound(low), high_w=bound(high)), limit.with_name("enabled"))


def switched(dial: Dial, switch: Path) -> Dial:
    """A limit that says so where it is switched off, and would be written for nothing."""

    def write(watts: float) -> None:
        if switch.exists() and privilege.read(switch) == "0":
            raise RuntimeError(f"the CPU's power limit is switched off. Switch it on: echo 1 | sudo tee {switch}")
        dial.write(watts)

    return dial._replace(write=write)
