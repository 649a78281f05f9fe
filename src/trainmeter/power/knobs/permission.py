"""Whether this user may turn a knob, as far as that can be told without turning it."""

import os
from importlib.util import find_spec

from trainmeter.power.knobs import privilege

PROGRAMS = {"nvpmodel": "nvpmodel", "jetson_clocks": "jetson_clocks", "fan": "tee", "RAPL": "tee", "amdgpu": "tee"}
"""What sudo runs to turn a knob."""
OF_JTOP = ("nvpmodel", "jetson_clocks", "fan")
"""The knobs that jtop's service turns for the members of its group."""
JTOP_SOCKET = "/run/jtop.sock"


def permission(name: str) -> tuple[str, str | None]:
    """How this user may turn a knob, as far as that can be told without turning it; or "", and what would allow it."""
    if os.geteuid() == 0:
        return "as root", None
    if name == "NVML":
        if os.environ.get("ZEUSD_SOCK_PATH"):
            return "by zeusd", None
        return "", "run zeusd, zeus's service, and name its socket by ZEUSD_SOCK_PATH"
    if name in OF_JTOP and find_spec("jtop") and os.access(JTOP_SOCKET, os.R_OK | os.W_OK):
        return "by jtop's service", None
    program = PROGRAMS[name]
    try:
        if privilege.answer("sudo", "-n", "-l", program).startswith("/"):
            return "by sudo", None
    except RuntimeError:
        pass  # there is no sudo
    join = "join the group jtop (sudo usermod -aG jtop $USER), or " if name in OF_JTOP else ""
    return "", f"{join}let sudo run {program} without a password (sudo visudo)"
