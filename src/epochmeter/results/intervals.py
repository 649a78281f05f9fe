"""Student's 95 % confidence interval of a mean of a few values."""

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

BOUND = 0.975  # probability that one bound of a 95 % interval holds


@lru_cache(maxsize=4096)
def student(dof: float, probability: float = BOUND) -> float:
    """Return a quantile of Student's distribution."""
    from scipy.special import stdtrit  # takes time

    return float(stdtrit(dof, probability))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two or more values (n - 1), in floats: ten times as fast as exact sums."""
    return math.dist(values, [statistics.fmean(values)] * len(values)) / math.sqrt(len(values) - 1)


def half_width(values: Sequence[float]) -> float:
    """Return the 95 % confidence interval (plus or minus) of the mean of two or more values."""
    return student(len(values) - 1) * deviation(values) / math.sqrt(len(values))
