"""The power cap of AMD GPUs, by the files of their driver, amdgpu."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainmeter.power.knobs.watts import WattLimit, bound, file_dial


def open_amd_cap(buses: Sequence[str], root: str | Path) -> WattLimit | None:
    """The knob of the GPUs at these PCI addresses; None unless each has a cap."""
    dials = {}
    for bus in buses:
        for cap in sorted(Path(root).glob(f"sys/bus/pci/devices/{bus}/hwmon/hwmon*/power1_cap")):
            low_w, high_w = (bound(cap.with_name(f"power1_cap_{which}")) for which in ("min", "max"))
            dials[bus] = file_dial(cap, low_w=low_w, high_w=high_w)
    return WattLimit("amdgpu", dials) if dials.keys() == set(buses) and dials else None
