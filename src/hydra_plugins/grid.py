"""A sweep over a grid: which of its points it goes through, how often, and in which order.

    -m batch=8,16,32 power_limit=100,130 sweep.sample=3 sweep.repeats=3 sweep.order=random

Hydra takes its plugins from the namespace package `hydra_plugins` alone, and imports them whenever it starts.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from epochmeter.config import errors
from epochmeter.config.errors import InputError, Problem, input_error
from epochmeter.config.secrets import redact, redact_tree
from epochmeter.config.validation import problems_of
from epochmeter.sweep import sweep_folder
from epochmeter.sweep.compose import SweepLoader, device_of
from epochmeter.sweep.sweep_folder import (
    RECOMMENDED_REPEATS,
    REPEAT,
    is_sweep_override,
    key_of,
    repeats_override,
    write_points,
)

MAX_RUNS = 10_000
"""Maximum number of runs of a sweep: composing that many takes a quarter of an hour."""
MAX_POINTS = 1_000_000
"""Maximum number of configurations that a sample is drawn from."""
Point = list[str]
"""The overrides of a run."""


class GridSweeper(BasicSweeper):
    """Hydra's own sweeper, which goes through the whole grid as it was typed; through `sample` of its points.

    Each point is run `repeats` times, in rounds of all points. The same grid, `sample`, `repeats`, `order` and `seed`
    are the same runs with the same numbers.
    """

    def __init__(
        self,
        max_batch_size: int | None,
        params: dict[str, str] | None,
        sample: int | None,
        repeats: int | None,
        order: Enum,
        seed: int,
    ) -> None:
        super().__init__(max_batch_size, params)
        self.sample, self.repeats, self.order, self.seed = sample, repeats, order.name, seed

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        context = with_sweep_loader(hydra_context, config)
        super().setup(hydra_context=context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> object:
        check_sweeper(self.max_batch_size, {"sample": self.sample, "repeats": self.repeats, "seed": self.seed})
        if self.repeats is None:
            self._warn_of_repeats(arguments)
            return super().sweep(arguments)
        if twice := [argument for argument in arguments if key_of(argument) == REPEAT]:
            raise input_error(
                f"`{twice[0]}` and `sweep.repeats={self.repeats}` both set the repeats", "give only one of them"
            )
        return super().sweep([repeats_override(self.repeats), *arguments])

    def _warn_of_repeats(self, arguments: Sequence[str]) -> None:
        """Warn of a list of repeats in grid order: drift over time may then look like a difference."""
        typed = next((each for each in arguments if key_of(each) == REPEAT and is_sweep_override(each)), None)
        if typed and self.order != "random":
            from epochmeter.console.console import Terminal

            Terminal().warn(
                f"warning: `{typed}` may run the repeats of a configuration one after another, so that drift over "
                f"time looks like a difference between configurations\n  hint: use {RECOMMENDED_REPEATS} instead"
            )

    def split_arguments(self, overrides, max_batch_size):  # type: ignore[no-untyped-def, override]
        """The points in batches, all of them checked before the first run is started."""
        check_size(overrides, self.sample, self.repeats)
        (grid,) = BasicSweeper.split_arguments(overrides, None)
        some = draw_sample(grid, self.sample, self.seed)
        points = shuffle_points(some, self.seed) if self.order == "random" else some
        self._print_completed(points)
        if self.sample is not None:
            there, taken = len(unique_points(grid)), len(unique_points(points))
            which = f"{taken} of the grid's {there}" if taken < there else f"all {there} of the grid's"
            print(f"sweep.sample={self.sample}: {which} configurations.", flush=True)
        assert self.config is not None
        check_configurations(points, self)
        write_points(Path(self.config.hydra.sweep.dir), points)
        return list(BasicSweeper.split_overrides_to_chunks(points, max_batch_size))

    def _print_completed(self, points: Sequence[Point]) -> None:
        """Print how many runs an earlier start of the same command completed; changes are checked later."""
        assert self.config is not None
        folder = Path(self.config.hydra.sweep.dir)
        before = sweep_folder.read_points(folder)
        sweep_folder.read_points.cache_clear()
        if before.completed and list(before.overrides) == redact_tree(points):
            left = len(points) - len(before.completed)
            what = f"{left} left to run" if left else "nothing to do unless a default or the dataset has changed"
            print(f"{len(before.completed)} of {len(points)} runs are completed in {folder.name}: {what}.", flush=True)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """All points have been checked."""


def with_sweep_loader(context: HydraContext, config: DictConfig) -> HydraContext:
    """Hydra's context with a loader made for a sweep.

    On a cluster, each node resolves `device=auto` itself.
    """
    elsewhere = config.hydra.runtime.choices["hydra/launcher"] == "slurm"
    assert isinstance(context.config_loader, ConfigLoaderImpl)
    loader = SweepLoader(context.config_loader, None if elsewhere else device_of)
    return HydraContext(config_loader=loader, callbacks=context.callbacks)


def check_configurations(points: Sequence[Sequence[str]], sweeper: Sweeper) -> None:
    """Ends a command for configurations that cannot be run, as Hydra's own check of each batch would."""
    from epochmeter.run.preflight import validate_sweep

    assert sweeper.config is not None
    assert sweeper.hydra_context is not None
    try:
        validate_sweep(points, partial(sweeper.hydra_context.config_loader.load_sweep_config, sweeper.config))
    except ValueError as error:
        sys.exit(errors.format_error(redact(str(error))))


