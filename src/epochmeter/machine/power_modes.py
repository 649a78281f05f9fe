"""The power modes of a Jetson, from the board's /etc/nvpmodel.conf."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.sysfs import match_group, read_text

CONF_FILE = "etc/nvpmodel.conf"


class Mode(NamedTuple):
    """A power mode.

    Attributes:
        number: Its id in nvpmodel.
        name: Its name on this board.
        cores: Number of CPU cores online.
        gating: Masks of the GPU's parts without power; nvpmodel can change them only by a reboot.
    """

    number: int
    name: str
    cores: int
    gating: frozenset[tuple[str, str]]

    def __str__(self) -> str:
        return f"{self.name} (id:{self.number})"

    @property
    def watts(self) -> float | None:
        """The watts in the mode's name, if there are any."""
        words = (re.fullmatch(r"(\d+)W", word) for word in self.name.upper().split("_"))
        return next((float(word[1]) for word in words if word), None)


def read_modes(conf: str) -> tuple[Mapping[int, Mode], int | None]:
    """The modes of an nvpmodel.conf by number, in its order, and the number of the default."""
    modes: dict[int, Mode] = {}
    default = mode = None
    for line in conf.splitlines():
        words = line.partition("#")[0].replace("<", " < ").replace(">", " > ").split()
        match words:
            case ["<", "POWER_MODEL", number, name, ">"] if parse_value(number).isdigit():
                mode = Mode(int(parse_value(number)), parse_value(name), 0, frozenset())
            case ["<", "PM_CONFIG", number, ">"] if parse_value(number).isdigit():
                default, mode = int(parse_value(number)), None
            case ["<", *_]:
                mode = None
            case ["CPU_ONLINE", _, "1"] if mode:
                mode = mode._replace(cores=mode.cores + 1)
            case [_, mask, bits] if mode and mask.endswith("_PG_MASK"):
                mode = mode._replace(gating=mode.gating | {(mask, bits)})
        if mode:
            modes[mode.number] = mode
    return modes, default


def parse_value(assignment: str) -> str:
    """The text after `=`."""
    return assignment.partition("=")[2]


def current_mode(root: Path) -> int | None:
    """The id of the current mode, from nvpmodel's status file; None if there is none."""
    number = match_group(r"pmode:(\d+)", read_text(root / "var/lib/nvpmodel/status"))
    return int(number) if number else None
