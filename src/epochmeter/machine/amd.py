"""AMD GPUs by their driver, amdgpu, and which of them share a board."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.sysfs import read_text

DUAL_DIE_IDS = ("0x7408", "0x740c")
"""The device IDs of MI250X and MI250: two GPUs to ROCm, but one board, whose first die measures and limits the power
of both."""


class Card(NamedTuple):
    """A GPU of the driver.

    Attributes:
        number: Its index in PCI order.
        bus: Its PCI address.
        folder: The driver's files.
        dual: Whether it is one of two dies of a board.
    """

    number: int
    bus: str
    folder: Path
    is_dual_die: bool


def find_cards(root: Path) -> list[Card]:
    """List the GPUs of amdgpu in PCI order."""
    folders = {}
    for file in root.glob("sys/class/drm/card*/device/uevent"):
        properties = dict(line.partition("=")[::2] for line in read_text(file).splitlines())
        if properties.get("DRIVER") == "amdgpu":
            folders[properties.get("PCI_SLOT_NAME", "")] = file.parent
    return [
        Card(number, bus, folders[bus], read_text(folders[bus] / "device") in DUAL_DIE_IDS)
        for number, bus in enumerate(sorted(folders))
    ]


def board_card(name: str, cards: Sequence[Card]) -> Card:
    """Return the card that measures a GPU: itself, or the first die of its board.

    Args:
        name: The GPU's UUID or PCI address.
        cards: All cards, as `find_cards` lists them.

    Raises:
        OSError: There is no such GPU.
    """
    for card in cards:
        if name in (card.bus, f"GPU-{read_text(card.folder / 'unique_id')}"):
            dies = [candidate for candidate in cards if candidate.is_dual_die]
            return dies[dies.index(card) // 2 * 2] if card.is_dual_die else card
    raise OSError(f"amdgpu has no GPU {name}; it has {', '.join(card.bus for card in cards) or 'none'}.")
