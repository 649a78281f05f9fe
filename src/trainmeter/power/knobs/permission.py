"""Whether this user may turn a knob, as far as that can be told without turning it."""

import os
from importlib.util import find_spec

from trainmeter.power.knobs import privilege

TEE = ("tee", "--version")
ASKED = {
    "nvpmodel": ("nvpmodel", "-q"),
    "jetson_clocks": ("jetson_clocks", "--show"),
    "fan": TEE,
    "RAPL": TEE,
    "amdgpu": TEE,
}
"""What sudo runs to turn a knob, asked for what changes nothing: sudo's list has what takes a password as well."""
ZEUSD = ("ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT")
"""What names zeus's service, as zeus reads it."""
OF_JTOP = ("nvpmodel", "jetson_clocks", "fan")
"""The knobs that jtop's service turns for the members of its group."""
JTOP_SOCKET = "/run/jtop.sock"


def permission(name: str) -> tuple[str, str | None]:
    """How this user may turn a knob, as far as that can be told without turning it; or "", and what would allow it."""
    if os.geteuid() == 0:
        return "as root", None
    if name == "NVML":
        if any(name in os.environ for name in ZEUSD):
            return "by zeusd", None
        return "", f"run zeusd, zeus's service, and name it by {' or '.join(ZEUSD)}"
    if name in OF_JTOP and find_spec("jtop") and os.access(JTOP_SOCKET, os.R_OK | os.W_OK):
        return "by jtop's service", None
    try:
        privilege.as_root(*ASKED[name])
        return "by sudo", None
    except RuntimeError:
        join = "join the group jtop (sudo usermod -aG jtop $USER), or " if name in OF_JTOP else ""
        return "", f"{join}let sudo run {ASKED[name][0]} without a password (sudo visudo)"
