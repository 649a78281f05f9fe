"""jetson_clocks: holds a Jetson's clocks at the highest that its power mode allows, so that nothing scales them."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from operator import eq
from pathlib import Path
from typing import Any

from epochmeter.machine.jetson import FREE, LOCKED, clocks, gpu_devfreqs
from epochmeter.power.knobs import jtop_control, privilege
from epochmeter.power.knobs.jtop_control import JOIN_JTOP, jtop_or_sudo
from epochmeter.power.knobs.knob import Wish, settled

STORED_BY_JTOP = "/usr/local/jtop/l4t_dfs.conf"
"""What the clocks were, where jtop's service locked them."""


class JetsonClocks:
    name = "jetson_clocks"
    devices: Sequence[str] = ()
    commands: Sequence[Sequence[str]] = ()  # none: `--restore FILE` writes the contents of any file as root
    same = staticmethod(eq)

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._stored = folder / "l4t_dfs.conf"
        """What the clocks were, in the program's own format; there while it is we that locked them by the program."""
        self._requested = False
        lowest = [*root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_min_freq")]
        self.files: Sequence[Path] = [*lowest, *(gpu / "min_freq" for gpu in gpu_devfreqs(root))]

    @property
    def pending(self) -> bool:
        """Whether the clocks may be locked although `get` reads free: only some, or late by jtop's service."""
        return self._requested or self._stored.exists()

    @pending.setter
    def pending(self, requested: bool) -> None:
        self._requested = requested

    def get(self) -> str:
        if told := clocks(self._root):
            return told
        raise RuntimeError(f"no clock can be read below {self._root / 'sys/devices/system/cpu'}.")

    def set(self, setting: str) -> None:
        """Locks the clocks after storing what they were, or restores that: by jtop's service, as root, or by sudo."""
        if setting == self.get() and (setting == LOCKED or not self.pending):
            return
        if setting == LOCKED:
            self._stored.unlink(missing_ok=True)  # the program asks whether to overwrite, and nobody answers
            said = jtop_or_sudo(lambda: jtop_control.lock_clocks(True), self._lock)
        elif self._stored.exists():
            said = privilege.as_root("jetson_clocks", "--restore", str(self._stored), allow=JOIN_JTOP)
        else:
            said = jtop_control.lock_clocks(False)
        settled(self, setting, said)
        if setting == FREE:
            self._stored.unlink(missing_ok=True)

    def choices(self) -> str:
        return LOCKED

    def wish(self, asked: Any) -> Wish:
        if asked != LOCKED:
            raise ValueError(f"clocks={asked}: give keep or {self.choices()}.")
        return Wish(LOCKED)

    def by_hand(self, setting: str) -> str:
        if setting == LOCKED:
            return "sudo jetson_clocks"
        by_jtop = clocks(self._root) == LOCKED and not self._stored.exists()
        return f"sudo jetson_clocks --restore {shlex.quote(STORED_BY_JTOP if by_jtop else str(self._stored))}"

    def _lock(self) -> str:
        self._stored.parent.mkdir(parents=True, exist_ok=True)
        said = privilege.as_root("jetson_clocks", "--store", str(self._stored), allow=JOIN_JTOP)
        if not self._stored.exists():
            raise RuntimeError(f"jetson_clocks did not store the clocks to put back: {' '.join(said.split())}")
        return privilege.as_root("jetson_clocks", allow=JOIN_JTOP)


def open_jetson_clocks(root: str | Path, folder: Path) -> JetsonClocks | None:
    """The knob of a Jetson; None where there is no such program. `folder` is where it keeps what the clocks were."""
    return JetsonClocks(Path(root), folder) if shutil.which("jetson_clocks") else None
