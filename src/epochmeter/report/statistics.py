"""Statistics of repeated runs. The run is the unit, as epochs within a run are not independent.

Few repeats suffice for verdicts: effects of rounds and drift are removed, and the variance of each configuration is
moderated by the pooled variance. Multiple comparisons are corrected. `benchmarks/verdicts.py` prints how often the
verdicts are wrong and which differences they detect.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

Values = Sequence[Sequence[float]]
Samples = Mapping[str, Sequence[float]]
"""A value per run of each configuration, or by condition."""
Rounds = Sequence[Hashable | None]
"""The round of each run; None if its repeats are not rounds."""
MIN_EFFECT = 0.02
"""Smallest relative difference of a time, an energy or a size that matters."""
ALPHA = 0.05
"""False discovery rate between two sweeps; probability that any of many equal configurations is called different."""
BORROWED_DOF, BORROWED_PER_CONFIGURATION = 2.0, 0.25
"""The pooled variance counts as further degrees of freedom of each configuration: a quarter for each configuration, at
most two. More of them detect smaller differences, and raise false alarms if the noise differs."""
MANY_CONFIGURATIONS = 16
"""With more configurations in two sweeps, each may add one borrowed degree of freedom if the variances seem equal."""
MIN_DOF_OF_TREND = 3  # that must remain for effects of rounds and a trend to be estimated together
POWER, MAX_REPEATS = 0.8, 200
"""Probability of a verdict with the recommended number of repeats, and the largest number that is recommended."""
MIN_PAIRED_ROUNDS = 3  # for differences round by round; two would leave one degree of freedom
BOUND = 0.975  # probability that one bound of a 95 % interval holds
TABULATED_DOF = (*range(1, 31), 40, 60, 120)
"""The degrees of freedom for which a studentized range is computed, as in its tables: it takes a while."""
TINY, ROUNDING = 1e-300, 1e-24
"""A sum of squared logarithms below the second is rounding."""


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % confidence interval; no interval if a condition was run only once."""

    value: float
    low: float | None = None
    high: float | None = None

    def contains(self, value: float) -> bool:
        """Whether the interval is known and contains a value."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate in another unit; the factor is positive."""
        low, high = (None if bound is None else factor * bound for bound in (self.low, self.high))
        return Estimate(factor * self.value, low, high)

    def exp(self) -> Estimate:
        """Return the exponential, of an estimate of a logarithm."""
        low, high = (None if bound is None else math.exp(bound) for bound in (self.low, self.high))
        return Estimate(math.exp(self.value), low, high)


class Variance(NamedTuple):
    """A variance, and the degrees of freedom of its estimate; or an array of each."""

    variance: Any
    dof: Any


class Fit(NamedTuple):
    """Means, runs and mean covariates (rounds, or a trend) of several configurations, estimated together, as arrays.

    Attributes:
        means: Adjusted for the covariates.
        single: Variance of a single run of each.
        dof: Degrees of freedom of all variances together; zero if no configuration has repeats.
        covariance: Covariance of the covariates' effects.
    """

    means: Any
    single: Variance
    dof: float
    counts: Any
    covariates: Any
    covariance: Any

    def difference(self, one: int | Sequence[int], other: int) -> tuple[Any, Variance]:
        """Return the difference of means, with its variance by Welch and Satterthwaite; arrays if `one` are several."""
        own = self.single.variance / self.counts
        parts = own**2 / np.maximum(self.single.dof, TINY)
        distance = self.covariates[one] - self.covariates[other]
        both = own[one] + own[other]
        dof = np.minimum(both**2 / np.maximum(parts[one] + parts[other], TINY), self.dof)
        variance = both + (distance @ self.covariance * distance).sum(-1)
        return self.means[one] - self.means[other], Variance(variance, dof)


