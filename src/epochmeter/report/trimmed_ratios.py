"""Ratios of many pairs of samples of few values each, whose noise may differ widely, as that of operators in a trace.

Means are trimmed, so that single disturbed values do not hide a change (K. K. Yuen, The two-sample trimmed t for
unequal population variances, Biometrika 61, 1974). Variances are moderated by those of the other samples as far as
these are alike (G. K. Smyth, Linear models and empirical Bayes methods for assessing differential expression, 2004).
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from epochmeter.report.statistics import TINY, Estimate, Mean
from epochmeter.results.intervals import deviation

TRIMMED = 0.1
"""Fraction of the values that a mean leaves out at each end: one of ten."""
ROUNDING_PART = 6.0  # the variance of a duration whose ends are rounded is this part of the squared resolution
MIN_SAMPLES = 10  # fewest samples whose variances are compared
ALIKE_DOF = 20.0
"""Degrees of freedom of the prior variance from which on all variances count as alike. With fewer, a larger variance is
not reduced, as a noisy operator would seem different too often."""
DISTURBED = 0.01
"""Significance of a variance above the prior one from which on it is not reduced, as a step was disturbed."""
MAX_DOF = 30.0  # of the prior variance, as operators have noise in common
OUTLIER, NORMAL_MAD = 5.0, 1.4826
"""A variance whose logarithm is further from the median than this number of standard deviations, which are estimated
from the median distance, does not show how alike the others are."""
NEWTON_STEPS = 20


class TrimmedRatio(NamedTuple):
    """The trimmed geometric means of two samples, their ratio (second by first), and its p-value; None of one value."""

    before: float
    after: float
    ratio: Estimate
    p_value: float | None


class Sample(NamedTuple):
    """Trimmed mean of logarithms, the variance of a value, its degrees of freedom, and the number of values kept."""

    mean: float
    variance: float
    dof: float
    kept: int


def trimmed_ratios(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], resolution: float = 0.0
) -> list[TrimmedRatio]:
    """Return the ratio of each pair of samples of positive values, which are multiples of a resolution."""
    sides = [[_trimmed([*map(math.log, values)], resolution) for values in pair] for pair in pairs]
    repeated = [side for pair in sides for side in pair if side.dof]
    prior = _prior(repeated) if len(repeated) >= MIN_SAMPLES else None
    return [_ratio(*(_moderated(side, prior) for side in pair)) for pair in sides]


def _trimmed(logs: Sequence[float], resolution: float) -> Sample:
    ordered, cut = sorted(logs), int(TRIMMED * len(logs))
    kept = ordered[cut : len(ordered) - cut]
    mean = statistics.fmean(kept)
    if len(logs) < 2:
        return Sample(mean, 0.0, 0.0, 1)
    winsorized = [*[kept[0]] * cut, *kept, *[kept[-1]] * cut]
    variance = deviation(winsorized) ** 2 * (len(logs) - 1) / (len(kept) - 1)
    rounding = (resolution / math.exp(mean)) ** 2 / ROUNDING_PART
    return Sample(mean, variance + rounding, len(kept) - 1.0, len(kept))


def _ratio(before: Sample, after: Sample) -> TrimmedRatio:
    means = math.exp(before.mean), math.exp(after.mean)
    distance = after.mean - before.mean
    if not before.dof or not after.dof:
        return TrimmedRatio(*means, Estimate(math.exp(distance)), None)
    variances = [side.variance / side.kept for side in (before, after)]
    parts = variances[0] ** 2 / before.dof + variances[1] ** 2 / after.dof
    difference = Mean(distance, sum(variances), sum(variances) ** 2 / max(parts, TINY))
    p_value = min(1.0, 2 * min(difference.p_value(), difference._replace(value=-distance).p_value()))
    return TrimmedRatio(*means, difference.interval().map(math.exp), p_value)


def _moderated(sample: Sample, prior: tuple[float, float] | None) -> Sample:
    """Return a sample with its variance and degrees of freedom moderated."""
    if prior is None or not sample.dof:
        return sample
    variance, dof = prior
    if sample.variance > variance and (dof < ALIKE_DOF or _is_disturbed(sample, variance, dof)):
        return sample
    total = sample.dof + dof
    return sample._replace(variance=(sample.dof * sample.variance + dof * variance) / total, dof=total)


def _is_disturbed(sample: Sample, variance: float, dof: float) -> bool:
    """Return whether the variance of a sample is significantly above the prior one, by the F test."""
    from scipy.special import fdtrc  # takes time

    return bool(fdtrc(sample.dof, dof, sample.variance / variance) < DISTURBED)


def _prior(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """Return the prior variance and its degrees of freedom, from the moments of the logarithms of all variances."""
    from scipy.special import digamma, polygamma  # takes time

    variances, dofs = (np.array([getattr(each, name) for each in samples]) for name in ("variance", "dof"))
    if not variances.all():
        return None
    logs = np.log(variances) - digamma(dofs / 2) + np.log(dofs / 2)
    distances = np.abs(logs - np.median(logs))
    is_usual = distances <= OUTLIER * NORMAL_MAD * np.median(distances)
    logs, dofs = logs[is_usual], dofs[is_usual]
    inequality = float(logs.var(ddof=1) - polygamma(1, dofs / 2).mean())
    if inequality <= 0:
        return float(np.exp(logs.mean())), min(MAX_DOF, float(len(samples)))
    half = (
        0.5 + 1 / inequality
    )  # of the degrees of freedom, by Newton's method for the inverse of the trigamma function
    for _ in range(NEWTON_STEPS):
        found = polygamma(1, half)
        half += found * (1 - found / inequality) / polygamma(2, half)
    dof = min(2 * float(half), MAX_DOF, float(len(samples)))
    return float(np.exp(logs.mean() + digamma(dof / 2) - np.log(dof / 2))), dof
