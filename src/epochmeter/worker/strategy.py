"""Strategies wrap the model and shard the samples. Ranks communicate through them between windows, never within one."""

import datetime
import hashlib
import os
from typing import Any, Dict, Iterator, List, Optional, Sized, Tuple, TypeVar, Union

import torch
from torch import distributed, nn
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from epochmeter.worker.device import accelerator, gpu_uuid, host_name

Order = Union[SequentialSampler, RandomSampler, "Shard"]
"""The indices of the samples in a pass."""
Value = TypeVar("Value")


def rank_seed(seed: int, rank: int) -> int:
    """Return a rank's random seed: rank 0 has the configured seed, other ranks a hash that no other seed yields."""
    digest = hashlib.sha256("{}/{}".format(seed, rank).encode()).digest()
    return int.from_bytes(digest[:7], "big") if rank else seed


class Single:
    """One process on one device."""

    rank = 0
    node = 0
    is_node_leader = True  # whether this rank sends requests to its node's controller
    replicas = 1  # copies of the model that share a rank's batch

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def set_up(self, accelerator_name: str) -> torch.device:
        """Set up the communication between ranks, and return this rank's device."""
        return accelerator(accelerator_name)

    def wrap(self, model: nn.Module, device: torch.device) -> Tuple[nn.Module, nn.Module]:
        """Return the model for training and the model for evaluation."""
        return model, model

    def shard(self, samples: Sized, shuffled: Optional[torch.Generator]) -> Order:
        """Return the sampler of this rank, shuffled by the generator `shuffled` or, with None, in order."""
        return SequentialSampler(samples) if shuffled is None else RandomSampler(samples, generator=shuffled)

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copy the buffers of rank 0's model to all ranks, before evaluation."""

    def all_gather(self, value: Value) -> List[Value]:
        """Return the values of all ranks, in rank order."""
        return [value]

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value on every rank; also a barrier."""
        return value

    def describe(self) -> Dict[str, object]:
        """Return ranks, back end and UUIDs of the GPUs used, if there are any."""
        return {}

    def close(self) -> None:
        """Shut down the communication between ranks."""


class Parallel(Single):
    """One process on `ranks` GPUs, or all visible ones for None, by `nn.DataParallel` if there are several."""

    def __init__(self, ranks: Optional[int]) -> None:
        super().__init__(1)
        self._max_gpus = ranks

    def wrap(self, model: nn.Module, device: torch.device) -> Tuple[nn.Module, nn.Module]:
        available = torch.cuda.device_count() if device.type == "cuda" else 0
        self._gpus = list(range(min(available, self._max_gpus or available)))
        self.replicas = max(1, len(self._gpus))
        wrapped = nn.DataParallel(model, self._gpus) if self.replicas > 1 else model
        return wrapped, wrapped

    def describe(self) -> Dict[str, object]:
        return {"gpus": [gpu_uuid(torch.device("cuda", gpu)) for gpu in self._gpus]}


class Distributed(Single):
    """One process per rank, started by torchrun, which sets the rank in the environment.

    Gradients are averaged by NCCL if each rank has its own GPU, else by gloo. Other messages between ranks use a
    separate gloo group, so that they never come between two gradients. Only the launcher reads `ranks` and `launcher`.
    A rank that waits longer than `timeout_s` for another raises RuntimeError.
    """

    def __init__(self, ranks: Optional[int], launcher: object, timeout_s: float) -> None:
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._local_ranks, self._local_rank = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
        self.node, self.is_node_leader = int(os.environ["GROUP_RANK"]), self._local_rank == 0
        self._timeout = datetime.timedelta(seconds=timeout_s)

    def set_up(self, accelerator_name: str) -> torch.device:
        # If there are more ranks than GPUs, ranks share them.
        device, backend = accelerator(accelerator_name), "gloo"
        if device.type == "cuda":
            gpus = torch.cuda.device_count()
            device = torch.device("cuda", self._local_rank % gpus)
            torch.cuda.set_device(device)
            backend = "nccl" if gpus >= self._local_ranks and distributed.is_nccl_available() else "gloo"
        distributed.init_process_group(backend, timeout=self._timeout)
        self._control_group: Any = distributed.new_group(backend="gloo", timeout=self._timeout)
        self._backend, self._device = backend, device
        return device

    def wrap(self, model: nn.Module, device: torch.device) -> Tuple[nn.Module, nn.Module]:
        device_ids = [device] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=device_ids), model

    def shard(self, samples: Sized, shuffled: Optional[torch.Generator]) -> Order:
        # Equally many samples per rank in training, no sample twice in evaluation.
        return Shard(super().shard(samples, shuffled), self.rank, self.ranks, padded=shuffled is not None)

    def broadcast_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)

    def all_gather(self, value: Value) -> List[Value]:
        values: List[Any] = [None] * self.ranks
        distributed.all_gather_object(values, value, group=self._control_group)
        return values

    def broadcast(self, value: Value) -> Value:
        distributed.monitored_barrier(self._control_group, self._timeout)
        values = [value]
        distributed.broadcast_object_list(values, 0, group=self._control_group)
        return values[0]

    def describe(self) -> Dict[str, object]:
        used = [(self.node, gpu_uuid(self._device))] if self._device.type == "cuda" else []
        gpus = [gpu for gpus in self.all_gather(used) for gpu in gpus]
        place = {"rank": self.rank, "host": host_name(), "device": str(self._device)}
        if used and used[0][1]:
            place["gpu"] = used[0][1]
        places = self.all_gather(place)
        here = [uuid for node, uuid in gpus if node == self.node]
        facts = {"ranks": self.ranks, "places": places, "backend": self._backend}
        return dict(facts, gpus=[uuid for _, uuid in gpus], gpus_here=here)

    def close(self) -> None:
        distributed.destroy_process_group()


class Shard(Sampler[int]):
    """One rank's part of a sample order that is the same on all ranks; if `padded`, all parts have the same length."""

    def __init__(self, order: Order, rank: int, ranks: int, padded: bool) -> None:
        self._order, self._rank, self._ranks, self._is_padded = order, rank, ranks, padded

    def __len__(self) -> int:
        first = 0 if self._is_padded else self._rank
        return -(-(len(self._order) - first) // self._ranks)

    def __iter__(self) -> Iterator[int]:
        order = list(self._order)
        padding = order[: -len(order) % self._ranks] if self._is_padded else []
        return iter((order + padding)[self._rank :: self._ranks])
