"""Which GPUs a run uses, so that they and no others are locked, metered and trained on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

Gpu = Mapping[str, str]
"""A GPU as `host.describe` tells of it: `vendor`, `bus`, `minor`, and `uuid` where the driver knows it yet."""


def openable(gpu: Gpu) -> bool:
    """Whether this process may open the GPU's device: a cluster's job may open its own alone, though it sees all."""
    try:
        os.close(os.open(f"/dev/nvidia{gpu['minor']}", os.O_RDWR))
    except PermissionError:
        return False
    except (OSError, KeyError):
        return True
    return True


def used(gpus: Sequence[Gpu], visible: str | None, may_open: Callable[[Gpu], bool] = openable) -> list[Gpu]:
    """The one NVIDIA GPU that a single process trains on: the first that it is let see, if there is one.

    `gpus` are the host's in the order of the PCI bus, `visible` is CUDA_VISIBLE_DEVICES: numbers in that order,
    among those that may be opened, UUIDs or beginnings of them.
    """
    own = [gpu for gpu in gpus if gpu.get("vendor") == "nvidia" and may_open(gpu)]
    first = "0" if visible is None else visible.split(",")[0].strip()
    if first.isdigit():
        return own[int(first) : int(first) + 1]
    return [gpu for gpu in own if first and gpu.get("uuid", "").startswith(first)][:1]
