"""Whether this process may change a setting, checked without changing it."""

import os
import shutil
from importlib.util import find_spec

from epochmeter.machine import privilege
from epochmeter.machine.jetson import JTOP_SOCKET
from epochmeter.power.knobs.gpu_clock import ClockLock
from epochmeter.power.knobs.jetson import JOIN_JTOP
from epochmeter.power.knobs.knob import Knob
from epochmeter.power.knobs.watt_limit import ZEUSD_HINT, ZEUSD_VARIABLES, ask_zeusd
from epochmeter.shared.problem import MachineError, problem_of

FROM_CONTAINER = "in a container: start it with --privileged"


def permission(knob: Knob) -> tuple[str, str | None]:
    """Check how this process may change a setting: the way ("by sudo", ...) and None, or "" and a remedy."""
    if knob.name == "NVML":
        return driver_permission()
    if isinstance(knob, ClockLock):
        return clock_permission()
    if os.geteuid() == 0:
        return root_permission(knob)
    if not knob.by_jtop and all(map(privilege.can_open_for_writing, knob.files)):
        return "directly", None
    if knob.by_jtop and find_spec("jtop") and os.access(JTOP_SOCKET, os.R_OK | os.W_OK):
        return "by jtop's service", None
    if sudo_permission(knob):
        return "by sudo", None
    rules = [privilege.sudoers_rule(knob.commands)] if knob.commands else []
    return "", " or: ".join([JOIN_JTOP, *rules] if knob.by_jtop else rules)


def driver_permission() -> tuple[str, str | None]:
    if any(name in os.environ for name in ZEUSD_VARIABLES):
        try:
            ask_zeusd()
        except MachineError as error:
            problem = problem_of(error)
            return "", f"{problem.hint} ({problem.message})"
        return "by zeusd", None
    if privilege.has_capability(privilege.CAP_SYS_ADMIN):
        return "as root", None
    container = f", or {FROM_CONTAINER} or with --cap-add SYS_ADMIN" if os.geteuid() == 0 else ""
    return "", f"{ZEUSD_HINT}{container}"


def clock_permission() -> tuple[str, str | None]:
    """Check whether this process may lock clocks of GPUs, which only root may."""
    if privilege.has_capability(privilege.CAP_SYS_ADMIN):
        return "as root", None
    container = f", or {FROM_CONTAINER} or with --cap-add SYS_ADMIN" if os.geteuid() == 0 else ""
    return "", f"run as root{container}"


def root_permission(knob: Knob) -> tuple[str, str | None]:
    """Check whether root may change a setting: in a container, the kernel's files are often read-only."""
    if knob.query and not shutil.which(knob.query[0]):
        return "", f"make the board's own {knob.query[0]} available here, or use jtop's service as its user"
    closed = [file for file in knob.files if not privilege.can_open_for_writing(file)]
    return ("", f"{closed[0]} is read-only here; {FROM_CONTAINER}") if closed else ("as root", None)


def sudo_permission(knob: Knob) -> bool:
    """Whether sudo runs the commands that change a setting without a password; `sudo -l` also lists others."""
    if not knob.query:
        return all(map(privilege.may_write, knob.files))
    try:
        privilege.run_as_root(*knob.query)
    except RuntimeError:
        return False
    return True
