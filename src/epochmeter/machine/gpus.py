"""The GPUs of a machine, and which a run uses, so that they and no others are locked, metered and trained on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epochmeter.machine import nvml
from epochmeter.machine.sysfs import found, present, text

Gpu = Mapping[str, str]
"""A GPU: `vendor`, `model`, `bus`, its place on the PCI bus, `uuid` where the driver tells it, `minor` (NVIDIA)."""


def find_gpus(root: Path) -> list[Gpu]:
    """NVIDIA GPUs in the order of the PCI bus, then AMD GPUs in the order of the driver, by which ROCm numbers them.

    NVML is used if the driver lists no NVIDIA GPU below /proc, as under WSL2; never for a recorded machine, whose root
    is not `/`.
    """
    nvidia = [
        _nvidia(text(path), path.parent.name) for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))
    ]
    if not nvidia and root == Path("/") and not _is_tegra(root):
        nvidia = [*nvml.list_gpus()]
    nodes = sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*"), key=lambda node: int(node.name))
    amd = [_amd(text(node / "name"), text(node / "properties")) for node in nodes]
    return [present(gpu) for gpu in (*nvidia, *filter(None, amd))]


def _nvidia(said: str, bus: str) -> dict[str, str]:
    return {
        "vendor": "nvidia",
        "model": found(r"^Model:\s*(.+)", said),
        "bus": bus,
        "minor": found(r"^Device Minor:\s*(\d+)", said),
        "uuid": found(r"^GPU UUID:\s*(GPU-[\da-f-]+)", said),
    }


def _is_tegra(root: Path) -> bool:
    """Whether this is a Jetson, whose NVML lists the built-in GPU, unlike the driver."""
    return "nvidia,tegra" in text(root / "sys/firmware/devicetree/base/compatible")


def _amd(model: str, said: str) -> dict[str, str]:
    """What a node of the driver's topology says of a GPU; nothing of one without SIMD units, which is a CPU."""
    of = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", said, re.MULTILINE)}
    if not of.get("simd_count"):
        return {}
    place, unique = of.get("location_id", 0), of.get("unique_id", 0)
    bus = f"{of.get('domain', 0):04x}:{place >> 8:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
    return {
        "vendor": "amd",
        "model": model,
        "bus": bus if place else "",
        "uuid": f"GPU-{unique:016x}" if unique else "",  # as ROCm has it
    }


def openable(gpu: Gpu) -> bool:
    """Whether this process may open the GPU's device: a cluster's job may open its own alone, though it sees all."""
    try:
        os.close(os.open(f"/dev/nvidia{gpu['minor']}", os.O_RDWR))
    except PermissionError:
        return False
    except (OSError, KeyError):
        return True
    return True


def used(
    gpus: Sequence[Gpu],
    environment: Mapping[str, str],
    may_open: Callable[[Gpu], bool] = openable,
    count: int | None = 1,
) -> list[Gpu]:
    """The first `count` GPUs of those that a process is let see, as far as there are so many, or, None, all of them.

    `gpus` are the host's: those of the first one's maker are numbered, as far as they may be opened. CUDA goes by
    CUDA_VISIBLE_DEVICES; ROCm goes by ROCR_VISIBLE_DEVICES, and HIP by a list of its own among what that leaves.
    """
    own = [gpu for gpu in gpus if gpu["vendor"] == gpus[0]["vendor"] and may_open(gpu)]
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if own and own[0]["vendor"] == "amd":
        own = visible(own, environment.get("ROCR_VISIBLE_DEVICES"))
        listed = environment.get("HIP_VISIBLE_DEVICES") or listed or None  # HIP takes an empty list for none
    return visible(own, listed)[:count]


def visible(gpus: Sequence[Gpu], listed: str | None) -> list[Gpu]:
    """The GPUs that a list leaves, in its order: numbers, UUIDs or beginnings of them, as far as it makes sense."""
    if listed is None:
        return list(gpus)
    left: list[Gpu] = []
    for name in map(str.strip, listed.lower().split(",")):
        if name.isdigit():
            meant = gpus[int(name) : int(name) + 1]
        else:
            meant = [gpu for gpu in gpus if name and gpu.get("uuid", "").lower().startswith(name)][:1]
        if not meant:
            break
        left += meant
    return left


def name_of(gpu: Gpu) -> str | None:
    """What a meter knows a GPU by: its UUID, or the place on the bus of an AMD GPU that has none."""
    return gpu.get("uuid") or (gpu.get("bus") if gpu["vendor"] == "amd" else None)


def is_named(told: str, name: str) -> bool:
    """Whether the UUID that torch tells is that of the GPU with this name, as far as the name allows to say.

    ROCm's UUIDs are 16 digits, and torch tells the bytes of that text.
    """
    if not name.startswith("GPU-"):
        return True
    digits = name.removeprefix("GPU-").replace("-", "")
    return told.removeprefix("GPU-").replace("-", "") in (digits, digits.encode().hex())
