"""A Jetson's fan: at full speed, its power and its cooling are the same in every run.

A setting is a profile and a duty of 0 to 255, as in "quiet 77". The profile names the controller of the duty: `manual`
for none, `temp_control` for the kernel (JetPack 4), else a profile of the service nvfancontrol (JetPack 5 and later).
"""

import shlex
import shutil
from pathlib import Path

from epochmeter.machine import privilege
from epochmeter.machine.jetson import default_fan_profile, fan_duty
from epochmeter.power.knobs import jtop_control
from epochmeter.power.knobs.jtop_control import run_by_jtop_or_sudo
from epochmeter.power.knobs.knob import Knob, SettingTarget, wait_until_set

MAX_DUTY = 255
MANUAL, KERNEL = "manual", "temp_control"
SERVICE = "nvfancontrol"


class Fan(Knob):
    """The fan's profile and duty, as a `Knob`."""

    name = "fan"

    def __init__(self, root: Path, duty: Path) -> None:
        self._root, self._duty = root, duty
        self._kernel = duty.with_name(KERNEL)
        self.files = [duty, self._kernel] if self._kernel.exists() else [duty]
        verbs = () if self._kernel.exists() else ("stop", "start")
        self.commands = [("tee", str(file)) for file in self.files] + [("systemctl", verb, SERVICE) for verb in verbs]

    def get(self) -> str:
        return f"{self._profile()} {self._duty.read_text().strip()}"

    def set(self, setting: str) -> None:
        """Set a fixed duty, or return control to a profile: as root, by jtop's service, or by sudo."""
        profile, duty = setting.split()
        output = run_by_jtop_or_sudo(
            lambda: jtop_control.set_fan(profile, 100 * int(duty) / MAX_DUTY), lambda: self._by_sudo(profile, duty)
        )
        wait_until_set(self, setting, output)

    def is_equal(self, setting: str, other: str) -> bool:
        """Whether two settings have the same profile and, for `manual`, the same duty."""
        profile, duty = setting.split()
        other_profile, other_duty = other.split()
        return profile == other_profile and (profile != MANUAL or abs(int(duty) - int(other_duty)) <= 1)

    def choices(self) -> str:
        return "max"

    def target_for(self, value: str | float) -> SettingTarget:
        return SettingTarget(f"{MANUAL} {MAX_DUTY}")  # for `max`, the only value of `fan` other than keep

    def by_hand(self, setting: str) -> str:
        profile, duty = setting.split()
        if profile == MANUAL:
            return f"echo {duty} | sudo tee {shlex.quote(str(self._duty))}"
        if profile == KERNEL:
            return f"echo 1 | sudo tee {shlex.quote(str(self._kernel))}"
        return f"sudo systemctl start {SERVICE}"

    def _by_sudo(self, profile: str, duty: str) -> str:
        output = ""
        if self._kernel.exists():
            privilege.write_file(self._kernel, str(int(profile == KERNEL)))
        elif profile != MANUAL:
            return privilege.run_as_root("systemctl", "start", SERVICE)
        elif self._profile() != MANUAL:
            output = privilege.run_as_root("systemctl", "stop", SERVICE)
        privilege.write_file(self._duty, duty)
        return output

    def _profile(self) -> str:
        if self._kernel.exists():
            return KERNEL if self._kernel.read_text().strip() == "1" else MANUAL
        state = privilege.run_program("systemctl", "is-active", SERVICE) if shutil.which("systemctl") else ""
        return (default_fan_profile(self._root) or SERVICE) if state.strip() == "active" else MANUAL


def open_fan(root: str | Path) -> Fan | None:
    """Open the fan of the Jetson below `root`; None if it has none."""
    root = Path(root)
    try:
        duty = fan_duty(root)
    except OSError as error:
        raise privilege.unreadable_error(error) from error
    return Fan(root, duty) if duty else None
