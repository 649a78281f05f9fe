"""Ratios of two durations, measured in interleaved pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from common.output import sized

from epochmeter.results.intervals import MIN_OF_MEDIAN, median_interval

COLUMNS = ("median", "95 % interval", "quartiles", "pairs")


class Ratio(NamedTuple):
    """The median of ratios with its 95 % confidence interval (NaN: too few), and the quartiles of the single ratios."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float]
    pairs: int

    def cells(self) -> list[str]:
        """Return the ratio's cells under `COLUMNS`."""
        interval, quartiles = (f"{low:.4f} .. {high:.4f}" for low, high in ((self.low, self.high), self.quartiles))
        return [f"{self.median:.4f}", interval, quartiles, str(self.pairs)]


def ratio(first: Callable[[], float], second: Callable[[], float], within: float, most: int) -> Ratio:
    """Run two functions in interleaved pairs, in alternating order, and return the ratio of their durations.

    Args:
        first: Returns the duration in the numerator.
        second: Returns the duration in the denominator.
        within: The pairs end when the half-width of the median's interval is at most this.
        most: Largest number of pairs.
    """
    ratios: list[float] = []
    most, least = sized(most, 1), sized(20, 1)
    while len(ratios) < most:
        if len(ratios) % 2:
            below = second()
            above = first()
        else:
            above = first()
            below = second()
        ratios.append(above / below)
        if len(ratios) >= least:
            result = median(ratios)
            if max(result.high - result.median, result.median - result.low) <= within:
                break
    return median(ratios)


def median(values: Sequence[float]) -> Ratio:
    """Return the median with its interval, which is NaN for few values, as of `--short`."""
    ordered = sorted(values)
    count = len(ordered)
    low, high = median_interval(values) if count >= MIN_OF_MEDIAN else (math.nan, math.nan)
    quarter, _, three = statistics.quantiles(ordered, n=4) if count > 1 else 3 * ordered
    return Ratio(statistics.median(ordered), low, high, (quarter, three), count)
