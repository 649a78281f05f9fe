"""Estimates from repeated runs: the run is the unit, as epochs within a run are not independent.

Repeats give the spread, and Welch's method the 95 % intervals. Estimates are never clipped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

Samples = Mapping[str, Sequence[float]]
"""Condition -> a value a run."""
MIN_EFFECT = 0.02
"""Share of a time, of an energy or of a size from which on a difference matters."""
FALSE = 0.05
"""Of the differences between two sweeps that are told, the share that is chance in the long run; and of sweeps of equal
jobs, the share in which one is told from the best."""


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; no interval where a condition was run only once."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_negative(self) -> bool:
        """Whether it is below zero, as no stall can be."""
        return self.value < 0

    def contains(self, bound: float) -> bool:
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


class Spread(NamedTuple):
    """How much the values of a condition vary."""

    variance: float
    freedom: float
    """How well that is known: the degrees of freedom that it is an estimate with."""


def spread(values: Sequence[float]) -> Spread | None:
    """That of values by themselves; None of one."""
    return Spread(deviation(values) ** 2, len(values) - 1.0) if len(values) > 1 else None


def spreads(samples: Sequence[Sequence[float]]) -> list[Spread | None]:
    """That of each sample, moderated by all: what two or three repeats cannot tell, the others lend; None of one value.

    The variances are taken for draws from one scaled inverse chi-squared distribution, which is fitted to them by the
    moments of their logarithms (G. K. Smyth, Linear models and empirical Bayes methods for assessing differential
    expression, 2004). Where they are alike, each is that of all; where they are not, each is its own. It takes three.
    """
    own = [spread(values) for values in samples]
    known = [each for each in own if each and each.variance]
    if len(known) < 3:
        return own
    lent = _lent(known)
    most = math.fsum(each.freedom for each in known)
    return [each and _moderated(each, lent, most) for each in own]


def _lent(known: Sequence[Spread]) -> Spread:
    """The distribution that these variances are drawn from: its scale, and how many degrees of freedom it lends."""
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    logs = [math.log(variance) - float(digamma(freedom / 2)) + math.log(freedom / 2) for variance, freedom in known]
    chance = statistics.fmean(float(polygamma(1, freedom / 2)) for _, freedom in known)
    beyond = statistics.variance(logs) - chance
    if beyond < 1e-6:  # they differ no more than they would by chance
        return Spread(math.exp(statistics.fmean(logs)), math.inf)
    half = math.exp(brentq(lambda log: math.log(polygamma(1, math.exp(log)) / beyond), -20, 20))
    return Spread(math.exp(statistics.fmean(logs) + float(digamma(half)) - math.log(half)), 2 * half)


def _moderated(own: Spread, lent: Spread, most: float) -> Spread:
    """No better known than all variances together would be."""
    if math.isinf(lent.freedom):
        return Spread(lent.variance, most)
    freedom = own.freedom + lent.freedom
    variance = (own.freedom * own.variance + lent.freedom * lent.variance) / freedom
    return Spread(variance, min(freedom, most))


class Apart(NamedTuple):
    """How far two means lie apart, in standard errors of their difference."""

    errors: float
    freedom: float
    """The degrees of freedom of that error."""


def apart(one: Sequence[float], other: Sequence[float], of_one: Spread | None, of_other: Spread | None) -> Apart | None:
    """By Welch's method; None where neither has a spread.

    One run beside repeats is held against what one more of them would be: their spread is taken for its own.
    """
    if of_one and of_other:
        error = _sum([Spread(of_one.variance / len(one), of_one.freedom),
                      Spread(of_other.variance / len(other), of_other.freedom)])  # fmt: skip
    elif repeated := of_one or of_other:
        error = Spread(repeated.variance * (1 / len(one) + 1 / len(other)), repeated.freedom)
    else:
        return None
    difference = abs(statistics.fmean(one) - statistics.fmean(other))
    if not error.variance:
        return Apart(math.inf if difference else 0.0, 1.0)
    return Apart(difference / math.sqrt(error.variance), error.freedom)


def p_value(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Of Welch's test that two means are the same, two-sided; None where both were run only once."""
    from scipy.special import stdtr

    told = apart(one, other, *(spread(values) for values in (one, other)))
    return told and 2 * float(stdtr(told.freedom, -told.errors))


@lru_cache(maxsize=256)
def range_of(count: int, freedom: int) -> float:
    """So many standard errors lie the largest and the least of so many equal means apart in 95 of 100 cases at most.

    It is Tukey's studentized range, in errors of a difference.
    """
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - FALSE, count, freedom)) / math.sqrt(2)


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """For each test the least false discovery rate at which it is told among all (Benjamini and Hochberg, 1995)."""
    if len(p_values) < 2:
        return list(p_values)
    from scipy.stats import false_discovery_control

    return [float(rate) for rate in false_discovery_control(p_values)]


def _welch(weights: Mapping[str, float], samples: Samples, counts: Mapping[str, int]) -> tuple[float, float]:
    """The standard error of a weighted sum of means, and its degrees of freedom; both zero where nothing varies."""
    parts = [Spread(weight**2 * deviation(samples[name]) ** 2 / counts[name], counts[name] - 1.0)
             for name, weight in weights.items()]  # fmt: skip
    error = _sum(parts)
    return math.sqrt(error.variance), error.freedom


def _sum(parts: Sequence[Spread]) -> Spread:
    """The spread of a sum of what varies independently, by Welch and Satterthwaite; both zero where nothing varies."""
    variance = math.fsum(part.variance for part in parts)
    if not variance:
        return Spread(0.0, 0.0)
    return Spread(variance, variance**2 / math.fsum(part.variance**2 / part.freedom for part in parts))


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
