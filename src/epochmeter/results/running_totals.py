"""Sums over the epochs of a run, which grow with each epoch without a look at the earlier ones."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class RunningTotals:
    """Sums of quantities over epochs. Those of the last epoch may change, as its evaluation follows.

    Attributes:
        epochs: Number of epochs so far, with the last one.
        last: Quantities of the last epoch; empty before the first.
    """

    def __init__(self) -> None:
        self.epochs = 0
        self.last: Mapping[str, float] = {}
        self._sums: dict[str, float] = defaultdict(float)  # without the last epoch, as the counts
        self._counts: dict[str, int] = defaultdict(int)

    def begin(self) -> None:
        """Begin a new epoch."""
        for name, value in self.last.items():
            self._sums[name] += value
            self._counts[name] += 1
        self.epochs += 1
        self.last = {}

    def known(self, name: str) -> int:
        """Return the number of epochs of which a quantity is known."""
        return self._counts.get(name, 0) + (name in self.last)

    def sum(self, name: str) -> float | None:
        """Return the sum of a quantity over all epochs; None if it is not known of one."""
        if self.known(name) < self.epochs:
            return None
        return self._sums.get(name, 0.0) + self.last.get(name, 0.0)


@dataclass(frozen=True)
class Series:
    """A series of values by what a first-order autoregression needs of it: sums of its values and of their products.

    Attributes:
        count: Number of values, at least one.
        first: The first value, from which the differences are: sums of the values themselves would be less exact.
        last: The last value, as a difference, as the following ones.
        total: Sum of the differences.
        squares: Sum of their squares.
        products: Sum of the products of each with the one before it.
    """

    count: int
    first: float
    last: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def with_value(self, value: float) -> "Series":
        """Return the series with one more value."""
        last = value - self.first
        return Series(
            self.count + 1,
            self.first,
            last,
            self.total + last,
            self.squares + last * last,
            self.products + last * self.last,
        )

    @property
    def mean(self) -> float:
        return self.first + self.total / self.count


def extended(series: Series | None, value: float) -> Series:
    """Return a series with one more value; None is a series without values."""
    return series.with_value(value) if series else Series(1, value)


def series_of(values: Iterable[float]) -> Series:
    """Return the series of one or more values."""
    first, *others = values
    series = Series(1, first)
    for value in others:
        series = series.with_value(value)
    return series
