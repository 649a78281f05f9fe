"""Which GPUs a run uses, by their UUIDs, so that they and no others are locked and metered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def used(gpus: Sequence[Mapping[str, str]], visible: str | None) -> list[str]:
    """The UUID of the one NVIDIA GPU that a single process trains on: the first that it is let see.

    `gpus` are the host's in the order of the PCI bus, `visible` is CUDA_VISIBLE_DEVICES: numbers in that order,
    UUIDs or beginnings of them. A UUID that is not known yet is left out.
    """
    uuids = [gpu.get("uuid", "") for gpu in gpus if gpu.get("vendor") == "nvidia"]
    first = "0" if visible is None else visible.split(",")[0].strip()
    if first.isdigit():
        seen = uuids[int(first) : int(first) + 1]
    else:
        seen = [uuid for uuid in uuids if first and uuid.startswith(first)][:1]
    return [uuid for uuid in seen if uuid]
