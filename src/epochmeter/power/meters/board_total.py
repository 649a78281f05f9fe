"""The meter of a Jetson's rails: the rails that add up to the board's total power, and the scope of each rail."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypedDict

from epochmeter.power.meter import Instrument, Meter
from epochmeter.power.sampler import Sampler

MODULE = "module"
INPUTS = {"VIN": "input of the carrier board", "VDD_IN": MODULE, "POM_5V_IN": MODULE}
"""NVIDIA's names of the rails that feed all others, with their scope, for boards without a rail table."""
ALL_RAILS = "sum of all rails"
NO_RAIL_TABLE = "No rail table for this board"


class RailTable(TypedDict, total=False):
    """A board's table (`device.rails`); its other keys name a rail's scope, such as `gpu: VDD_GPU_SOC`."""

    total: list[str]
    covers: str
    shunt_ohm: float


class Total(NamedTuple):
    """The rails that add up to a board's total power; `reason` has the assumption that was made, if any."""

    rails: list[str]
    covers: str
    reason: str | None


def rails_meter(
    powers: Mapping[str, Instrument],
    table: RailTable | None,
    period_s: float,
    close: Callable[[], None] = lambda: None,
) -> Meter:
    """Build the meter of a board's rails; ValueError if the board's table names a missing one."""
    table = table or RailTable()
    total = total_of(list(powers), table)
    scoped = {
        name: power._replace(domain=power.domain._replace(covers=rail_scope(name, total, table)))
        for name, power in powers.items()
    }
    sampler = Sampler(scoped, total=total.rails, period_s=period_s)
    return Meter(powers=sampler, total=total.rails, covers=total.covers, reason=total.reason, close=close)


def total_of(available: Sequence[str], table: RailTable) -> Total:
    """Select the rails of the total: from the board's table (ValueError if one is missing), the input rail, or all."""
    if rails := list(table.get("total", ())):
        if missing := sorted(set(rails) - set(available)):
            raise ValueError(
                f"The rail table names {', '.join(missing)} for the total, but there is only {', '.join(available)}. "
                "Name the rails of the total: device.rails.total=[...]"
            )
        return Total(rails, table.get("covers", MODULE), None)
    if inputs := [name for name in INPUTS if name in available]:
        covers = INPUTS[inputs[0]]
        return Total(inputs[:1], covers, f"{NO_RAIL_TABLE}: {inputs[0]} is assumed to be the {covers}, by its name.")
    rule = f"{NO_RAIL_TABLE}: the sum of {', '.join(available)} may count a rail twice"
    return Total(list(available), ALL_RAILS, f"{rule}. Name the rails of the total: device.rails.total=[...]")


def rail_scope(name: str, total: Total, table: RailTable) -> str:
    """The scope of a rail, from the board's table."""
    if [name] == total.rails:
        return total.covers
    parts = [part for part, rail in table.items() if rail == name]
    return ", ".join(parts) or ("part of the module" if name in total.rails else "within the module")
