"""The GPUs of a machine, and the selection that a run uses: only these are locked, metered and trained on."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epochmeter.machine import amd, nvml
from epochmeter.machine.sysfs import drop_empty, match_group, read_text

Gpu = Mapping[str, str]
"""A GPU: `vendor`, `model`, `bus` (PCI address), `uuid` and `minor` (NVIDIA), as far as the driver reports them."""
NVIDIA_FACTS = {
    "model": r"^Model:\s*(.+)",
    "minor": r"^Device Minor:\s*(\d+)",
    "uuid": r"^GPU UUID:\s*(GPU-[\da-f-]+)",
}
"""Fact -> its pattern in the driver's file."""


def find_gpus(root: Path) -> list[Gpu]:
    """List NVIDIA GPUs in PCI order, then AMD GPUs in the driver's order, which is ROCm's."""
    nvidia = [
        {"vendor": "nvidia", "bus": file.parent.name}
        | {key: match_group(pattern, read_text(file)) for key, pattern in NVIDIA_FACTS.items()}
        for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))
    ]
    names = read_text(root / "sys/firmware/devicetree/base/compatible")
    # Under WSL2, only NVML lists the GPUs. On a Jetson it would list the built-in one.
    if not nvidia and (root == Path("/") or nvml.is_replaced()) and "nvidia,tegra" not in names:
        nvidia = [*(nvml.read_gpus() if nvml.is_replaced() else nvml.list_gpus())]
    return [drop_empty(gpu) for gpu in (*nvidia, *amd.list_gpus(root))]


def can_open(gpu: Gpu) -> bool:
    """Whether this process may open the GPU's device: a Slurm job sees all GPUs, but may open only its own."""
    try:
        os.close(os.open(f"/dev/nvidia{gpu['minor']}", os.O_RDWR))
    except (OSError, KeyError) as error:
        return not isinstance(error, PermissionError)
    return True


def select_gpus(
    gpus: Sequence[Gpu],
    environment: Mapping[str, str],
    may_open: Callable[[Gpu], bool] = can_open,
    count: int | None = 1,
) -> list[Gpu]:
    """Select the GPUs that a run uses: the first ones that its environment makes visible (`count` None: all).

    CUDA uses CUDA_VISIBLE_DEVICES. ROCm uses ROCR_VISIBLE_DEVICES, and HIP selects among the remaining GPUs by
    HIP_VISIBLE_DEVICES. Only GPUs of the first one's vendor, and which the process may open, are numbered.
    """
    usable = [gpu for gpu in gpus if gpu["vendor"] == gpus[0]["vendor"] and may_open(gpu)]
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if usable and usable[0]["vendor"] == "amd":
        usable = apply_visible_devices(usable, environment.get("ROCR_VISIBLE_DEVICES"))
        listed = environment.get("HIP_VISIBLE_DEVICES") or listed or None  # HIP treats an empty list as unset
    return apply_visible_devices(usable, listed)[:count]


def apply_visible_devices(gpus: Sequence[Gpu], listed: str | None) -> list[Gpu]:
    """Select GPUs as CUDA does: by indices, UUIDs or their beginnings, up to the first invalid entry.

    Like torch, it selects none if an entry is repeated.
    """
    if listed is None:
        return list(gpus)
    selected: list[Gpu] = []
    for name in map(str.strip, listed.lower().split(",")):
        by_uuid = [gpu for gpu in gpus if name and gpu.get("uuid", "").lower().startswith(name)]
        matching = gpus[int(name) : int(name) + 1] if name.isdigit() else by_uuid[:1]
        if not matching:
            break
        if matching[0] in selected:
            return []
        selected += matching
    return selected


def meter_id(gpu: Gpu) -> str | None:
    """The identifier by which a meter finds a GPU: its UUID, or the PCI address of an AMD GPU without one."""
    return gpu.get("uuid") or (gpu.get("bus") if gpu["vendor"] == "amd" else None)


def matches_uuid(uuid: str, name: str) -> bool:
    """Whether a UUID from torch matches a GPU; True for a GPU that is named by its PCI address."""
    if not name.startswith("GPU-"):
        return True
    digits = name.removeprefix("GPU-").replace("-", "")
    # ROCm's UUIDs have 16 digits, of which torch reports the bytes of the text.
    return uuid.removeprefix("GPU-").replace("-", "") in (digits, digits.encode().hex())
