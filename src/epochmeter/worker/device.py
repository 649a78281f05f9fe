"""The training device: selection, timeline, memory, and moving batches to it."""

import copy
import os
import platform
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from epochmeter.shared.problem import machine_error
from epochmeter.worker.timeline import EventTimeline, HostTimeline, Timeline


def accelerator(name: str) -> torch.device:
    """Return the device with this name, `auto`, `cuda` or `cpu`; RuntimeError if torch finds no GPU for `cuda`."""
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        remedy = "install a torch built for this machine's GPU, or set device.python to an interpreter that has one"
        message = "device.accelerator=cuda, but torch {} finds no GPU".format(torch.__version__)
        raise machine_error(message, remedy + ", or set device.accelerator=cpu")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def choose_algorithms(deterministic: bool, cudnn_benchmark: bool) -> None:
    """Set how torch chooses its algorithms; operations without a deterministic one may raise RuntimeError."""
    torch.backends.cudnn.benchmark = cudnn_benchmark
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA is initialized
        torch.use_deterministic_algorithms(True)


def make_timeline(device: torch.device) -> Timeline:
    """Return the timeline on which work of the device is timed."""
    if device.type == "cpu":
        return HostTimeline()
    return EventTimeline(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)


def map_tensors(
    act: Callable[[torch.Tensor], object], batch: Any, method: Optional[str] = None, *arguments: object
) -> Any:
    """Apply `act` to every tensor of a batch, nested in mappings, tuples, lists and dataclasses; keep their types.

    Other values stay as they are. Objects that have `method` (`to` or `pin_memory`), also mappings, are replaced by its
    result for the `arguments`, as in `torch.utils.data`.
    """
    if isinstance(batch, torch.Tensor):
        return act(batch)

    def apply(value: Any) -> Any:
        return map_tensors(act, value, method, *arguments)

    if method and callable(getattr(batch, method, None)):
        return getattr(batch, method)(*arguments)
    if isinstance(batch, Mapping):
        items = {key: apply(value) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            make: Callable[[object], Any] = type(batch)
            return make(items)
        result = copy.copy(batch)  # a `defaultdict` keeps its factory
        result.update(items)
        return result
    if isinstance(batch, (tuple, list)):
        parts = [apply(value) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if hasattr(batch, "__dataclass_fields__"):
        result = copy.copy(batch)
        for name in batch.__dataclass_fields__:
            object.__setattr__(result, name, apply(getattr(batch, name)))  # works for frozen dataclasses too
        return result
    return batch


def sample_count(batch: Any) -> int:
    """Return the number of samples in a nested batch: the length of its first tensor, or else of the batch."""
    first = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    if isinstance(first, torch.Tensor):  # as in most scripts: ten times faster
        return first.size(0)
    lengths: List[int] = []
    map_tensors(lambda tensor: lengths.append(len(tensor)), batch)
    return lengths[0] if lengths else len(batch)


def batch_mover(device: torch.device, images: torch.memory_format) -> Callable[[Any], Any]:
    """Return a function that copies a batch to the device, with the memory format `images` for images."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if images is torch.channels_last and tensor.dim() == 4:
            return tensor.to(device, non_blocking=True, memory_format=images)
        return tensor.to(device, non_blocking=True)

    if device.type == "cpu" and images is torch.preserve_format:
        return lambda batch: batch
    return lambda batch: map_tensors(moved, batch, "to", device)


def synchronize_and_reset_peaks(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
        for gpu in _gpus(device):
            torch.cuda.reset_peak_memory_stats(gpu)


def peak_memory(device: torch.device) -> Dict[str, int]:
    """Return the peak of allocated GPU memory since the reset, in bytes: the largest of the GPUs; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {"gpu_memory_peak_bytes": max(torch.cuda.max_memory_allocated(gpu) for gpu in _gpus(device))}


def _gpus(device: torch.device) -> Sequence[int]:
    """Return the indices of this process's GPUs: its own, or all visible ones."""
    return range(torch.cuda.device_count()) if device.index is None else [device.index]


def gpu_uuid(device: torch.device) -> Optional[str]:
    """Return the UUID of a GPU; None if the version of torch does not provide it."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def cache_bytes(device: torch.device) -> int:
    """Return the size of a device's last-level cache; 0 if unknown, so that all bytes count as uncached."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size") as file:
            return int(file.read().strip().rstrip("K")) * 1024
    except (OSError, ValueError):
        return 0


def host_name() -> str:
    """Return the name of this host; of a node of Slurm, its name there."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def describe_device(device: torch.device) -> Dict[str, object]:
    """Return the versions of Python and torch, the threads and the GPU, for the record."""
    facts: Dict[str, object] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "accelerator": str(device),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        gpu, uuid = torch.cuda.get_device_properties(device), gpu_uuid(device)
        facts["gpu"] = {"name": gpu.name, "memory_bytes": gpu.total_memory, **({"uuid": uuid} if uuid else {})}
        facts["cudnn_benchmark"] = torch.backends.cudnn.benchmark
    return facts
