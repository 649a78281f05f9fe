import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

from epochmeter.agent.samples import batch_count, stated_samples


class Drawn(data.Sampler[list[int]]):
    """A sampler of the script that draws its batches to count them, from one source of random numbers."""

    def __init__(self, draw: Any) -> None:
        self.own = (
            torch.Generator().manual_seed(0),
            random.Random(0),
            np.random.RandomState(0),
            np.random.default_rng(0),
        )
        self.torch, self.python, self.legacy, self.numpy = self.own
        self.draw = draw

    def __len__(self) -> int:
        return sum(self.draw(self) is not None for _ in range(3))


DRAWS = {
    "torch": lambda _: torch.rand(1).item(),
    "python": lambda _: random.random(),
    "numpy": lambda _: np.random.random(),
    "own torch": lambda sampler: torch.rand(1, generator=sampler.torch).item(),
    "own python": lambda sampler: sampler.python.random(),
    "own numpy": lambda sampler: sampler.numpy.random(),
    "own legacy": lambda sampler: sampler.legacy.random_sample(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_counting_batches_draws_no_random_number_of_the_script(name: str) -> None:
    draw = DRAWS[name]

    def drawn(counts: bool) -> float:
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        sampler = Drawn(draw)
        by_batch = data.DataLoader([1, 2, 3], batch_sampler=sampler)  # type: ignore[arg-type]
        by_sample = data.DataLoader([1, 2, 3], 1, sampler=sampler)  # type: ignore[arg-type]
        if counts:
            assert (batch_count(by_batch), batch_count(by_sample), stated_samples(by_sample)) == (3, 3, None)
        return float(draw(sampler))

    assert drawn(counts=True) == drawn(counts=False)
