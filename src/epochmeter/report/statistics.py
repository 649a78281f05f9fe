"""Statistics of repeated runs. The run is the unit, as epochs within a run are not independent.

Effects of rounds and drift are removed, the variance of each configuration is moderated by the pooled variance, and
multiple comparisons are corrected. `benchmarks/decisions/verdicts.py` prints how often the verdicts are wrong.
"""

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np

from epochmeter.results.intervals import BOUND, deviation, student

Key = TypeVar("Key", bound=Hashable)
Values = Sequence[Sequence[float]]
Samples = Mapping[str, Sequence[float]]
"""A value per run of each configuration, or by condition."""
Rounds = Sequence[Hashable | None]
"""The round of each run, as a tuple (sweep, number) to distinguish sweeps; None if the repeats are not rounds."""
MIN_EFFECT = 0.02
"""Smallest relative difference of a time, an energy or a size that matters."""
ALPHA = 0.05
"""False discovery rate between two sweeps; probability that any of many equal configurations is called different."""
BORROWED_DOF, BORROWED_PER_CONFIGURATION = 2.0, 0.25
"""The pooled variance counts as a quarter of a degree of freedom per configuration, at most two. More degrees of
freedom detect smaller differences, and raise false alarms if the noise differs."""
FULL_LOAN_DOF = 2.0
"""A variance above the pooled one is not reduced, as a noisy configuration would seem different too often. It borrows
in proportion to its own degrees of freedom, and fully from this number on (three repeats)."""
MANY_CONFIGURATIONS = 16
"""With more configurations in two sweeps, each may add one borrowed degree of freedom if the variances seem equal."""
MIN_DOF_OF_TREND = 3  # that must remain for effects of rounds and a trend to be estimated together
POWER, MAX_REPEATS = 0.8, 200
"""Probability of a verdict with the recommended number of repeats, and the largest number that is recommended."""
MIN_PAIRED_ROUNDS = 3  # for differences round by round; two would leave one degree of freedom
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

    def is_within(self, least: float, most: float) -> bool:
        """Whether the interval is known and lies between two values."""
        return self.low is not None and self.high is not None and least <= self.low and self.high <= most

    @property
    def is_positive(self) -> bool:
        """Whether the value is significantly above zero, as far as its interval is known."""
        return self.low is None or self.low > 0

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Return an increasing function of the estimate, such as its value in another unit."""
        low, high = (None if bound is None else function(bound) for bound in (self.low, self.high))
        return Estimate(function(self.value), low, high)


class Mean(NamedTuple):
    """A mean or a difference of means, its variance, and the degrees of freedom of the variance; or arrays of each."""

    value: Any
    variance: Any
    dof: Any

    def interval(self, probability: float = BOUND) -> Estimate:
        """Return Student's interval; each bound holds with the probability."""
        half = student(self.dof, probability) * math.sqrt(self.variance) if self.variance else 0.0
        return Estimate(self.value, self.value - half, self.value + half)

    def p_value(self, bound: float = 0.0) -> float:
        """Return the p-value of the hypothesis that the mean is not above a bound."""
        from scipy.special import stdtr

        if not self.variance:
            return float(self.value <= bound)
        return float(stdtr(self.dof, (bound - self.value) / math.sqrt(self.variance)))