def check_sweeper(max_batch_size: Any, keys: dict[str, Any]) -> None:
    """Refuse invalid keys of the sweeper before any configuration is composed; InputError."""
    problems = [each for key, value in keys.items() for each in problems_of(f"sweep.{key}", value)]
    if max_batch_size is not None and (type(max_batch_size) is not int or max_batch_size < 1):
        problems.append(Problem(f"`hydra.sweeper.max_batch_size={max_batch_size}` is not valid", "leave it out"))
    if problems:
        raise InputError(*problems)


def check_size(overrides: Sequence[Override], sample: int | None, repeats: int | None) -> None:
    """Refuse a sweep over no values, over an interval, or over too many configurations; InputError.

    The configurations are counted without enumerating them: a range may have a billion values.
    """
    last = {override.get_key_element(): override for override in overrides}
    counts = {key: value_count(override) for key, override in last.items() if override.is_sweep_override()}
    for key, values in counts.items():
        typed = last[key].input_line
        if values == 0:
            raise input_error(
                f"`{typed}` has no values to sweep over", f"give a list or a range with values: {key}=8,16"
            )
        if values == math.inf:
            raise input_error(
                f"`{typed}` is an interval, which only a search can use", "add hydra/sweeper=optuna, or give a list"
            )
    size = math.prod(counts.values())
    runs = min(size, sample * (repeats or 1)) if sample else size
    if runs > MAX_RUNS or size > MAX_POINTS:
        raise input_error(
            f"The sweep has {size:,.0f} configurations; at most {MAX_RUNS:,} runs are possible",
            f"give fewer values; draw a random sample of up to {MAX_POINTS:,} with sweep.sample=100; or search with "
            "hydra/sweeper=optuna and interval(low, high)",
        )


def value_count(override: Override) -> float:
    """Return the number of values that an override sweeps over; infinite for an interval."""
    values = override.value()
    if isinstance(values, IntervalSweep):
        return math.inf
    if isinstance(values, RangeSweep):
        assert values.start is not None
        assert values.stop is not None
        if values.step == 0:
            return 0
        return max(0, math.ceil((values.stop - values.start) / values.step))
    return sum(1 for _ in override.sweep_string_iterator())


def draw_sample(grid: Sequence[Point], sample: int | None, seed: int) -> list[Point]:
    """`sample` of the grid's points, in its order; all of them where there are no more, or none is asked for.

    A point that is drawn is drawn with all of its repeats.
    """
    points = unique_points(grid)
    if sample is None or sample >= len(points):
        return list(grid)
    chosen = {points[index] for index in random.Random(seed).sample(range(len(points)), sample)}
    return [point for point in grid if _without_repeat(point) in chosen]


def shuffle_points(points: Sequence[Point], seed: int) -> list[Point]:
    """The points at random, so that no drift of the machine or of the room poses as an effect of what varies.

    Repeats make whole blocks, one after another, each a permutation of all points of its own: a randomized complete
    block design (R. A. Fisher, The Design of Experiments, 1935, chapter IV).
    """
    blocks: dict[str, list[Point]] = {}
    for point in points:
        blocks.setdefault(next((override for override in point if key_of(override) == REPEAT), ""), []).append(point)
    chance = random.Random(seed)
    return [point for block in blocks.values() for point in chance.sample(block, len(block))]


def unique_points(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """The different points that there are, whatever their repeat."""
    return list(dict.fromkeys(map(_without_repeat, points)))


def _without_repeat(point: Point) -> tuple[str, ...]:
    return tuple(override for override in point if key_of(override) != REPEAT)
