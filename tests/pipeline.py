"""Known pipelines: samples that take a known time to read and to preprocess, and what a loader makes of them.

For tests and benchmarks alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import default_collate

SPIN_S = 0.0002
"""A sleep ends some 60 us late: the last of a wait is spent looking at the clock."""


class Truth(NamedTuple):
    """What one epoch takes, in seconds."""

    stall_s: float
    read_s: float
    preprocess_s: float
    e2e_s: float


def truth(steps: int, read_s: float, preprocess_s: float, compute_s: float, workers: int, prefetch: int) -> Truth:
    """An epoch of `steps` batches, each of which takes so long, by an exact simulation of torch's loader.

    Batch k is worker k mod W's. To begin with each has `prefetch` batches to do; for each batch that is handed out
    one more is asked for. They are handed out in order, and whoever computes waits for the next one.
    """
    load_s = read_s + preprocess_s
    now = stall_s = 0.0
    free = [0.0] * workers
    asked = [0.0] * (prefetch * workers)
    for step in range(steps):
        if workers == 0:
            ready = now + load_s
        else:
            worker = step % workers
            ready = free[worker] = max(free[worker], asked[step]) + load_s
        got = max(now, ready)
        stall_s += got - now
        asked.append(got)
        now = got + compute_s
    return Truth(stall_s, steps * read_s, steps * preprocess_s, now)


def spend(seconds: float) -> None:
    """Lets so much time pass, to within some microseconds."""
    end = time.perf_counter() + seconds
    if seconds > SPIN_S:
        time.sleep(seconds - SPIN_S)
    while time.perf_counter() < end:
        pass


def batching_s(batch: int, pause_s: float) -> float:
    """What torch takes to make a batch of such samples, in the middle of 50 tries, after a pause each."""
    samples = [(sample, number) for number, sample in enumerate(torch.arange(batch).float().unbind())]
    took = []
    for _ in range(50):
        spend(pause_s)
        begun = time.perf_counter()
        default_collate(samples)
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def handing_over_s(batch: int, workers: int, compute_s: float) -> float:
    """What torch's own loader takes to hand over such a batch that is ready, in the middle of 20."""
    loader = iter(DataLoader(Slow(21 * batch, 0, 0), batch, num_workers=workers))
    took = []
    for _ in range(21):
        spend(compute_s)
        begun = time.perf_counter()
        next(loader)
        took.append(time.perf_counter() - begun)
    return statistics.median(took[1:])


class Slow(list):
    """So many samples, each of which takes a known time to read, to decode and to transform."""

    def __init__(self, count: int, read_s: float, decode_s: float) -> None:
        super().__init__(torch.arange(count).float().unbind())
        self.read_s, self.decode_s = read_s, decode_s

    def read(self, index: int) -> tuple[int, int]:
        spend(self.read_s)
        return index, index

    def decode(self, data: int, index: int) -> torch.Tensor:
        spend(self.decode_s)
        return self[data]


def slow_transform(seconds: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def transform(image: torch.Tensor) -> torch.Tensor:
        spend(seconds)
        return image

    return transform
