"""Known pipelines: samples that take a known time to read and to preprocess, and what a loader makes of them.

For tests and benchmarks alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SPIN_S = 0.0002
"""A sleep ends some 60 us late: the last of a wait is spent looking at the clock."""


class Took(NamedTuple):
    """What a sample, or a batch of them, took indeed, in seconds."""

    read_s: float
    preprocess_s: float


class Truth(NamedTuple):
    """What one epoch takes, in seconds."""

    stall_s: float
    read_s: float
    preprocess_s: float
    e2e_s: float


def truth(took: Sequence[Took], computed_s: Sequence[float], workers: int, prefetch: int) -> Truth:
    """An epoch whose batches took so long to load, and its steps to compute, by an exact simulation of torch's loader.

    Batch k is worker k mod W's. To begin with each has `prefetch` batches to do; for each batch that is handed out
    one more is asked for. They are handed out in order, and whoever computes waits for the next one.
    """
    now = stall_s = 0.0
    free = [0.0] * workers
    asked = [0.0] * (prefetch * workers)
    for step, (batch, compute_s) in enumerate(zip(took, computed_s, strict=True)):
        load_s = batch.read_s + batch.preprocess_s
        if workers == 0:
            ready = now + load_s
        else:
            worker = step % workers
            ready = free[worker] = max(free[worker], asked[step]) + load_s
        got = max(now, ready)
        stall_s += got - now
        asked.append(got)
        now = got + compute_s
    return Truth(stall_s, sum(batch.read_s for batch in took), sum(batch.preprocess_s for batch in took), now)


def spend(seconds: float) -> float:
    """Lets so much time pass, to within some microseconds, or more where others are given the processor: how much."""
    begun = time.perf_counter()
    if seconds > SPIN_S:
        time.sleep(seconds - SPIN_S)
    while (spent := time.perf_counter() - begun) < seconds:
        pass
    return spent


@dataclass(frozen=True)
class Slow:
    """So many samples, each of which takes a known time to read and to decode. A sample is a `Took`."""

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
    """A batch of such samples: what they took, and what making a batch of them did."""
    begun = time.perf_counter()
    read_s, preprocess_s = (sum(part) for part in zip(*(took for took, _ in samples), strict=True))
    return Took(read_s, preprocess_s + time.perf_counter() - begun)
