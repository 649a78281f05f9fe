"""Estimates from repeated runs: the run is the unit, as epochs within a run are not independent.

Repeats give the spread, and Welch's method the 95 % intervals. Estimates are never clipped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Samples = Mapping[str, Sequence[float]]
"""Condition -> a value a run."""
MATTERS = 0.02
"""Share of a time, of an energy or of a size from which on a difference matters."""
FALSE = 0.05
"""Of the differences that are told, the share that is chance in the long run."""


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; no interval where a condition was run only once."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def noise(self) -> bool:
        """Whether it is below zero, as no stall can be."""
        return self.value < 0

    def spans(self, bound: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= bound <= self.high

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit; the factor is above zero."""
        low, high = (None if bound is None else factor * bound for bound in (self.low, self.high))
        return Estimate(factor * self.value, low, high)


def contrast(weights: Mapping[str, float], samples: Samples) -> Estimate:
    """A weighted sum of the conditions' means, with Welch's interval."""
    value = math.fsum(weight * statistics.fmean(samples[name]) for name, weight in weights.items())
    if any(len(samples[name]) < 2 for name in weights):
        return Estimate(value)
    half = half_width(weights, samples, {name: len(samples[name]) for name in weights})
    return Estimate(value, value - half, value + half)


def half_width(weights: Mapping[str, float], samples: Samples, counts: Mapping[str, int]) -> float:
    """Half of Welch's 95 % interval, were there so many of each and their variances those of the samples."""
    from scipy.special import stdtrit

    error, freedom = _welch(weights, samples, counts)
    return float(stdtrit(freedom, 0.975)) * error if error else 0.0


def p_value(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Of Welch's test that two means are the same, two-sided; None where both were run only once.

    One run beside repeats is held against what one more of them would be: their spread is taken for its own.
    """
    from scipy.special import stdtr

    once, repeated = sorted((one, other), key=len)
    if len(repeated) < 2:
        return None
    if len(once) < 2:
        error, freedom = deviation(repeated) * math.sqrt(1 + 1 / len(repeated)), len(repeated) - 1.0
    else:
        weights, samples = {"one": 1.0, "other": -1.0}, {"one": one, "other": other}
        error, freedom = _welch(weights, samples, {"one": len(one), "other": len(other)})
    apart = abs(statistics.fmean(one) - statistics.fmean(other))
    if not error:
        return float(not apart)
    return 2 * float(stdtr(freedom, -apart / error))


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """For each test the least false discovery rate at which it is told among all (Benjamini and Hochberg, 1995)."""
    if len(p_values) < 2:
        return list(p_values)
    from scipy.stats import false_discovery_control

    return [float(rate) for rate in false_discovery_control(p_values)]


def _welch(weights: Mapping[str, float], samples: Samples, counts: Mapping[str, int]) -> tuple[float, float]:
    """The standard error of a weighted sum of means, and its degrees of freedom; both zero where nothing varies."""
    parts = {name: weights[name] ** 2 * deviation(samples[name]) ** 2 / counts[name] for name in weights}
    squared = math.fsum(parts.values())
    if squared == 0:
        return 0.0, 0.0
    return math.sqrt(squared), squared**2 / math.fsum(part**2 / (counts[name] - 1) for name, part in parts.items())


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of two values or more (n - 1), in floats: a tenth of the time that exact sums take."""
    mean = statistics.fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def mean(values: Sequence[float]) -> Estimate:
    return contrast({"mean": 1.0}, {"mean": values})


def positive_mean(values: Sequence[float]) -> Estimate:
    """The mean of what lies above zero, such as seconds and joules, with an interval that does, too.

    The interval is Student's on the logarithms, as that of a ratio: it is of the geometric mean, from which the mean of
    repeats hardly differs. Of few values that differ much it is wide, and the more so upward.
    """
    if min(values) <= 0:
        return mean(values)
    logs = mean([math.log(value) for value in values])
    if logs.low is None or logs.high is None:
        return mean(values)
    return Estimate(statistics.fmean(values), math.exp(logs.low), math.exp(logs.high))


def difference(more: Sequence[float], less: Sequence[float]) -> Estimate:
    return contrast({"more": 1.0, "less": -1.0}, {"more": more, "less": less})


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The ratio of geometric means: a difference of logarithms, with Welch's interval; all values are above zero."""
    logs = difference([math.log(value) for value in above], [math.log(value) for value in below])
    if logs.low is None or logs.high is None:
        return Estimate(math.exp(logs.value))
    return Estimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))
