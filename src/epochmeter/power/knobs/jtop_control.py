"""Power mode, clocks and fan of a Jetson, set by jtop's service.

The service runs as root and serves the members of its group. It may apply a setting late or not at all, so callers
must read it back.
"""

import os
from collections.abc import Callable

from epochmeter.power.meters.jtop import connect_client

INTERVAL_S = 0.5
JOIN_JTOP = "sudo usermod -aG jtop $USER, then log in again: jtop's service sets it for its group"


def run_by_jtop_or_sudo(by_jtop: Callable[[], None], by_sudo: Callable[[], str]) -> str:
    """Change a setting that needs root: directly as root, else by jtop's service, else by sudo; returns the output."""
    if os.geteuid() == 0:
        return by_sudo()
    try:
        by_jtop()
        return ""
    except RuntimeError as no_jtop:
        try:
            return by_sudo()
        except RuntimeError as no_sudo:
            raise RuntimeError(f"{no_sudo}\nhint: jtop's service could do it too, but failed: {no_jtop}") from no_sudo


def set_mode(number: int, name: str) -> None:
    """Request a power mode; RuntimeError if jtop, which counts the modes itself, has another number for it."""
    with connect_client(INTERVAL_S) as client:
        if client.nvpmodel is None or client.nvpmodel.models[number : number + 1] != [name]:
            raise RuntimeError(f"jtop has no power mode {number} named {name}")
        client.nvpmodel.set_nvpmodel_id(number)


def lock_clocks(on: bool) -> None:
    """Request jetson_clocks, or the clocks from before jtop switched it on."""
    with connect_client(INTERVAL_S) as client:
        if client.jetson_clocks is None:
            raise RuntimeError("jtop does not find jetson_clocks")
        client.jetson_clocks = on


def set_fan(profile: str, percent: float) -> None:
    """Request a fan profile, such as quiet, and the speed in percent if the profile is manual."""
    with connect_client(INTERVAL_S) as client:
        name = next(iter(client.fan), None)
        if name is None:
            raise RuntimeError("jtop does not find a fan")
        client.fan.set_profile(name, profile)
        if profile == "manual":
            client.fan.set_speed(name, percent)
