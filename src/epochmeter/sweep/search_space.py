"""The space that a search goes through: an axis for each key, and what it may be set to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DIGITS = 6
"""So many significant digits of a number drawn from an interval are typed, and are what is measured."""


class Axis(Protocol):
    """A key, and what it may be set to."""

    @property
    def key(self) -> str: ...

    @property
    def count(self) -> float:
        """How many values there are; infinite of a stretch of real numbers."""

    def distribution(self) -> BaseDistribution:
        """What Optuna draws from."""

    def typed(self, drawn: Any) -> str:
        """The override for a value as Optuna draws it."""

    def drawn(self, override: str) -> Any:
        """The other way round; ValueError for what is not on the axis."""

    def at(self, share: float) -> str:
        """The override so far along the axis, from 0 to 1."""

    def probes(self) -> Sequence[str]:
        """Overrides that tell whether a job can be made of any of its values."""


@dataclass(frozen=True)
class Choices:
    """One of a few values. The sampler is told the order of numbers; of all else there is none."""

    key: str
    values: Sequence[str]

    @property
    def count(self) -> float:
        return len(self.values)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        places = range(len(self.values))
        return IntDistribution(0, places[-1]) if are_numbers(self.values) else CategoricalDistribution(places)

    def typed(self, drawn: Any) -> str:
        return f"{self.key}={self.values[drawn]}"

    def drawn(self, override: str) -> Any:
        return self.values.index(_value(self.key, override))

    def at(self, share: float) -> str:
        return self.typed(min(int(share * len(self.values)), len(self.values) - 1))

    def probes(self) -> Sequence[str]:
        return [self.typed(place) for place in range(len(self.values))]


@dataclass(frozen=True)
class Interval:
    """Any number from `low` to `high`, both within, drawn evenly or, where `log`, its logarithm is."""

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

    def typed(self, drawn: Any) -> str:
        rounded = float(f"{drawn:.{DIGITS}g}")
        return f"{self.key}={min(max(rounded, self.low), self.high)!r}"

    def drawn(self, override: str) -> Any:
        return _within(self.low, float(_value(self.key, override)), self.high)

    def at(self, share: float) -> str:
        if self.log:
            return self.typed(self.low * (self.high / self.low) ** share)
        return self.typed(self.low + (self.high - self.low) * share)

    def probes(self) -> Sequence[str]:
        return [self.at(share) for share in (0.0, 1 / math.e, 1.0)]  # 1/e: no whole number, where one is asked for


@dataclass(frozen=True)
class WholeInterval:
    """The same of whole numbers."""

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

    def typed(self, drawn: Any) -> str:
        return f"{self.key}={drawn}"

    def drawn(self, override: str) -> Any:
        return _within(self.low, int(_value(self.key, override)), self.high)

    def at(self, share: float) -> str:
        return self.typed(min(self.low + int(share * self.count), self.high))

    def probes(self) -> Sequence[str]:
        return [self.at(share) for share in (0.0, 1.0)]


def choices(key: str, values: Iterable[str]) -> Choices:
    """The axis of these values, each once, and numbers in their order."""
    once = list(dict.fromkeys(values))
    return Choices(key, sorted(once, key=float) if are_numbers(once) else once)


def are_numbers(values: Sequence[str]) -> bool:
    try:
        return all(math.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def _value(key: str, override: str) -> str:
    name, _, value = override.partition("=")
    if name != key:
        raise ValueError(f"{override} sets no {key}")
    return value


def _within(low: float, value: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError(f"{value} is not from {low} to {high}")
    return value
