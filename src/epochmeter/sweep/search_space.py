"""The search space: one axis per key, with its distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DIGITS = 6
"""Significant digits of a number drawn from an interval: the rounded value is typed and measured."""


class SearchDimension(Protocol):
    """A dimension of the search space: a key and its possible values."""

    @property
    def key(self) -> str: ...

    @property
    def count(self) -> float:
        """Number of values; infinite for an interval of real numbers."""

    def distribution(self) -> BaseDistribution:
        """Return Optuna's distribution."""

    def to_override(self, drawn: Any) -> str:
        """Return the override for a value drawn by Optuna."""

    def from_override(self, override: str) -> Any:
        """Return Optuna's value for an override; ValueError if it is not on the axis."""

    def at_fraction(self, share: float) -> str:
        """Return the override at a fraction of the axis, from 0 to 1."""

    def boundary_values(self) -> Sequence[str]:
        """Return overrides that show whether all of the axis is valid."""


@dataclass(frozen=True)
class CategoricalDimension:
    """One of a few values. The sampler uses the order of numbers; other values are categorical."""

    key: str
    values: Sequence[str]

    @property
    def count(self) -> float:
        return len(self.values)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        places = range(len(self.values))
        return IntDistribution(0, places[-1]) if are_numbers(self.values) else CategoricalDistribution(places)

    def to_override(self, drawn: Any) -> str:
        return f"{self.key}={self.values[drawn]}"

    def from_override(self, override: str) -> Any:
        return self.values.index(_value(self.key, override))

    def at_fraction(self, share: float) -> str:
        return self.to_override(min(int(share * len(self.values)), len(self.values) - 1))

    def boundary_values(self) -> Sequence[str]:
        return [self.to_override(place) for place in range(len(self.values))]


@dataclass(frozen=True)
class FloatDimension:
    """A real number from `low` to `high`, inclusive, uniform or log-uniform (`log`)."""

    key: str
    low: float
    high: float
    log: bool = False

    @property
    def count(self) -> float:
        return math.inf

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log)

    def to_override(self, drawn: Any) -> str:
        rounded = float(f"{drawn:.{DIGITS}g}")
        return f"{self.key}={min(max(rounded, self.low), self.high)!r}"

    def from_override(self, override: str) -> Any:
        return _within(self.low, float(_value(self.key, override)), self.high)

    def at_fraction(self, share: float) -> str:
        if self.log:
            return self.to_override(self.low * (self.high / self.low) ** share)
        return self.to_override(self.low + (self.high - self.low) * share)

    def boundary_values(self) -> Sequence[str]:
        return [
            self.at_fraction(share) for share in (0.0, 1 / math.e, 1.0)
        ]  # 1/e: never an integer, which detects integer keys


@dataclass(frozen=True)
class IntDimension:
    """An integer from `low` to `high`, inclusive, uniform or log-uniform (`log`)."""

    key: str
    low: int
    high: int
    log: bool = False

    @property
    def count(self) -> float:
        return self.high - self.low + 1

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, log=self.log)

    def to_override(self, drawn: Any) -> str:
        return f"{self.key}={drawn}"

    def from_override(self, override: str) -> Any:
        return _within(self.low, int(_value(self.key, override)), self.high)

    def at_fraction(self, share: float) -> str:
        return self.to_override(min(self.low + int(share * self.count), self.high))

    def boundary_values(self) -> Sequence[str]:
        return [self.at_fraction(share) for share in (0.0, 1.0)]


def categorical_dimension(key: str, values: Iterable[str]) -> CategoricalDimension:
    """Return the axis of these values without duplicates, numbers sorted."""
    unique = list(dict.fromkeys(values))
    return CategoricalDimension(key, sorted(unique, key=float) if are_numbers(unique) else unique)


def are_numbers(values: Sequence[str]) -> bool:
    """Whether all values are finite numbers."""
    try:
        return all(math.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def _value(key: str, override: str) -> str:
    name, _, value = override.partition("=")
    if name != key:
        raise ValueError(f"{override} does not set {key}")
    return value


def _within(low: float, value: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError(f"{value} is not in {low} to {high}")
    return value
