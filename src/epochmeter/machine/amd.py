"""AMD's GPUs by their driver, amdgpu, and which of them are one board."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.sysfs import text

DUAL = ("0x7408", "0x740c")
"""The device IDs of MI250X and MI250: two GPUs to ROCm, but one board, whose first die tells and bounds the power of
both."""


class Card(NamedTuple):
    """A GPU by its driver: its number and place in the order of the PCI bus, and where its files are."""

    number: int
    bus: str
    folder: Path
    dual: bool


def find_cards(root: Path) -> list[Card]:
    """The GPUs that amdgpu drives, in the order of the PCI bus."""
    places = {}
    for file in root.glob("sys/class/drm/card*/device/uevent"):
        said = dict(line.partition("=")[::2] for line in text(file).splitlines())
        if said.get("DRIVER") == "amdgpu":
            places[said.get("PCI_SLOT_NAME", "")] = file.parent
    return [
        Card(number, bus, places[bus], text(places[bus] / "device") in DUAL)
        for number, bus in enumerate(sorted(places))
    ]


def board_of(name: str, cards: Sequence[Card]) -> Card:
    """The card that stands for the GPU of that name: itself, or the first die of its board; OSError where there is
    none."""
    for card in cards:
        if name in (card.bus, f"GPU-{text(card.folder / 'unique_id')}"):
            dies = [other for other in cards if other.dual]
            return dies[dies.index(card) // 2 * 2] if card.dual else card
    raise OSError(f"amdgpu drives no GPU {name}: it drives {', '.join(card.bus for card in cards) or 'none'}.")
