"""What jtop's service, which is root, does for the members of its group: power mode, clocks and fan of a Jetson.

Its answers come late or not at all: who asks here looks afterwards whether it was done.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from epochmeter.power.meters.jtop import connected

INTERVAL_S = 0.5
JOIN_JTOP = "sudo usermod -aG jtop $USER, then log in again: jtop's service sets it for its group"


def jtop_or_sudo(by_jtop: Callable[[], str], by_sudo: Callable[[], str]) -> str:
    """Does what takes root: by jtop's service where it lets this user, or else by sudo; root needs neither.

    RuntimeError says why neither can be had.
    """
    if os.geteuid() == 0:
        return by_sudo()
    try:
        return by_jtop()
    except RuntimeError as no_jtop:
        try:
            return by_sudo()
        except RuntimeError as no_sudo:
            raise RuntimeError(f"{no_sudo}\nhint: jtop's service could do it too, but failed: {no_jtop}") from no_sudo


def set_mode(number: int, name: str) -> str:
    """Asks for a power mode; RuntimeError where jtop, which counts the modes itself, numbers them otherwise."""
    with connected(INTERVAL_S) as client:
        if client.nvpmodel is None or client.nvpmodel.models[number : number + 1] != [name]:
            raise RuntimeError(f"jtop does not know {name} as mode {number}.")
        client.nvpmodel.set_nvpmodel_id(number)
    return ""


def lock_clocks(on: bool) -> str:
    """Asks for jetson_clocks, or for what was there before jtop turned it on."""
    with connected(INTERVAL_S) as client:
        if client.jetson_clocks is None:
            raise RuntimeError("jtop finds no jetson_clocks.")
        client.jetson_clocks = on
    return ""


def set_fan(profile: str, percent: float) -> str:
    """Asks for a fan's profile, such as quiet, and for its speed where the profile is manual."""
    with connected(INTERVAL_S) as client:
        name = next(iter(client.fan), None)
        if name is None:
            raise RuntimeError("jtop finds no fan.")
        client.fan.set_profile(name, profile)
        if profile == "manual":
            client.fan.set_speed(name, percent)
    return ""
