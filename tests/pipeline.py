"""Pipelines with known times: samples that take known times to read and to preprocess, for tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SPIN_S = 0.0002  # the end of a wait is a busy loop, since a sleep ends about 60 us late


class Took(NamedTuple):
    """Actual times of a sample or a batch, in seconds."""

    read_s: float
    preprocess_s: float


class Truth(NamedTuple):
    """True times of an epoch, in seconds."""

    stall_s: float
    read_s: float
    preprocess_s: float
    e2e_s: float


def truth(took: Sequence[Took], computed_s: Sequence[float], workers: int, prefetch: int) -> Truth:
    """Simulate torch's DataLoader exactly, from the actual times of the batches and of the steps.

    Worker k mod W loads batch k. Each worker starts with `prefetch` batches; each batch that is taken requests one
    more. Batches are taken in order, and training waits for the next one.
    """
    now = stall_s = 0.0
    free = [0.0] * workers
    requested = [0.0] * (prefetch * workers)
    for step, (batch, compute_s) in enumerate(zip(took, computed_s, strict=True)):
        load_s = batch.read_s + batch.preprocess_s
        if workers == 0:
            ready = now + load_s
        else:
            worker = step % workers
            ready = free[worker] = max(free[worker], requested[step]) + load_s
        taken = max(now, ready)
        stall_s += taken - now
        requested.append(taken)
        now = taken + compute_s
    return Truth(stall_s, sum(batch.read_s for batch in took), sum(batch.preprocess_s for batch in took), now)


def spend(seconds: float) -> float:
    """Wait for this time within some microseconds, longer under load, and return the actual time."""
    begun = time.perf_counter()
    if seconds > SPIN_S:
        time.sleep(seconds - SPIN_S)
    while (spent := time.perf_counter() - begun) < seconds:
        pass
    return spent


@dataclass(frozen=True)
class Slow:
    """Samples that each take a known time to read and to decode. A sample is a `Took`."""

    count: int
    read_s: float
    decode_s: float

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> tuple[float, int]:
        return spend(self.read_s), index

    def decode(self, data: float, index: int) -> Took:
        return Took(data, spend(self.decode_s))


def slow_transform(seconds: float) -> Callable[[Took], Took]:
    def transform(sample: Took) -> Took:
        return Took(sample.read_s, sample.preprocess_s + spend(seconds))

    return transform


def known_batch(samples: Sequence[tuple[Took, int]]) -> Took:
    """Collate samples to a batch with their times, including that of collating."""
    begun = time.perf_counter()
    read_s, preprocess_s = (sum(part) for part in zip(*(took for took, _ in samples), strict=True))
    return Took(read_s, preprocess_s + time.perf_counter() - begun)
