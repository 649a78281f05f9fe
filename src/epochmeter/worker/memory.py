"""Memory of one training step at its peak, by kind and module, from the memory events of torch's profiler.

The step follows the trace, so that nothing measured is affected. During it, ranges in the profile name the addresses
of tensors that autograd keeps for the backward pass: activations. Weights, gradients, optimizer state and inputs are
those after the step. All other allocations of the step are temporary.
"""

import collections
import contextlib
import os
from typing import Any, Counter, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.profiler import ProfilerActivity, profile

from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.types import Document
from epochmeter.worker.device import map_tensors
from epochmeter.worker.models.model_stats import storage_of
from epochmeter.worker.trace import MODULE
from epochmeter.worker.trainer import Trainer

KEPT = ("weights", "gradients", "optimizer", "inputs")
KINDS = (*KEPT, "activations", "temporary")
SAVED = "epochmeter saved "  # prefix of a range's name, followed by the address of a tensor that autograd keeps
MAX_MODULES = 50
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
ON_CPU, ON_GPU = {"Device Type": 0}, {"Device Type": 1}
"""Arguments of a device's memory events in profiles; ROCm has those of CUDA."""
Storages = Dict[int, Tuple[str, int]]  # by address: kind and bytes


class Allocation:
    """Live memory. That it is an activation may become known after its allocation."""

    def __init__(self, kind: str, size: int, module: Optional[str] = None) -> None:
        self.kind, self.size, self.module = kind, size, module


def record_memory(path: Optional[str], trainer: Trainer, batch: Any) -> None:
    """Train one step and, with a path, write its memory at the peak as JSON; `module_ranges` give the modules."""
    if path is None:
        trainer.train_epoch([batch])
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        before, after = train_marked(trainer, batch)
    exported = os.path.join(os.path.dirname(path), "partial-memory.json")  # a fixed name: a killed run leaves one file
    try:
        profiler.export_chrome_trace(exported)
        events = read_json(exported)["traceEvents"]
    finally:
        if os.path.exists(exported):
            os.remove(exported)
    if any("Addr" in event.get("args", {}) for event in events):  # not in an older torch
        is_on_gpu = trainer.device.type == "cuda"  # of DataParallel, only the first GPU is analyzed
        device = dict(ON_GPU, **{"Device Id": torch.cuda.current_device()}) if is_on_gpu else ON_CPU
        memory = peak_by_kind(events, before, after, device)
        write_json(path, dict(memory, **device_memory(trainer.device, memory)))


def train_marked(trainer: Trainer, batch: Any) -> Tuple[Storages, Storages]:
    """Train one step with marks in the profile; return the tensors before and after it, by address."""
    trainer.optimizer.zero_grad()  # now, as the profiler of a CPU does not see that memory from before is freed
    before = tensors_by_address(trainer, batch)

    def mark_saved(tensor: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function(SAVED + str(storage_of(tensor).data_ptr())):
            return tensor

    with torch.autograd.graph.saved_tensors_hooks(mark_saved, lambda tensor: tensor):
        trainer.train_epoch([batch])
    return before, tensors_by_address(trainer, batch)


def tensors_by_address(trainer: Trainer, batch: Any) -> Storages:
    """Return address -> kind and bytes of the storages of weights, gradients, optimizer state and batch."""
    inputs: List[torch.Tensor] = []
    map_tensors(inputs.append, batch)
    parameters = list(trainer.model.parameters())
    groups: Dict[str, Iterable[object]] = {
        "inputs": inputs,
        "optimizer": [value for entries in trainer.optimizer.state.values() for value in entries.values()],
        "gradients": [parameter.grad for parameter in parameters],
        "weights": parameters + list(trainer.model.buffers()),
    }
    storages: Storages = {}
    for kind, tensors in groups.items():
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == trainer.device.type:
                storage = storage_of(tensor)  # in torch 1.10 without `nbytes`
                storages[storage.data_ptr()] = (kind, storage.size() * storage.element_size())
    return storages


def peak_by_kind(events: Iterable[Document], before: Storages, after: Storages, device: Mapping[str, int]) -> Document:
    """Return the memory of a device at its peak in a profile.

    Args:
        events: The events of the profile.
        before, after: Kind and bytes of the tensors that exist before and after the step, by address.
        device: Arguments of the memory events of this device.

    Returns:
        `peak_bytes`, bytes by kind in `kinds`, and the largest modules' activations in `modules`. On a GPU also the
        allocator's `allocated_bytes` and `reserved_bytes`, and the kinds `fragmentation` and `other` (from before).
    """
    live = {address: Allocation(kind, size) for address, (kind, size) in before.items()}
    at_peak = list(live.values())
    details_at_peak: Document = {}
    ranges: List[Tuple[float, str]] = []
    total = peak = sum(allocation.size for allocation in at_peak)
    for event in sorted((event for event in events if "ts" in event), key=lambda event: event["ts"]):
        name, details = event.get("name", ""), event.get("args", {})
        if name.startswith(SAVED):
            address = int(name[len(SAVED) :])
            if address in live:
                live[address].kind = "activations"
        elif name.startswith(MODULE):
            ranges.append((event["ts"] + event.get("dur", 0), name[len(MODULE) :]))
        elif name == "[memory]" and device.items() <= details.items():
            while ranges and ranges[-1][0] < event["ts"]:
                ranges.pop()
            freed = live.pop(details["Addr"], None)
            total -= 0 if freed is None else freed.size
            if details["Bytes"] > 0:
                module = ranges[-1][1] if ranges else None
                live[details["Addr"]] = Allocation("temporary", details["Bytes"], module)
                total += details["Bytes"]
            if total > peak:
                peak, at_peak, details_at_peak = total, list(live.values()), details
    for address in live.keys() & after.keys():  # also weights and inputs, which autograd keeps
        live[address].kind = after[address][0]
    return _sum_by_kind(peak, at_peak, details_at_peak)


def _sum_by_kind(peak: int, allocations: Sequence[Allocation], details: Document) -> Document:
    kinds = collections.Counter(dict.fromkeys(KINDS, 0))
    modules: Counter[str] = collections.Counter()
    for allocation in allocations:
        kinds[allocation.kind] += allocation.size
        if allocation.kind == "activations" and allocation.module:
            modules[allocation.module] += allocation.size
    memory: Dict[str, object] = {"peak_bytes": peak, "kinds": kinds, "modules": dict(modules.most_common(MAX_MODULES))}
    if details.get("Total Reserved", 0) > 0:  # a GPU's allocator counts earlier allocations too
        allocated, reserved = details["Total Allocated"], details["Total Reserved"]
        kinds.update(other=allocated - peak, fragmentation=reserved - allocated)
        memory.update(allocated_bytes=allocated, reserved_bytes=reserved, peak_bytes=allocated)
    return memory


def device_memory(device: torch.device, memory: Document) -> Dict[str, int]:
    """Return the device's memory that is available to training, and its part that is used outside of torch."""
    if device.type == "cuda":
        free, capacity = torch.cuda.mem_get_info(device) if hasattr(torch.cuda, "mem_get_info") else (0, 0)
        outside = capacity - free - torch.cuda.memory_reserved(device)
        return {"capacity_bytes": capacity, "outside_torch_bytes": outside} if capacity else {}
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    limits = [available + resident]
    for path in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(path) as file:  # no such file, or `max`
            limits.append(int(file.read()))
    kept = sum(memory["kinds"][kind] for kind in KEPT)
    sizes = {"capacity_bytes": min(limits)}
    return dict(sizes, outside_torch_bytes=resident - kept) if resident >= kept else sizes  # less if swapped out