def fits(samples: Values, rounds: Sequence[Rounds] = (), started: Sequence[Sequence[str]] = ()) -> list[Fit]:
    """Estimate means and variances of several configurations together, with the covariates that the runs allow.

    If every run is part of a round, the effects of rounds are removed (randomized complete blocks; R. A. Fisher, The
    Design of Experiments, 1935), and with them a linear trend over the order of the runs (analysis of covariance). If
    too few degrees of freedom remain, rounds and trend are fitted separately. A difference must then be significant in
    both fits, as few runs do not show whether the machine changed steadily or between rounds.
    """
    labels, times = list(chain.from_iterable(rounds)), list(chain.from_iterable(started))
    if not labels or None in labels:
        return [_fit(samples)]
    blocks = indicators(labels)
    blocked = _fit(samples, blocks)
    if not all(times) or len({*times}) < 2:
        return [blocked if blocked.dof else _fit(samples)]
    order = np.unique(times, return_inverse=True)[1][:, None].astype(float)
    both = _fit(samples, np.hstack([blocks, order]))
    if MIN_DOF_OF_TREND <= both.dof < blocked.dof:  # else a trend is not distinguished from rounds, or too few are left
        return [both]
    return [fit for fit in (blocked, _fit(samples, order)) if fit.dof] or [_fit(samples)]


def indistinguishable_from_best(
    samples: Values, best: int, rounds: Sequence[Rounds] = (), started: Sequence[Sequence[str]] = ()
) -> list[bool]:
    """Return for each configuration whether it is not significantly different from the best.

    The best of many equal configurations seems better by chance: distances of logarithms are compared with Tukey's
    studentized range for as many configurations. Without any repeats, only equal values are not different.
    """
    is_tie = np.arange(len(samples)) == best
    for fitted in fits(_logs(samples), rounds, started):
        distances, errors = fitted.difference(range(len(samples)), best)
        varies = errors.variance > 0
        varies[best] = False
        critical = np.zeros(len(samples))
        critical[varies] = [tukey_critical_value(len(samples), dof) for dof in errors.dof[varies].tolist()]
        is_tie |= np.abs(distances) <= np.where(varies, critical * np.sqrt(errors.variance), 1e-9)
    return is_tie.tolist()  # type: ignore[no-any-return]


def repeats_to_distinguish(samples: Values, one: int, other: int) -> int | None:
    """Return the runs of each of two configurations that would probably show that they differ; None if not known."""
    (fitted,) = fits(_logs(samples))
    if not fitted.dof:
        return None
    variances, distance = fitted.single.variance, fitted.means[one] - fitted.means[other]
    return repeats_to_decide(
        abs(distance), variances[one] + variances[other], lambda dof: tukey_critical_value(len(samples), dof)
    )


def repeats_to_decide(distance: float, variance: float, critical_value: Callable[[float], float]) -> int | None:
    """Return the runs of each of two configurations that show a distance of their means with the probability `POWER`.

    `variance` is that of the difference of one run of each; the critical value is in standard errors.
    """
    for count in range(2, MAX_REPEATS + 1):
        dof = 2.0 * count - 2
        if distance >= (critical_value(dof) + student(dof, POWER)) * math.sqrt(variance / count):
            return count
    return None


def ratio_in_fits(fitted: Sequence[Fit], above: int, below: int) -> Estimate:
    """Return the ratio of two geometric means from fits of logarithms; its interval covers those of all fits."""
    value = math.exp(fitted[0].difference(above, below)[0])
    ratios = [interval(*fit.difference(above, below)).exp() for fit in fitted if fit.dof]
    lows, highs = ([getattr(ratio, name) for ratio in ratios] for name in ("low", "high"))
    return Estimate(value, min(lows, default=None), max(highs, default=None))


