"""Which of a board's rails make the power of its module, and what the others feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INPUTS = ("VIN", "VDD_IN", "POM_5V_IN")
"""What NVIDIA calls the rail that feeds the whole module: by these a board's total is known without a table."""


def total_of(found: Sequence[str], table: Sequence[str] | None) -> tuple[list[str], str | None]:
    """The rails that make the module's total, and what to say where that is no fact but a rule."""
    if table:
        return list(table), None
    feeding = [name for name in INPUTS if name in found]
    if feeding:
        return feeding[
            :1
        ], f"This board has no table of rails: {feeding[0]} is taken for the whole module, by its name."
    rule = f"the sum of {', '.join(found)} is taken for the module, and may count a rail twice"
    return list(found), f"This board has no table of rails: {rule}. Name them: device.rails.total=[...]"


def covered(name: str, total: Sequence[str], table: Mapping[str, Any]) -> str:
    """What a rail feeds, as far as the board's table tells."""
    if [name] == list(total):
        return "module"
    parts = [part for part, rail in table.items() if rail == name]
    return ", ".join(parts) or ("part of the module" if name in total else "within the module")