class Fit(NamedTuple):
    """Means, runs and mean covariates (rounds, or a trend) of several configurations, estimated together, as arrays.

    Attributes:
        means: Adjusted for the covariates.
        variances: Of a single run of each; `dofs` are their degrees of freedom.
        dof: Degrees of freedom of all variances together; zero if no configuration has repeats.
        covariance: Covariance of the covariates' effects.
    """

    means: Any
    variances: Any
    dofs: Any
    dof: float
    counts: Any
    covariates: Any
    covariance: Any

    def difference(self, one: int | Sequence[int], other: int) -> Mean:
        """Return the difference of means, with its variance by Welch and Satterthwaite; arrays if `one` are several."""
        mean_variances = self.variances / self.counts
        parts = mean_variances**2 / np.maximum(self.dofs, TINY)
        distance = self.covariates[one] - self.covariates[other]
        both = mean_variances[one] + mean_variances[other]
        dof = np.minimum(both**2 / np.maximum(parts[one] + parts[other], TINY), self.dof)
        variance = both + (distance @ self.covariance * distance).sum(-1)
        return Mean(self.means[one] - self.means[other], variance, dof)

    def repeats(self, one: int, other: int, critical_value: Callable[[float], float], bound: float = 0.0) -> int | None:
        """Return the runs of each that probably show that their difference is not `bound`; None if not known."""
        distance, variance = self.means[one] - self.means[other] - bound, self.variances[one] + self.variances[other]
        return repeats_to_decide(abs(distance), variance, critical_value) if self.dof else None


def fits(samples: Values, rounds: Sequence[Rounds] = (), started: Sequence[Sequence[str]] = ()) -> list[Fit]:
    """Estimate means and variances of several configurations together, with the covariates that the runs allow.

    If every run is part of a round, the effects of rounds are removed (randomized complete blocks; R. A. Fisher, The
    Design of Experiments, 1935), and with them a linear trend over the order of a sweep's runs (analysis of
    covariance). If too few degrees of freedom remain, rounds and trend are fitted separately. A difference must then be
    significant in both fits, as few runs do not show whether the machine changed steadily or between rounds.
    """
    labels, times = list(chain.from_iterable(rounds)), list(chain.from_iterable(started))
    if not labels or None in labels:
        return [_fit(samples)]
    blocks = indicators(labels)
    blocked = _fit(samples, blocks)
    if not all(times) or len({*times}) < 2:
        return [blocked if blocked.dof else _fit(samples)]
    order = np.unique([*map(_in_utc, times)], return_inverse=True)[1][:, None].astype(float)
    sweeps = indicators([label[0] if isinstance(label, tuple) else None for label in labels])
    order -= sweeps @ (sweeps.T @ order / sweeps.sum(axis=0)[:, None])  # a trend does not continue in another sweep
    both = _fit(samples, np.hstack([blocks, order]))
    if MIN_DOF_OF_TREND <= both.dof < blocked.dof:  # else a trend is not distinguished from rounds, or too few are left
        return [both]
    return [fit for fit in (blocked, _fit(samples, order)) if fit.dof] or [_fit(samples)]


def _in_utc(time: str) -> str:
    """Return an ISO 8601 time in UTC: such texts sort by time, also when clocks change to winter time."""
    with suppress(ValueError):  # another text sorts as it is
        return datetime.fromisoformat(time).astimezone(timezone.utc).isoformat()
    return time


def indistinguishable_from_best(
    samples: Values, best: int, rounds: Sequence[Rounds] = (), started: Sequence[Sequence[str]] = ()
) -> dict[int, float]:
    """Return the places of the configurations that are not significantly different from the best, with their ratios.

    A ratio is that of the geometric means, of the configuration to the best, as `ratio_in_fits` returns it.
    Distances of logarithms are compared with Tukey's studentized range for as many configurations, as the best of many
    equal ones seems better by chance. Without any repeats, only equal values are not different.
    """
    is_tie, fitted_each = np.arange(len(samples)) == best, fits(_logs(samples), rounds, started)
    for fitted in fitted_each:
        distances = fitted.difference(range(len(samples)), best)
        varies = distances.variance > 0
        varies[best] = False
        critical = np.zeros(len(samples))
        critical[varies] = [tukey_critical_value(len(samples), dof) for dof in distances.dof[varies].tolist()]
        is_tie |= np.abs(distances.value) <= np.where(varies, critical * np.sqrt(distances.variance), 1e-9)
    ratios = np.exp(fitted_each[0].difference(range(len(samples)), best).value)
    return {place: float(ratios[place]) for place in np.flatnonzero(is_tie).tolist()}


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
    value = math.exp(fitted[0].difference(above, below).value)
    ratios = [fit.difference(above, below).interval().map(math.exp) for fit in fitted if fit.dof]
    lows, highs = ([getattr(ratio, name) for ratio in ratios] for name in ("low", "high"))
    return Estimate(value, min(lows, default=None), max(highs, default=None))


