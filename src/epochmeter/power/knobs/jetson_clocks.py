"""jetson_clocks: locks a Jetson's clocks at the maximum of its power mode, which disables frequency scaling."""

import shlex
import shutil
from pathlib import Path

from epochmeter.machine import privilege
from epochmeter.machine.jetson import LOCKED, UNLOCKED, clocks, gpu_devfreqs
from epochmeter.power.knobs import jtop_control
from epochmeter.power.knobs.jtop_control import JOIN_JTOP, run_by_jtop_or_sudo
from epochmeter.power.knobs.knob import Knob, wait_until_set

STORED_BY_JTOP = "/usr/local/jtop/l4t_dfs.conf"
"""The original clocks if jtop's service locked them."""


class JetsonClocks(Knob):
    """Locked or free clocks, as a `Knob`."""

    name = "jetson_clocks"
    commands = ()  # none: `--restore FILE` writes the contents of any file as root

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._stored = folder / "l4t_dfs.conf"
        """The original clocks in the program's format; the file exists while this tool has locked them by it."""
        self._requested = False
        lowest = [*root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_min_freq")]
        self.files = [*lowest, *(gpu / "min_freq" for gpu in gpu_devfreqs(root))]

    @property
    def pending(self) -> bool:
        """Whether the clocks may be locked although `get` reads free: some of them, or later by jtop's service."""
        return self._requested or self._stored.exists()

    @pending.setter
    def pending(self, requested: bool) -> None:
        self._requested = requested

    def get(self) -> str:
        if state := clocks(self._root):
            return state
        raise RuntimeError(f"cannot read any clock below {self._root / 'sys/devices/system/cpu'}")

    def set(self, setting: str) -> None:
        """Store the clocks and lock them, or restore them: as root, by jtop's service, or by sudo."""
        if setting == self.get() and (setting == LOCKED or not self.pending):
            return
        output = ""
        if setting == LOCKED:
            self._stored.unlink(missing_ok=True)  # otherwise the program prompts before it overwrites the file
            output = run_by_jtop_or_sudo(lambda: jtop_control.lock_clocks(True), self._lock)
        elif self._stored.exists():
            output = privilege.run_as_root("jetson_clocks", "--restore", str(self._stored), allow=JOIN_JTOP)
        else:
            jtop_control.lock_clocks(False)
        wait_until_set(self, setting, output)
        if setting == UNLOCKED:
            self._stored.unlink(missing_ok=True)

    def choices(self) -> str:
        return LOCKED

    def by_hand(self, setting: str) -> str:
        if setting == LOCKED:
            return "sudo jetson_clocks"
        by_jtop = clocks(self._root) == LOCKED and not self._stored.exists()
        return f"sudo jetson_clocks --restore {shlex.quote(STORED_BY_JTOP if by_jtop else str(self._stored))}"

    def _lock(self) -> str:
        self._stored.parent.mkdir(parents=True, exist_ok=True)
        output = privilege.run_as_root("jetson_clocks", "--store", str(self._stored), allow=JOIN_JTOP)
        if not self._stored.exists():
            raise RuntimeError(f"jetson_clocks did not store the original clocks: {' '.join(output.split())}")
        return privilege.run_as_root("jetson_clocks", allow=JOIN_JTOP)


def open_jetson_clocks(root: str | Path, folder: Path) -> JetsonClocks | None:
    """Open the clocks of a Jetson; None if the program is not installed."""
    return JetsonClocks(Path(root), folder) if shutil.which("jetson_clocks") else None
