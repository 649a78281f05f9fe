"""The phases of all steps of a pass, from those of the steps that were timed: a stratified ratio estimate.

The compute of each step is known, also of those whose phases were not timed. Within each kind of step, which is its
number of optimizer steps and backward passes, the fractions of the phases in the timed steps hold for all of them
(W. G. Cochran, Sampling Techniques, 1977, chapters 5A and 6). So gradient accumulation causes no error. Steps of kinds
of which too few were timed, such as the last one of a pass, get the fractions of the others; as any phase could have
all of their compute, that is added to the interval.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from epochmeter.results.intervals import student

MIN_TIMED = 2  # steps of a kind that were timed, for an interval
MAX_HALF_WIDTH = 0.05
"""Largest 95 % interval (plus or minus) of a phase, as a fraction of compute: twice it, a phase of 10 % may be 0 or
20 %. Bottlenecks and advice differ by more."""


class Estimate(NamedTuple):
    """Totals of the phases, one entry each, in the unit of the times, and their 95 % intervals (plus or minus)."""

    totals: np.ndarray
    half_widths: np.ndarray


def estimate(times: np.ndarray, computes: np.ndarray, kinds: np.ndarray, timed: np.ndarray) -> Estimate | None:
    """Estimate the totals of phases; None if too few steps of each kind were timed.

    Args:
        times: Time of each phase, in columns, of the timed steps.
        computes: Compute of all steps.
        kinds: Their kinds.
        timed: Whether each step was timed.
    """
    totals, variances, freedom = times.sum(axis=0).astype(float), np.zeros(times.shape[1]), 0
    if timed.all():
        return Estimate(totals, variances)
    totals[:], estimated, unknown = 0.0, 0.0, 0.0
    for of_stratum in strata(kinds, timed):
        of_timed = of_stratum[timed]
        sampled, count = times[of_timed], int(of_timed.sum())
        known, compute = computes[of_stratum & timed], float(computes[of_stratum].sum())
        if count == of_stratum.sum():
            totals += sampled.sum(axis=0)
            estimated += compute
            continue
        if count < MIN_TIMED or not known.sum():
            unknown += compute
            continue
        fractions = sampled.sum(axis=0) / known.sum()
        residuals = sampled - known[:, None] * fractions
        unsampled = 1 - count / of_stratum.sum()
        spread = (residuals**2).sum(axis=0) / (count - 1) / count / known.mean() ** 2
        totals += compute * fractions
        estimated += compute
        variances += compute**2 * unsampled * spread
        freedom += count - 1
    if not estimated:
        return None
    half_widths = student(freedom) * np.sqrt(variances) if freedom else variances
    return Estimate(totals * (1 + unknown / estimated), half_widths + unknown)


def strata(kinds: np.ndarray, timed: np.ndarray) -> Iterator[np.ndarray]:
    """Yield which steps are in each stratum: those of a kind, and together those of kinds with too few timed steps."""
    rest = np.zeros(len(kinds), dtype=bool)
    for kind in np.unique(kinds):
        of_kind = kinds == kind
        count = (of_kind & timed).sum()
        if count >= MIN_TIMED or count == of_kind.sum():
            yield of_kind
        else:
            rest |= of_kind
    if rest.any():
        yield rest
