"""The search space: one dimension per key, with Optuna's distribution of its values."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from epochmeter.shared.problem import InputError, Problem
from epochmeter.sweep.grid import MAX_RUNS, as_typed, value_count

DIGITS = 6  # significant digits of a number drawn from an interval: the rounded number is measured and recorded


class SearchError(InputError):
    """An invalid search, with a hint."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(Problem(f"hydra/sweeper=optuna: {what}", hint))


@dataclass(frozen=True)
class SearchDimension:
    """A key to search, such as `optimizer.lr`."""

    key: str
    distribution: CategoricalDistribution | FloatDistribution | IntDistribution  # of positions in `values`, if any
    values: tuple[str, ...] = ()

    @property
    def count(self) -> float:
        """Number of values; infinite for an interval of real numbers."""
        if isinstance(self.distribution, IntDistribution):
            return self.distribution.high - self.distribution.low + 1
        return len(self.values) or (1 if self.distribution.single() else math.inf)

    def to_override(self, value: Any) -> str:
        """Return the override for a value of the distribution."""
        if self.values:
            value = self.values[value]
        elif isinstance(self.distribution, FloatDistribution):
            rounded = float(f"{value:.{DIGITS}g}")
            value = min(max(rounded, self.distribution.low), self.distribution.high)
        return f"{self.key}={value}"

    def from_override(self, override: str) -> Any:
        """Return the distribution's value for an override of this key; ValueError if it has none."""
        text = override.partition("=")[2]
        if self.values or isinstance(self.distribution, CategoricalDistribution):
            return self.values.index(text)
        value = float(text) if isinstance(self.distribution, FloatDistribution) else int(text)
        if not self.distribution.low <= value <= self.distribution.high:
            raise ValueError(f"{override} is outside of the interval")
        return value

    def probes(self) -> list[str]:
        """Return overrides that show whether all values are valid: all of a list, else the ends and one between."""
        if self.values or isinstance(self.distribution, CategoricalDistribution):
            return [f"{self.key}={value}" for value in self.values]
        low, high = self.distribution.low, self.distribution.high
        inside = [low + (high - low) / math.e] if isinstance(self.distribution, FloatDistribution) else []
        return [self.to_override(value) for value in (low, *inside, high)]


def list_dimension(key: str, values: Iterable[str]) -> SearchDimension:
    """Return the dimension of a list of values without duplicates; numbers ascend, so that the sampler can use that."""
    unique = tuple(dict.fromkeys(values))
    try:
        return SearchDimension(key, IntDistribution(0, len(unique) - 1), tuple(sorted(unique, key=float)))
    except ValueError:
        return SearchDimension(key, CategoricalDistribution(range(len(unique))), unique)


def make_dimension(override: Override) -> SearchDimension:
    """Return the dimension for a sweep override of Hydra; SearchError if it has no values, or too many."""
    key, sweep = override.get_key_element(), override.value()
    if not isinstance(sweep, IntervalSweep):
        if not 0 < (count := value_count(override)) <= MAX_RUNS:
            raise SearchError(
                f"`{override.input_line}` has {count:,} values",
                f"give 1 to {MAX_RUNS:,} values, or {key}=interval(low, high)",
            )
        return list_dimension(key, map(as_typed, override.sweep_string_iterator()))
    low, high, log = sweep.start, sweep.end, "log" in sweep.tags
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if not -math.inf < low <= high < math.inf or (log and low <= 0):
        cause = f"`{key}=interval({low}, {high})` is empty or infinite"
        raise SearchError(cause, "give finite ends with lower <= upper; with log, the lower end is above 0")
    if isinstance(low, int) and isinstance(high, int):
        return SearchDimension(key, IntDistribution(low, high, log=log))
    return SearchDimension(key, FloatDistribution(low, high, log=log))


def probe_points(dimensions: Sequence[SearchDimension], fixed: Sequence[str]) -> list[tuple[str, ...]]:
    """Return configurations that show whether all values are valid: one key varies, others have their first value."""
    first = [dimension.probes()[0] for dimension in dimensions]
    points = [(*fixed, *first[:place], probe, *first[place + 1 :])
              for place, dimension in enumerate(dimensions) for probe in dimension.probes()]  # fmt: skip
    return list(dict.fromkeys(points))
