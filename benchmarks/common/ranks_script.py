"""A script for torchrun whose ranks wait for each other for known times: `python ranks_script.py KIND EPOCHS FOLDER`.

Each rank sleeps in place of loading and computing. It writes what it knows of each epoch to `FOLDER/RANK.json`: how
long it slept more than a rank that is not slow, and by its own clock how long its calls of `torch.distributed` took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from epochmeter.worker.communication import ExposedCommunication
from epochmeter.worker.timeline import HostTimeline

STEPS, LOAD_S, COMPUTE_S, DELAY_S, SLOW = 40, 0.002, 0.008, 0.006, 1
BY_CLOCK = ("all_reduce", "async", "barrier")
"""Kinds whose waits are those of calls in the script; the others exchange gradients by DistributedDataParallel."""


class Sleeps(Dataset):
    """Samples that take a time to load, which is longer in the slow rank."""

    def __init__(self, rank: int, kind: str) -> None:
        self.rank, self.kind, self.extra_s = rank, kind, 0.0

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        begun = time.perf_counter()
        time.sleep(LOAD_S + delay_s(self.kind, "data", self.rank, index))
        self.extra_s += time.perf_counter() - begun - LOAD_S
        return torch.ones(16)


def delay_s(kind: str, cause: str, rank: int, step: int) -> float:
    """Return by how much a part of a step is longer than in other ranks."""
    if kind == "rank turns":
        return DELAY_S if cause == "compute" and rank == step * 7 % distributed.get_world_size() else 0.0
    if rank != SLOW or kind == "none":
        return 0.0
    if kind == "turns":
        return DELAY_S if (cause == "data") == bool(step % 2) else 0.0
    if kind == "both":
        return DELAY_S / 2
    return DELAY_S * (0.5 + step % 3) if cause == ("data" if kind == "data" else "compute") else 0.0


class Training:
    """A small model, trained with sleeps."""

    def __init__(self, kind: str) -> None:
        self.kind, self.rank = kind, distributed.get_rank()
        layers = [nn.Linear(16, 16), nn.BatchNorm1d(16) if kind == "buffers" else nn.ReLU(), nn.Linear(16, 1)]
        torch.manual_seed(0)
        self.module = nn.Sequential(*layers)
        self.model = self.module if kind in BY_CLOCK else DistributedDataParallel(self.module)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)
        self.extra_s = self.clock_s = 0.0

    def step(self, number: int, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        begun = time.perf_counter()
        time.sleep(COMPUTE_S + delay_s(self.kind, "compute", self.rank, number))
        self.extra_s += time.perf_counter() - begun - COMPUTE_S
        self.model(batch).sum().backward()
        begun = time.perf_counter()
        if self.kind in BY_CLOCK:
            self.exchange()
            self.clock_s += time.perf_counter() - begun
        self.optimizer.step()

    def exchange(self) -> None:
        gradients = [parameter.grad for parameter in self.module.parameters()]
        if self.kind == "barrier":
            distributed.barrier()
        elif self.kind == "all_reduce":
            for gradient in gradients:
                distributed.all_reduce(gradient)
        else:
            works = [distributed.all_reduce(gradient, async_op=True) for gradient in gradients]
            for work in works:
                work.wait()


def main(kind: str, epochs: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    training, rank, lines = Training(kind), distributed.get_rank(), []
    data = Sleeps(rank, kind)
    loader = DataLoader(data, batch_size=4 if kind == "buffers" else 1, num_workers=0)
    own = ExposedCommunication(HostTimeline() if kind == "own loop" else None)
    for _ in range(epochs):
        distributed.barrier()
        data.extra_s = training.extra_s = training.clock_s = 0.0
        own.open()
        move = own.moving(lambda batch: batch)
        for number, batch in enumerate(loader):
            training.step(number, move(batch))
        own.close()
        line = {"extra_s": data.extra_s + training.extra_s, "clock_s": training.clock_s, "steps": len(loader)}
        lines.append({**line, "own_s": sum(own.waits_s(len(loader)))})
    Path(folder, f"{rank}.json").write_text(json.dumps(lines))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
