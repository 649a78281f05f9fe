"""Statistics of repeated runs. The run is the unit, as epochs within a run are not independent.

Three things make few repeats enough. Repeats that are rounds of a sweep are blocks: the effect of a round, such as a
warmer room, cancels in differences. Each configuration's variance borrows from those of the others. And differences
are judged together, so that the best of many equal configurations is seldom called different from the others.
`benchmarks/verdicts.py` prints how often the verdicts are wrong and what they detect.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

Samples = Mapping[str, Sequence[float]]
"""Condition -> a value per run."""
Rounds = Sequence[Hashable | None]
"""The round of each run; None if its repeats are not rounds."""
MIN_EFFECT = 0.02
"""Smallest relative difference of a time, an energy or a size that matters."""
ALPHA = 0.05
"""False discovery rate between two sweeps; and probability that one of many equal configurations is called different
from the best."""
BORROWED_DOF = 2.0
"""Degrees of freedom that the pooled variance contributes to each configuration's own. More of them detect smaller
differences where all configurations vary alike, and raise false alarms where they do not."""
MIN_PAIRED_ROUNDS = 3
"""Differences are taken round by round from this number of rounds on; two would leave one degree of freedom."""
TABULATED_DOF = (*range(1, 31), 40, 60, 120)
"""The degrees of freedom for which a studentized range is computed, as in its tables: it takes a while."""
BACKFITTING_STEPS = 20


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
    """A variance, and the degrees of freedom of its estimate."""

    variance: float
    dof: float


class Fit(NamedTuple):
    """Means and variances of several configurations, estimated together.

    Attributes:
        means: Mean of each configuration, without the effects of rounds.
        variances: Variance of a single run of each; None if no configuration has repeats.
        dof: Degrees of freedom of all variances together.
        counts: Runs of each.
    """

    means: Sequence[float]
    variances: Sequence[Variance | None]
    dof: float
    counts: Sequence[int]

    def difference(self, one: int, other: int) -> tuple[float, Variance] | None:
        """Return the difference of two means and its variance; None without any repeats.

        The degrees of freedom are those of Welch and Satterthwaite, at most those of all repeats.
        """
        parts = [(self.variances[index], self.counts[index]) for index in (one, other)]
        errors = [Variance(variance.variance / count, variance.dof) for variance, count in parts if variance]
        if len(errors) < 2:
            return None
        error = _sum(errors)
        return self.means[one] - self.means[other], Variance(error.variance, min(error.dof, self.dof))


def fit(samples: Sequence[Sequence[float]], rounds: Sequence[Rounds] = ()) -> Fit:
    """Estimate means and variances of several configurations together.

    If every run is part of a round, an additive model of configuration and round is fitted (randomized complete
    blocks; R. A. Fisher, The Design of Experiments, 1935). Each variance is then moderated by the pooled one, which
    counts as `BORROWED_DOF` further degrees of freedom (G. K. Smyth, Linear models and empirical Bayes methods for
    assessing differential expression, 2004; here with a fixed weight, as few repeats do not show how alike they are).

    Args:
        samples: Values of each configuration, one per run.
        rounds: The round of each of these runs.
    """
    counts = [len(values) for values in samples]
    effects, spare = _round_effects(samples, rounds)
    adjusted = [
        [value - effects[label] for value, label in zip(values, labels, strict=True)] if effects else values
        for values, labels in zip(samples, rounds or samples, strict=True)
    ]
    means = [statistics.fmean(values) for values in adjusted]
    own = [
        Variance(deviation(values) ** 2 / spare, (len(values) - 1) * spare) if len(values) > 1 else Variance(0.0, 0.0)
        for values in adjusted
    ]
    dof = math.fsum(variance.dof for variance in own)
    if not dof:
        return Fit(means, [None] * len(own), 0.0, counts)
    pooled = math.fsum(estimate.variance * estimate.dof for estimate in own) / dof
    moderated = [
        Variance(
            (estimate.dof * estimate.variance + BORROWED_DOF * pooled) / (estimate.dof + BORROWED_DOF),
            min(estimate.dof + BORROWED_DOF, dof),
        )
        for estimate in own
    ]
    return Fit(means, moderated, dof, counts)


def indistinguishable_from_best(
    samples: Sequence[Sequence[float]], best: int, rounds: Sequence[Rounds] = ()
) -> list[bool]:
    """Return for each configuration whether it is not significantly different from the best.

    The best of many equal configurations seems better by chance. A configuration is significantly different if it is
    farther from the best than the extremes of as many equal ones would be (Tukey's studentized range), on a logarithmic
    scale. Without any repeats only equal values are indistinguishable.

    Args:
        samples: Values of each configuration, one per run; all positive.
        best: Index of the best.
        rounds: The round of each of these runs.
    """
    fitted = fit([[math.log(value) for value in values] for values in samples], rounds)
    result = []
    for index in range(len(samples)):
        compared = fitted.difference(index, best)
        if compared is None:
            result.append(math.isclose(fitted.means[index], fitted.means[best], rel_tol=0.0, abs_tol=1e-9))
        elif not compared[1].variance:
            result.append(compared[0] == 0)
        else:
            distance, error = compared
            result.append(abs(distance) / math.sqrt(error.variance) <= tukey_critical_value(len(samples), error.dof))
    result[best] = True
    return result


def pairwise_ratios(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> list[tuple[Estimate, float | None]]:
    """Return the ratio of geometric means of each pair (the second divided by the first), and its p-value.

    Variances are estimated from all pairs together; the two sides of a pair were not run in the same rounds.
    A p-value is None without any repeats.
    """
    fitted = fit([[math.log(value) for value in values] for pair in pairs for values in pair])
    result: list[tuple[Estimate, float | None]] = []
    for index in range(0, 2 * len(pairs), 2):
        compared = fitted.difference(index + 1, index)
        if compared is None:
            result.append((Estimate(math.exp(fitted.means[index + 1] - fitted.means[index])), None))
        else:
            result.append((_interval(*compared).exp(), _p_value(*compared)))
    return result


def positive_means(samples: Sequence[Sequence[float]]) -> list[Estimate]:
    """Return the mean of each configuration's values, with an interval from the variances of all configurations.

    The interval is Student's on the logarithms, so it is that of the geometric mean, from which the mean of repeats
    hardly differs. A configuration that ran once has none. Values that are not positive are summarized one by one.
    """
    if any(value <= 0 for values in samples for value in values):
        return [mean(values) for values in samples]
    fitted = fit([[math.log(value) for value in values] for values in samples])
    result = []
    for values, middle, variance in zip(samples, fitted.means, fitted.variances, strict=True):
        if len(values) < 2 or variance is None:
            result.append(Estimate(statistics.fmean(values)))
            continue
        interval = _interval(middle, Variance(variance.variance / len(values), variance.dof)).exp()
        result.append(Estimate(statistics.fmean(values), interval.low, interval.high))
    return result


def positive_mean(values: Sequence[float]) -> Estimate:
    """Return the same of a single configuration."""
    return positive_means([values])[0]


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean with Student's interval."""
    return contrast({"mean": 1.0}, {"mean": values})


def difference(more: Sequence[float], less: Sequence[float], *, rounds: Sequence[Rounds] = ()) -> Estimate:
    """Return the difference of two means, by rounds if there are enough, else by Welch's method."""
    labels = dict(zip(("more", "less"), rounds, strict=True)) if rounds else None
    return contrast({"more": 1.0, "less": -1.0}, {"more": more, "less": less}, labels)


def ratio(above: Sequence[float], below: Sequence[float], *, rounds: Sequence[Rounds] = ()) -> Estimate:
    """Return the ratio of geometric means, with the interval of a difference of logarithms; all values are positive."""
    return difference([math.log(value) for value in above], [math.log(value) for value in below], rounds=rounds).exp()


def contrast(weights: Mapping[str, float], samples: Samples, rounds: Mapping[str, Rounds] | None = None) -> Estimate:
    """Return a weighted sum of the means of conditions.

    If all conditions were run once in each of the same rounds, the sum is taken round by round, so that changes from
    one round to the next cancel. Otherwise the interval is Welch's.
    """
    if rounds and (paired := _by_round(weights, samples, rounds)):
        return mean(paired)
    value = math.fsum(weight * statistics.fmean(samples[name]) for name, weight in weights.items())
    if any(len(samples[name]) < 2 for name in weights):
        return Estimate(value)
    half = half_width(weights, samples, {name: len(samples[name]) for name in weights})
    return Estimate(value, value - half, value + half)


def half_width(weights: Mapping[str, float], samples: Samples, counts: Mapping[str, int]) -> float:
    """Return half of Welch's 95 % interval for given numbers of runs, with the variances of the samples."""
    error = _sum(
        [
            Variance(weight**2 * deviation(samples[name]) ** 2 / counts[name], counts[name] - 1.0)
            for name, weight in weights.items()
        ]
    )
    return _student(error.dof) * math.sqrt(error.variance) if error.variance else 0.0


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two or more values (n - 1), in floats: ten times as fast as exact sums."""
    middle = statistics.fmean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def tukey_critical_value(count: int, dof: float) -> float:
    """Return the 95 % critical value of Tukey's studentized range, in standard errors of a difference."""
    return _tukey(count, TABULATED_DOF[max(0, bisect_right(TABULATED_DOF, dof) - 1)])


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """Return for each test the smallest false discovery rate at which it is rejected (Benjamini and Hochberg, 1995).

    As `scipy.stats.false_discovery_control`, whose import takes longer than the rest of a small report.
    """
    rates, smallest = [1.0] * len(p_values), 1.0
    descending = sorted(range(len(p_values)), key=lambda test: -p_values[test])
    for place, test in enumerate(descending):
        smallest = min(smallest, p_values[test] * len(p_values) / (len(p_values) - place))
        rates[test] = smallest
    return rates


@lru_cache(maxsize=256)
def _tukey(count: int, dof: int) -> float:
    """Find the critical value by bisection.

    `scipy.stats.studentized_range` gives the same, but importing and evaluating it takes most of the time of a report.
    """
    import numpy as np
    from scipy.special import ndtr

    at, weights = np.polynomial.legendre.leggauss(128)
    deviations = (at + 1) * (1 + 6 / math.sqrt(2 * dof) if dof > 2 else 8) / 2
    log_density = dof / 2 * math.log(dof) + (dof - 1) * np.log(deviations) - dof * deviations**2 / 2
    density = np.exp(log_density) * weights
    density /= density.sum()
    largest = 8.5 * at
    density_of_largest = count * 8.5 * weights * np.exp(-(largest**2) / 2) / math.sqrt(2 * math.pi)
    below = ndtr(largest)

    def probability(value: float) -> float:
        within = below - ndtr(largest - value * deviations[:, None])
        return float(density @ (within ** (count - 1) @ density_of_largest))

    low, high = 0.0, 4.0
    while probability(high) < 1 - ALPHA:
        low, high = high, 2 * high
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < 1 - ALPHA else (low, middle)
    return high / math.sqrt(2)


@lru_cache(maxsize=4096)
def _student(dof: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(dof, 0.975))


def _interval(value: float, error: Variance) -> Estimate:
    half = _student(error.dof) * math.sqrt(error.variance) if error.variance else 0.0
    return Estimate(value, value - half, value + half)


def _p_value(value: float, error: Variance) -> float:
    from scipy.special import stdtr

    if not error.variance:
        return 0.0 if value else 1.0
    return 2 * float(stdtr(error.dof, -abs(value) / math.sqrt(error.variance)))


def _sum(parts: Sequence[Variance]) -> Variance:
    """Return the variance of a sum of independent parts, by Welch and Satterthwaite; both zero if nothing varies."""
    variance = math.fsum(part.variance for part in parts)
    if not variance:
        return Variance(0.0, 0.0)
    return Variance(variance, variance**2 / math.fsum(part.variance**2 / part.dof for part in parts if part.variance))


def _by_round(weights: Mapping[str, float], samples: Samples, rounds: Mapping[str, Rounds]) -> list[float]:
    """Return the weighted sum in each round; empty unless each condition was run once in each of enough rounds."""
    values = [dict(zip(rounds[name], samples[name], strict=True)) for name in weights]
    labels = values[0].keys()
    once = all(len(by_label) == len(samples[name]) for name, by_label in zip(weights, values, strict=True))
    if (
        not once
        or None in labels
        or len(labels) < MIN_PAIRED_ROUNDS
        or any(by_label.keys() != labels for by_label in values)
    ):
        return []
    return [
        math.fsum(weight * by_label[label] for weight, by_label in zip(weights.values(), values, strict=True))
        for label in labels
    ]


def _round_effects(samples: Sequence[Sequence[float]], rounds: Sequence[Rounds]) -> tuple[dict[Hashable, float], float]:
    """Return the effect of each round, and the fraction of the degrees of freedom that remains after fitting them.

    Empty and 1 if not every run is part of a round, or if too few runs are left to estimate a variance.
    """
    labels = set(chain.from_iterable(rounds))
    runs = sum(map(len, samples))
    spare = runs - len(samples)
    if None in labels or len(labels) < 2 or spare - (len(labels) - 1) < 1:
        return {}, 1.0
    effects: dict[Hashable, float] = dict.fromkeys(labels, 0.0)
    for _ in range(BACKFITTING_STEPS):  # the first is exact if every configuration was run in every round
        rest: dict[Hashable, list[float]] = {label: [] for label in labels}
        for values, names in zip(samples, rounds, strict=True):
            middle = statistics.fmean(value - effects[name] for value, name in zip(values, names, strict=True))
            for value, name in zip(values, names, strict=True):
                rest[name].append(value - middle)
        previous, effects = effects, {label: statistics.fmean(values) for label, values in rest.items()}
        if all(math.isclose(previous[label], effects[label], abs_tol=1e-12) for label in labels):
            break
    return effects, (spare - (len(labels) - 1)) / spare