def pairwise_ratios(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[tuple[Estimate, float | None]]:
    """Return the ratio of geometric means of each pair (second by first), and its p-value; None without any repeats.

    Variances are estimated from all pairs together, and pooled as far as they seem equal.
    """
    fitted = _fit(_logs(chain.from_iterable(pairs)), pools_equal=True)
    results = []
    for place in range(0, 2 * len(pairs), 2):
        sides = [fitted.difference(*ends).p_value() for ends in ((place, place + 1), (place + 1, place))]
        p_value = min(1.0, 2 * min(sides)) if fitted.dof else None
        results.append((ratio_in_fits([fitted], place + 1, place), p_value))
    return results


def positive_means(
    samples: Mapping[Key, Sequence[float]], chosen_from: Mapping[Key, int] | None = None
) -> dict[Key, Estimate]:
    """Return the geometric mean of each configuration's values, with an interval from the variances of all.

    The quotient of two geometric means is the ratio that is tested. A configuration that ran once has no interval. The
    lowest of several equal means is too low by chance: with `chosen_from` as their number, each bound holds with the
    probability `0.95 ** (1 / number)` (Z. Sidak, J. Am. Stat. Assoc. 62, 1967), and at least with 0.975.
    """
    (fitted,) = fits(_logs(samples.values()))
    means = {key: Estimate(geometric_mean(values)) for key, values in samples.items()}
    for place, (key, values) in enumerate(samples.items()):
        if len(values) > 1:
            log = Mean(fitted.means[place], fitted.variances[place] / len(values), fitted.dofs[place])
            count = chosen_from[key] if chosen_from else 1
            bounds = log.interval(max(BOUND, (1 - ALPHA) ** (1 / count))).map(math.exp)
            means[key] = replace(bounds, value=means[key].value)
    return means


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values, exactly for equal ones, so that these are ties."""
    return values[0] if min(values) == max(values) else statistics.geometric_mean(values)


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
    parts = {name: (weight * deviation(samples[name])) ** 2 / len(samples[name]) for name, weight in weights.items()}
    variance = math.fsum(parts.values())
    squares = math.fsum(term**2 / (len(samples[name]) - 1) for name, term in parts.items())
    return Mean(value, variance, variance**2 / max(squares, TINY)).interval()


def indicators(labels: Sequence[Hashable]) -> Any:
    """Return an array with a row for each label and a column for each different one: 1 where a row has it."""
    places = {name: place for place, name in enumerate(dict.fromkeys(labels))}
    return np.eye(len(places))[[places[label] for label in labels]]


def tukey_critical_value(count: int, dof: float) -> float:
    """Return the 95 % critical value of Tukey's studentized range, in standard errors of a difference."""
    return _tukey(count, TABULATED_DOF[max(0, bisect_right(TABULATED_DOF, dof) - 1)])


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """Return for each test the smallest false discovery rate at which it is rejected.

    A first pass at a slightly lower level estimates how many tests have no effect; the rates of the second pass refer
    to these (Y. Benjamini, A. Krieger, D. Yekutieli, Adaptive linear step-up procedures, Biometrika 93(3), 2006).
    """
    count, rates = len(p_values), np.ones(len(p_values))
    descending = np.argsort(p_values)[::-1]
    rates[descending] = np.minimum.accumulate(np.take(p_values, descending) * count / np.arange(count, 0, -1))
    rates *= 1 + ALPHA
    without_effect = max(1, count - int(np.sum(rates <= ALPHA)))
    adjusted: list[float] = np.minimum(rates * without_effect / max(1, count), 1.0).tolist()
    return adjusted


@lru_cache(maxsize=256)
def _tukey(count: int, dof: int) -> float:
    """Find the critical value by bisection, much faster than importing `scipy.stats.studentized_range`."""
    from scipy.special import ndtr

    at, weights = np.polynomial.legendre.leggauss(128)
    deviations = (at + 1) * (1 + 6 / math.sqrt(2 * dof) if dof > 2 else 8) / 2
    density = weights * np.exp(dof / 2 * math.log(dof) + (dof - 1) * np.log(deviations) - dof * deviations**2 / 2)
    largest = 8.5 * at
    density_of_largest = count * 8.5 * weights * np.exp(-(largest**2) / 2) / math.sqrt(2 * math.pi)
    low, high = 0.0, 1e3
    while high - low > 1e-5:
        value = (low + high) / 2
        within = ndtr(largest) - ndtr(largest - value * deviations[:, None])
        probability = density @ (within ** (count - 1) @ density_of_largest) / density.sum()
        low, high = (value, high) if probability < 1 - ALPHA else (low, value)
    return low / math.sqrt(2)


def _by_round(weights: Mapping[str, float], samples: Samples, rounds: Mapping[str, Rounds]) -> list[float]:
    """Return the weighted sum in each round; empty unless each condition was run once in each of enough rounds."""
    labels = sorted({*rounds[next(iter(weights))]}, key=str)
    is_paired = all(sorted(rounds[name], key=str) == labels for name in weights)
    if len(labels) < MIN_PAIRED_ROUNDS or None in labels or not is_paired:
        return []
    values = [dict(zip(rounds[name], samples[name], strict=True)) for name in weights]
    terms = [
        [weight * by_label[label] for label in labels]
        for weight, by_label in zip(weights.values(), values, strict=True)
    ]
    return [*map(math.fsum, zip(*terms, strict=True))]


def _logs(samples: Iterable[Sequence[float]]) -> list[list[float]]:
    return [[math.log(value) for value in values] for values in samples]


def _fit(samples: Values, covariates: Any = None, *, pools_equal: bool = False) -> Fit:
    """Fit a mean per configuration and the effects of covariates; small variances are moderated by the pooled one.

    See G. K. Smyth, Linear models and empirical Bayes methods for assessing differential expression, 2004.
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
    own_dofs = (counts - 1) * dof / max(1, spare)
    borrowed = _borrowed_dof(squares, own_dofs, pools_equal)
    variances, dofs = (squares + borrowed * pooled) / (own_dofs + borrowed), own_dofs + borrowed
    if borrowed <= BORROWED_DOF:  # otherwise many variances seem equal
        alone = squares / np.maximum(own_dofs, TINY)
        is_noisy = (own_dofs > 0) & (alone > variances)
        variances = np.where(is_noisy, alone, variances)
        dofs = np.where(is_noisy, own_dofs + np.minimum(1.0, own_dofs / FULL_LOAN_DOF) * borrowed, dofs)
    dofs = np.minimum(np.where(counts > 1, dofs, BORROWED_DOF), dof)
    covariance = pooled * np.linalg.pinv(within.T @ within, rcond=1e-9)
    return Fit(means - places @ effects, variances, dofs, float(dof), counts, places, covariance)


def _borrowed_dof(squares: Any, dofs: Any, pools_equal: bool) -> float:
    """Return the degrees of freedom that the pooled variance counts as.

    `pools_equal` causes false alarms at the levels of many comparisons with the best, far below 5 %.
    """
    few, repeated, total = BORROWED_PER_CONFIGURATION * len(dofs), int((dofs > 0).sum()), float(squares.sum())
    least = min(BORROWED_DOF, few)
    if not pools_equal:
        return least
    most = repeated if repeated > MANY_CONFIGURATIONS else few
    # Variance of the true variances, as a multiple of their squared mean (method of moments); about zero if equal.
    inequality = float((dofs.sum() + 2) * (squares**2 / (dofs + 2)).sum()) / total**2 - 1 if total else 0.0
    return max(least, most / max(1.0, most * inequality))
