"""A training script whose batches take known times to load; it prints them per epoch in seconds per batch, as JSON.

Each sample waits (`WAIT_S`, asleep) and works (`WORK_S` of processor time). `python loads_script.py KIND WORKERS`, with
one of `KINDS`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

BATCHES, BATCH, EPOCHS = 20, 4, 4
WAIT_S, WORK_S, SLOW_S = 0.005, 0.005, 0.03
"""Of each sample; the last one is slept once more per batch by the worker that is slow."""


class Times(NamedTuple):
    """Times of a sample or of a batch: asleep, and in total."""

    wait_s: float
    load_s: float


class Compose:
    """Transforms in a row."""

    def __init__(self, transforms: list[Callable[[Times], Times]]) -> None:
        self.transforms = transforms

    def __call__(self, sample: Times) -> Times:
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Samples(Dataset):
    """Samples that wait and work; `transform` does the work if it is given."""

    def __init__(self, transform: Callable[[Times], Times] | None = None) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> Times:
        begun = time.perf_counter()
        time.sleep(WAIT_S)
        sample = Times(WAIT_S, time.perf_counter() - begun)
        return self.transform(sample) if self.transform else working(sample)


class Lists(Samples):
    """The same, by batch."""

    def __getitems__(self, indices: list[int]) -> list[Times]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """The same without indices, shared by the workers."""

    def __iter__(self) -> Iterator[Times]:
        worker, samples = get_worker_info(), Samples()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(number * BATCH * BATCHES // workers, (number + 1) * BATCH * BATCHES // workers):
            yield samples[index]


class SlowWorker(Samples):
    """The same, but one worker waits longer."""

    def __getitem__(self, index: int) -> Times:
        sample, worker = super().__getitem__(index), get_worker_info()
        if worker is None or worker.id != 1 or index % BATCH:
            return sample
        begun = time.perf_counter()
        time.sleep(SLOW_S)
        return Times(sample.wait_s + SLOW_S, sample.load_s + time.perf_counter() - begun)


def working(sample: Times) -> Times:
    """Use the processor."""
    begun, ends = time.perf_counter(), time.thread_time() + WORK_S
    while time.thread_time() < ends:
        pass
    return sample._replace(load_s=sample.load_s + time.perf_counter() - begun)


def unchanged(sample: Times) -> Times:
    """Do nothing."""
    return sample


def summed(samples: list[Times]) -> torch.Tensor:
    """Collate samples."""
    return torch.tensor(samples, dtype=torch.float64).sum(0)


def slowly_summed(samples: list[Times]) -> torch.Tensor:
    """Collate samples, and use the processor."""
    return summed([working(samples[0]), *samples[1:]])


KINDS: dict[str, tuple[Callable[[], Dataset], Callable]] = {
    "samples": (Samples, summed),
    "lists": (Lists, summed),
    "stream": (Stream, summed),
    "transform": (lambda: Samples(Compose([unchanged, working])), summed),
    "collate": (Samples, slowly_summed),
    "slow": (SlowWorker, summed),
}


def main() -> None:
    make, collate = KINDS[sys.argv[1]]
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    workers = int(sys.argv[2])
    loader = DataLoader(make(), BATCH, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)
    for _ in range(EPOCHS):
        batches = []
        for batch in loader:
            batches.append(batch)
            weight.sum().backward()
            optimizer.step()
        wait_s, load_s = torch.stack(batches).mean(0).tolist()
        print(json.dumps({"wait_s": wait_s, "work_s": load_s - wait_s}), flush=True)


if __name__ == "__main__":
    main()
