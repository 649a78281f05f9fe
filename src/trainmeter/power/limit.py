"""Whether the device that trains has a power limit to set, and what it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def found(trains_on_gpu: bool, facts: Mapping[str, str | None], root: str | os.PathLike[str] = "/") -> str | None:
    """The name of what limits the power of the device that trains, or None where nothing can be set.

    A Jetson's power modes limit the whole module, whichever part of it trains.
    """
    below = Path(root)
    if (below / "etc/nvpmodel.conf").exists():
        return "nvpmodel"
    if trains_on_gpu and facts.get("gpu"):
        return {"nvidia": "NVML", "amd": "amdsmi"}[str(facts["gpu"])]
    if any(below.glob("sys/class/powercap/intel-rapl:*/constraint_0_power_limit_uw")):
        return "RAPL"
    return None
