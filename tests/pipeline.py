"""Pipelines with known times: samples that take known times to read and to preprocess, for tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epochmeter.worker.known_script import spend


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


def simulate(loads_s: Sequence[float], computed_s: Sequence[float], workers: int, prefetch: int) -> tuple[float, float]:
    """Simulate torch's DataLoader exactly, from the actual times of the batches and of the steps.

    Worker k mod W loads batch k. Each worker starts with `prefetch` batches; each batch that is taken requests one
    more. Batches are taken in order, and training waits for the next one.

    Returns:
        The seconds in which training waited, and those of the epoch.
    """
    now = stalled_s = 0.0
    free, requested = [0.0] * workers, [0.0] * (prefetch * workers)
    for step, (load_s, compute_s) in enumerate(zip(loads_s, computed_s, strict=True)):
        if workers == 0:
            ready = now + load_s
        else:
            worker = step % workers
            ready = free[worker] = max(free[worker], requested[step]) + load_s
        taken = max(now, ready)
        stalled_s += taken - now
        requested.append(taken)
        now = taken + compute_s
    return stalled_s, now


def truth(took: Sequence[Took], computed_s: Sequence[float], workers: int, prefetch: int) -> Truth:
    """Simulate torch's DataLoader exactly, from the actual times of the batches and of the steps."""
    loads_s = [batch.read_s + batch.preprocess_s for batch in took]
    stall_s, e2e_s = simulate(loads_s, computed_s, workers, prefetch)
    return Truth(stall_s, sum(batch.read_s for batch in took), sum(batch.preprocess_s for batch in took), e2e_s)


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
