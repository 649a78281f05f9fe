"""Which of a board's rails make its total, what that covers, and what the others feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MODULE = "module"
INPUTS = {"VIN": "input of the carrier board", "VDD_IN": MODULE, "POM_5V_IN": MODULE}
"""What NVIDIA calls the rails that feed all others, and what they feed: by these a board's total is known without a
table."""
ALL = "sum of all rails"
UNTABLED = "This board has no table of rails"


class Total(NamedTuple):
    """The rails that make a board's total."""

    rails: list[str]
    covers: str
    reason: str | None
    """What to say where that is no fact but a rule."""


def total_of(found: Sequence[str], table: Mapping[str, Any]) -> Total:
    """The total of a board that has these rails, by its `table`, or else by the rule for a board without one."""
    if table.get("total"):
        return Total(list(table["total"]), table.get("covers", MODULE), None)
    if feeding := [name for name in INPUTS if name in found]:
        covers = INPUTS[feeding[0]]
        return Total(feeding[:1], covers, f"{UNTABLED}: {feeding[0]} is taken for the {covers}, by its name.")
    rule = f"{UNTABLED}: the sum of {', '.join(found)} may count a rail twice"
    return Total(list(found), ALL, f"{rule}. Name those that make the total: device.rails.total=[...]")


def covered(name: str, total: Total, table: Mapping[str, Any]) -> str:
    """What a rail feeds, as far as the board's table tells."""
    if [name] == total.rails:
        return total.covers
    parts = [part for part, rail in table.items() if rail == name]
    return ", ".join(parts) or ("part of the module" if name in total.rails else "within the module")
