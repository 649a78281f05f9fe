"""A sweep of some of a grid's points, drawn at random: `-m batch=8,16,32 power_limit=100,130 sweep.sample=3`.

Hydra takes its plugins from the namespace package `hydra_plugins` alone, and imports them whenever it starts.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import partial

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.errors import CompactHydraException


class SampleSweeper(BasicSweeper):
    """Hydra's own sweeper, which goes through the whole grid; with `sample` through so many of its points.

    Each point is drawn at most once, and they follow one another as they do in the grid. The same grid, `sample` and
    `seed` are the same points.
    """

    def __init__(
        self, max_batch_size: int | None, params: dict[str, str] | None, sample: int | None, seed: int
    ) -> None:
        super().__init__(max_batch_size, params)
        self.sample, self.seed = sample, seed

    def sweep(self, arguments: list[str]) -> object:
        if self.sample is not None and self.sample < 1:
            raise CompactHydraException(f"sweep.sample={self.sample}: give 1 or more, or null for the whole grid.")
        return super().sweep(arguments)

    def split_arguments(self, overrides, max_batch_size):  # type: ignore[no-untyped-def, override]
        """The points in batches, all of them checked before the first run is started."""
        (grid,) = BasicSweeper.split_arguments(overrides, None)
        points = drawn(grid, self.sample, self.seed)
        if self.sample is not None:
            few = "" if self.sample <= len(grid) else f" There are no {self.sample}."
            print(f"sweep.sample={self.sample}: {len(points)} of the grid's {len(grid)} points.{few}", flush=True)
        self.check(points)
        return list(BasicSweeper.split_overrides_to_chunks(points, max_batch_size))

    def check(self, points: list[list[str]]) -> None:
        """Refuses the sweep for points that cannot be; it takes what Hydra's own check of each batch would."""
        from trainmeter.admission import check_points

        assert self.config is not None
        assert self.hydra_context is not None
        load = partial(self.hydra_context.config_loader.load_sweep_config, self.config)
        try:
            check_points(points, load)
        except ValueError as error:
            sys.exit(str(error))

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """All points have been checked."""


def drawn(grid: Sequence[list[str]], sample: int | None, seed: int) -> list[list[str]]:
    """`sample` of the grid's points, in its order; all of them where there are no more, or none is asked for."""
    if sample is None or sample >= len(grid):
        return list(grid)
    return [grid[index] for index in sorted(random.Random(seed).sample(range(len(grid)), sample))]