def pairwise_ratios(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> list[tuple[Estimate, float | None]]:
    """Return the ratio of geometric means of each pair (the second divided by the first), and its p-value.

    Variances are estimated from all pairs together, and pooled as far as they seem equal. Without any repeats there is
    no p-value.
    """
    fitted = _fit(_logs([values for pair in pairs for values in pair]), pools_equal=True)
    compared = [fitted.difference(index + 1, index) for index in range(0, 2 * len(pairs), 2)]
    if not fitted.dof:
        return [(Estimate(math.exp(distance)), None) for distance, _ in compared]
    return [(interval(*pair).exp(), _p_value(*pair)) for pair in compared]


def positive_means(samples: Values, chosen_from: Sequence[int] = ()) -> list[Estimate]:
    """Return the mean of each configuration's values, with an interval from the variances of all configurations.

    The interval is Student's on the logarithms: that of the geometric mean, from which the mean of repeats hardly
    differs. A configuration that ran once has none. The lowest of several equal means is too low by chance: with
    `chosen_from` as their number, each bound of its interval holds with the probability `0.95 ** (1 / number)`
    (Z. Sidak, J. Am. Stat. Assoc. 62, 1967), and at least with 0.975.
    """
    (fitted,) = fits(_logs(samples))
    means = [Estimate(statistics.fmean(values)) for values in samples]
    for index, (values, count) in enumerate(zip(samples, chosen_from or [1] * len(samples), strict=True)):
        if len(values) > 1:
            error = Variance(fitted.single.variance[index] / len(values), fitted.single.dof[index])
            bounds = interval(fitted.means[index], error, max(BOUND, (1 - ALPHA) ** (1 / count)))
            means[index] = replace(bounds.exp(), value=means[index].value)
    return means


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean with Student's interval."""
    return contrast({"mean": 1.0}, {"mean": values})


def contrast(weights: Mapping[str, float], samples: Samples, rounds: Mapping[str, Rounds] | None = None) -> Estimate:
    """Return a weighted sum of the means of conditions, with the interval of Welch and Satterthwaite.

    If all conditions were run once in each of the same rounds, the sum is taken round by round, so that drift cancels.
    """
    if rounds and (paired := _by_round(weights, samples, rounds)):
        return mean(paired)
    value = math.fsum(weight * statistics.fmean(samples[name]) for name, weight in weights.items())
    if any(len(samples[name]) < 2 for name in weights):
        return Estimate(value)
    dofs = [len(samples[name]) - 1 for name in weights]
    parts = [(weight * deviation(samples[name])) ** 2 / len(samples[name]) for name, weight in weights.items()]
    if not (variance := math.fsum(parts)):
        return Estimate(value, value, value)
    dof = variance**2 / math.fsum(part**2 / own for part, own in zip(parts, dofs, strict=True))
    return interval(value, Variance(variance, dof))


def indicators(labels: Sequence[Hashable]) -> Any:
    """Return an array with a row for each label and a column for each different one: 1 where a row has it."""
    places = {name: place for place, name in enumerate(dict.fromkeys(labels))}
    return np.eye(len(places))[[places[label] for label in labels]]


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two or more values (n - 1), in floats: ten times as fast as exact sums."""
    return math.dist(values, [statistics.fmean(values)] * len(values)) / math.sqrt(len(values) - 1)


def interval(value: float, error: Variance, probability: float = BOUND) -> Estimate:
    """Return Student's interval of a value; each bound holds with the probability."""
    half = student(error.dof, probability) * math.sqrt(error.variance) if error.variance else 0.0
    return Estimate(value, value - half, value + half)


def tukey_critical_value(count: int, dof: float) -> float:
    """Return the 95 % critical value of Tukey's studentized range, in standard errors of a difference."""
    return _tukey(count, TABULATED_DOF[max(0, bisect_right(TABULATED_DOF, dof) - 1)])


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """Return for each test the smallest false discovery rate at which it is rejected.

    The procedure of Benjamini and Hochberg (1995) assumes that nothing changed. A first pass at a slightly lower level
    estimates how many tests have no effect; the rates of the second pass refer to these (Y. Benjamini, A. Krieger, D.
    Yekutieli, Adaptive linear step-up procedures that control the false discovery rate, Biometrika 93(3), 2006).
    """
    count, rates = len(p_values), np.ones(len(p_values))
    descending = np.argsort(p_values)[::-1]
    rates[descending] = np.minimum.accumulate(np.take(p_values, descending) * count / np.arange(count, 0, -1))
    rates *= 1 + ALPHA
    without_effect = max(1, count - int(np.sum(rates <= ALPHA)))
    return np.minimum(rates * without_effect / max(1, count), 1.0).tolist()


@lru_cache(maxsize=4096)
def student(dof: float, probability: float = BOUND) -> float:
    """Return a quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, probability))


@lru_cache(maxsize=256)
def _tukey(count: int, dof: int) -> float:
    """Find the critical value by the secant method, much faster than importing `scipy.stats.studentized_range`."""
    from scipy.special import ndtr

    at, weights = np.polynomial.legendre.leggauss(128)
    deviations = (at + 1) * (1 + 6 / math.sqrt(2 * dof) if dof > 2 else 8) / 2
    density = weights * np.exp(dof / 2 * math.log(dof) + (dof - 1) * np.log(deviations) - dof * deviations**2 / 2)
    largest = 8.5 * at
    density_of_largest = count * 8.5 * weights * np.exp(-(largest**2) / 2) / math.sqrt(2 * math.pi)
    normal = statistics.NormalDist()

    def excess(value: float) -> float:
        within = ndtr(largest) - ndtr(largest - value * deviations[:, None])
        probability = float(density @ (within ** (count - 1) @ density_of_largest) / density.sum())
        return normal.inv_cdf(min(max(probability, TINY), 1 - 1e-15)) - normal.inv_cdf(1 - ALPHA)

    previous, value = 4.0, 6.0
    before, now = excess(previous), excess(value)
    while abs(value - previous) > 1e-6 * value:
        previous, value = value, value - now * (value - previous) / (now - before)
        before, now = now, excess(value)
    return value / math.sqrt(2)


def _p_value(value: float, error: Variance) -> float:
    from scipy.special import stdtr

    if not error.variance:
        return 0.0 if value else 1.0
    return 2 * float(stdtr(error.dof, -abs(value) / math.sqrt(error.variance)))


def _by_round(weights: Mapping[str, float], samples: Samples, rounds: Mapping[str, Rounds]) -> list[float]:
    """Return the weighted sum in each round; empty unless each condition was run once in each of enough rounds."""
    labels = sorted({*rounds[next(iter(weights))]}, key=str)
    is_paired = all(sorted(rounds[name], key=str) == labels for name in weights)
    if len(labels) < MIN_PAIRED_ROUNDS or None in labels or not is_paired:
        return []
    values = [dict(zip(rounds[name], samples[name], strict=True)) for name in weights]
    terms = [[weight * own[label] for label in labels] for weight, own in zip(weights.values(), values, strict=True)]
    return [*map(math.fsum, zip(*terms, strict=True))]


def _logs(samples: Values) -> list[list[float]]:
    return [[math.log(value) for value in values] for values in samples]


def _fit(samples: Values, covariates: Any = None, *, pools_equal: bool = False) -> Fit:
    """Fit a mean per configuration and the effects of covariates; no degrees of freedom if too few runs are left.

    Each variance is moderated by the pooled one (G. K. Smyth, Linear models and empirical Bayes methods for assessing
    differential expression, 2004; with a fixed weight, unless `pools_equal`).
    """
    counts = np.array([len(values) for values in samples], dtype=int)
    group, values = np.repeat(np.arange(len(counts)), counts), np.array([*chain.from_iterable(samples)], dtype=float)
    covariates = np.zeros((len(values), 0)) if covariates is None else covariates - covariates.mean(axis=0)
    spare = len(values) - len(counts)

    def centers(columns: Any) -> Any:
        return np.add.reduceat(columns, np.cumsum(counts) - counts, axis=0) / counts[:, None]

    places = centers(covariates)
    within, means = covariates - places[group], centers(values[:, None])[:, 0]
    effects, _, rank, _ = np.linalg.lstsq(within, values - means[group], rcond=1e-9)
    dof = spare - int(rank)
    residuals = values - means[group] - within @ effects
    squares = np.bincount(group, residuals**2)
    squares[squares < ROUNDING] = 0.0
    pooled = squares.sum() / max(1, dof)
    own = (counts - 1) * dof / max(1, spare)
    borrowed = _borrowed_dof(squares, own, pools_equal)
    variances = (squares + borrowed * pooled) / (own + borrowed)
    dofs = np.minimum(np.where(counts > 1, own + borrowed, BORROWED_DOF), dof)
    covariance = pooled * np.linalg.pinv(within.T @ within, rcond=1e-9)
    return Fit(means - places @ effects, Variance(variances, dofs), float(dof), counts, places, covariance)


def _borrowed_dof(squares: Any, dofs: Any, pools_equal: bool) -> float:
    """Return the degrees of freedom that the pooled variance counts as.

    `pools_equal` suits tests near a level of 5 %. At the much lower levels of many comparisons with the best, it causes
    false alarms.
    """
    few, repeated, total = BORROWED_PER_CONFIGURATION * len(dofs), int((dofs > 0).sum()), float(squares.sum())
    least = min(BORROWED_DOF, few)
    if not pools_equal:
        return least
    most = repeated if repeated > MANY_CONFIGURATIONS else few
    # Variance of the true variances, as a multiple of their squared mean (method of moments); about zero if equal.
    inequality = float((dofs.sum() + 2) * (squares**2 / (dofs + 2)).sum()) / total**2 - 1 if total else 0.0
    return max(least, most / max(1.0, most * inequality))
