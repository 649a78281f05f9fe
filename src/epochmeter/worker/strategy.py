"""How many devices train together, and how: `wrap` the model, `shard` the samples.

Beside these two a strategy tells ranks apart and lets them speak to each other between windows, never within.
"""

import datetime
import hashlib
import os

import torch
from torch import distributed, nn
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from epochmeter.worker.device import accelerator


def own_seed(seed, rank):
    """A rank's own random numbers: the first's are the seed's, the others' no other seed's."""
    if rank == 0:
        return seed
    return int.from_bytes(hashlib.sha256("{}/{}".format(seed, rank).encode()).digest()[:7], "big")


class Single:
    """One process on one device."""

    rank = 0
    node = 0
    speaks = True
    """Whether this rank speaks with its node's steward."""

    def __init__(self, ranks):
        self.ranks = ranks

    def device(self, name):
        """The torch device of this rank, of the kind `name` (auto, cpu, cuda)."""
        return accelerator(name)

    def wrap(self, model, device):
        """The model as it is trained, and as it is evaluated."""
        return model, model

    def shard(self, samples, shuffled):
        """The order of this rank's samples: the generator `shuffled` decides it, or, None, it is their own."""
        return SequentialSampler(samples) if shuffled is None else RandomSampler(samples, generator=shuffled)

    def smallest(self, samples):
        """The fewest samples that a model gets at once of a batch of so many."""
        return samples

    def agree(self, model):
        """Gives every rank the buffers of the first one's model, before it is judged."""

    def gather(self, told):
        """What each rank tells, in order."""
        return [told]

    def share(self, told):
        """What the first rank tells, to all; none goes on before all have come here."""
        return told

    def facts(self):
        """What there is to say of it beside the device."""
        return {}

    def leave(self):
        """All is done."""


class Parallel(Single):
    """One process on several GPUs: it splits each batch among them, and puts the outputs together on the first.

    `ranks` is how many GPUs, None: all that it sees. Where there are no two, one device trains.
    """

    def __init__(self, ranks):
        super().__init__(1)
        self._wanted = ranks

    def wrap(self, model, device):
        there = torch.cuda.device_count() if device.type == "cuda" else 0
        self._gpus = list(range(min(there, self._wanted or there)))
        wrapped = nn.DataParallel(model, self._gpus) if len(self._gpus) > 1 else model
        return wrapped, wrapped

    def smallest(self, samples):
        each = -(-samples // max(1, len(self._gpus)))
        return samples % each or each

    def facts(self):
        return {"gpus": [named(torch.device("cuda", gpu)) for gpu in self._gpus]}


class Distributed(Single):
    """A process for each rank, started by torchrun, which tells each by its environment which one it is.

    Gradients are averaged over ranks by NCCL where each has a GPU of its own, by gloo where it has not. What ranks
    have to say to each other goes by gloo, in a group of its own, so that no word is between two gradients.
    A rank that waits longer than `timeout_s` for another raises RuntimeError. `ranks` and `launcher` are for what
    starts them.
    """

    def __init__(self, ranks, launcher, timeout_s):
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._here, self._local_rank = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
        self.node, self.speaks = int(os.environ["GROUP_RANK"]), self._local_rank == 0
        self._timeout = datetime.timedelta(seconds=timeout_s)

    def device(self, name):
        """Each rank's own GPU; ranks that are more than the GPUs share them, and all share the CPU."""
        device, backend = accelerator(name), "gloo"
        if device.type == "cuda":
            gpus = torch.cuda.device_count()
            device = torch.device("cuda", self._local_rank % gpus)
            torch.cuda.set_device(device)
            backend = "nccl" if gpus >= self._here and distributed.is_nccl_available() else "gloo"
        distributed.init_process_group(backend, timeout=self._timeout)
        self._words = distributed.new_group(backend="gloo", timeout=self._timeout)
        self._backend, self._device = backend, device
        return device

    def wrap(self, model, device):
        only = [device] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=only), model

    def shard(self, samples, shuffled):
        """This rank's part of the order of all; in training each rank has as many, in evaluation none comes twice."""
        return Shard(super().shard(samples, shuffled), self.rank, self.ranks, filled=shuffled is not None)

    def agree(self, model):
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)

    def gather(self, told):
        every = [None] * self.ranks
        distributed.all_gather_object(every, told, group=self._words)
        return every

    def share(self, told):
        distributed.monitored_barrier(self._words, self._timeout)
        first = [told]
        distributed.broadcast_object_list(first, 0, group=self._words)
        return first[0]

    def facts(self):
        used = [(self.node, named(self._device))] if self._device.type == "cuda" else []
        gpus = [gpu for gpus in self.gather(used) for gpu in gpus]
        return {
            "ranks": self.ranks,
            "backend": self._backend,
            "gpus": [name for _, name in gpus],
            "gpus_here": [name for node, name in gpus if node == self.node],
        }

    def leave(self):
        distributed.destroy_process_group()


class Shard(Sampler):
    """One rank's part of an order that all ranks know: every so-many-th of it, from the rank's own on.

    Where it is to be filled, all have as many, the last of them from the order's beginning, as
    torch.utils.data.DistributedSampler has it; or else some have one less.
    """

    def __init__(self, order, rank, ranks, filled):
        self._order, self._rank, self._ranks, self._filled = order, rank, ranks, filled

    def __len__(self):
        first = 0 if self._filled else self._rank
        return -(-(len(self._order) - first) // self._ranks)

    def __iter__(self):
        order = list(self._order)
        if self._filled:
            order += order[: -len(order) % self._ranks]
        return iter(order[self._rank :: self._ranks])


def named(device):
    """A GPU by its UUID, or None where this torch does not tell it."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)
