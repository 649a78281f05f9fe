"""AMD GPUs by their driver, amdgpu: in ROCm's order, and the driver's files of each card."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.sysfs import read_text

DUAL_DIE_IDS = ("0x7408", "0x740c")
"""The device IDs of MI250X and MI250: two GPUs to ROCm, but one board, whose first die measures and limits the power
of both."""


class Card(NamedTuple):
    """A GPU of the driver; `number` is its index in PCI order, and `uuid` is `GPU-` if it has none."""

    number: int
    bus: str
    folder: Path
    uuid: str
    is_dual_die: bool


def find_cards(root: Path) -> list[Card]:
    """List the GPUs of amdgpu in PCI order."""
    folders = {}
    for file in root.glob("sys/class/drm/card*/device/uevent"):
        properties = dict(line.partition("=")[::2] for line in read_text(file).splitlines())
        if properties.get("DRIVER") == "amdgpu":
            folders[properties.get("PCI_SLOT_NAME", "")] = file.parent
    return [
        Card(
            number,
            bus,
            folders[bus],
            f"GPU-{read_text(folders[bus] / 'unique_id')}",
            read_text(folders[bus] / "device") in DUAL_DIE_IDS,
        )
        for number, bus in enumerate(sorted(folders))
    ]


def find_card(name: str, cards: Sequence[Card]) -> Card | None:
    """Find a card by its UUID or PCI address."""
    return next((card for card in cards if name in (card.uuid, card.bus)), None)


def board_card(name: str, cards: Sequence[Card]) -> Card:
    """Return the card that measures a GPU (by UUID or PCI address): itself, or the first die of its board."""
    card = find_card(name, cards)
    if card is None:
        raise OSError(f"amdgpu has no GPU {name}; it has {', '.join(card.bus for card in cards) or 'none'}")
    dies = [candidate for candidate in cards if candidate.is_dual_die]
    return dies[dies.index(card) // 2 * 2] if card.is_dual_die else card


def list_gpus(root: Path) -> list[dict[str, str]]:
    """List the GPUs in the driver's order, which is ROCm's, as `machine.gpus` describes them."""
    nodes = sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*"), key=lambda node: int(node.name))
    return [gpu for node in nodes if (gpu := _describe(read_text(node / "name"), read_text(node / "properties")))]


def _describe(model: str, properties: str) -> dict[str, str]:
    """Describe a node of the driver's topology; empty for a node without SIMD units, which is a CPU."""
    values = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", properties, re.MULTILINE)}
    if not values.get("simd_count"):
        return {}
    location, unique = values.get("location_id", 0), values.get("unique_id", 0)
    bus = f"{values.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    return {
        "vendor": "amd",
        "model": model,
        "bus": bus if location else "",
        "uuid": f"GPU-{unique:016x}" if unique else "",  # ROCm's format
    }
