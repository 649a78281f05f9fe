"""Grids: the number of configurations, random samples, random orders, and equal failures."""

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import Points
from epochmeter.shared.problem import EXCEPTION, Problem, input_error
from epochmeter.sweep.sweep_folder import REPEAT, key_of

MAX_RUNS = 10_000  # maximum number of runs of a sweep: composing that many takes a quarter of an hour
MAX_POINTS = 1_000_000  # maximum number of configurations that a sample is drawn from
BOOLEANS = {"True": "true", "False": "false"}  # as Hydra writes swept values -> as users type them
MIN_FAILURES = 3  # smallest number of equal failures that end a sweep
Point = list[str]  # the overrides of a run


def check_size(overrides: Sequence[Override], sample: int | None, repeats: int | None) -> None:
    """Refuse a sweep over no values, equal ones, an interval, or too many configurations; InputError."""
    sweeps = {override.get_key_element(): override for override in overrides if override.is_sweep_override()}
    counts = {override.input_line: value_count(override) for override in sweeps.values()}
    for text, count in counts.items():
        if count == 0:
            raise input_error(f"`{text}` has no values to sweep over", "give a list or a range with values")
        if count == math.inf:
            cause = f"`{text}` has infinitely many values, which only searches can use"
            raise input_error(cause, "give a list or a range; or add hydra/sweeper=optuna with interval(low, high)")
    size = math.prod(counts.values())
    runs = min(size, sample * (repeats or 1)) if sample else size
    if runs > MAX_RUNS or size > MAX_POINTS:
        raise input_error(
            f"The sweep has {size:,.0f} configurations; at most {MAX_RUNS:,} runs are possible",
            f"give fewer values; draw a random sample of up to {MAX_POINTS:,} with sweep.sample=100; or search with "
            "hydra/sweeper=optuna and interval(low, high)",
        )
    for override in sweeps.values():
        if (value := repeated_value(override)) is not None:
            cause = f"`{override.input_line}` has the value `{as_typed(value)}` more than once"
            raise input_error(cause, "give each value once; to run each configuration twice, add sweep.repeats=2")


def repeated_value(override: Override) -> str | None:
    """Return the first value that an override sweeps over again; None if all differ."""
    counts = Counter(override.sweep_string_iterator())
    return next((value for value, count in counts.items() if count > 1), None)


def value_count(override: Override) -> float:
    """Return the number of values that an override sweeps over; infinite for an interval, and without finite ends."""
    values = override.value()
    if isinstance(values, IntervalSweep):
        return math.inf
    if isinstance(values, RangeSweep):
        assert values.start is not None
        assert values.stop is not None
        count = (values.stop - values.start) / values.step if values.step else 0
        return max(0, math.ceil(count)) if math.isfinite(count) else math.inf
    return sum(1 for _ in override.sweep_string_iterator())


def as_typed(override: str) -> str:
    r"""Return a swept override, or its value, as typed: Hydra writes `compile=True`, and `power_limit=id\:2`."""
    key, equals, value = override.rpartition("=")
    text = BOOLEANS.get(value) or re.sub(r"(?<!\\)((?:\\\\)*)\\:", r"\1:", value)
    return f"{key}{equals}{text}"


def draw_sample(grid: Sequence[Point], sample: int | None, seed: int) -> list[Point]:
    """Return a random sample of a grid's configurations with all of their repeats, in the grid's order; None: all."""
    keys = [tuple(override for override in point if key_of(override) != REPEAT) for point in grid]
    points = list(dict.fromkeys(keys))
    if sample is None or sample >= len(points):
        return list(grid)
    chosen = {points[index] for index in random.Random(seed).sample(range(len(points)), sample)}
    return [point for point, key in zip(grid, keys, strict=True) if key in chosen]


def shuffle_points(points: Sequence[Point], seed: int) -> list[Point]:
    """Return the points in random order, so that drift over time does not appear as an effect of a key.

    Each repeat is a block, one after another, with an own permutation of all points: a randomized complete block design
    (R. A. Fisher, The Design of Experiments, 1935, chapter IV).
    """
    blocks: dict[str, list[Point]] = {}
    for point in points:
        blocks.setdefault(next((override for override in point if key_of(override) == REPEAT), ""), []).append(point)
    generator = random.Random(seed)
    return [point for block in blocks.values() for point in generator.sample(block, len(block))]


def has_common_failure(points: Points, results: Sequence[RunResult]) -> bool:
    """Return whether all runs so far failed with the same error, whatever the values of the varied keys.

    At least two values of each key were tried. Failures that may depend on the size of a value, such as a lack of
    memory, do not count, nor do exit codes of scripts, which have many causes.
    """
    first, is_early = results[0], MIN_FAILURES <= len(results) < len(points.overrides)
    if first.failure is None or first.failure.code not in ("job", EXCEPTION) or first.exit_code or not is_early:
        return False
    if any(_error_of(result) != _error_of(first) for result in results):
        return False
    tried = Counter(map(key_of, set(chain.from_iterable(result.overrides for result in results))))
    return all(tried[key] > 1 for key in {*map(key_of, points.varied)} - {REPEAT})


def _error_of(result: RunResult) -> tuple[str, str]:
    failure = result.failure or Problem("")
    return failure.code, failure.message.partition("\n")[0]
