"""95 % confidence intervals: Student's of a mean of a few values, and that of a median."""

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

BOUND = 0.975  # probability that one bound of a 95 % interval holds
MIN_OF_MEDIAN = 6  # fewest values whose median has such an interval


def load_quantiles() -> None:
    """Import SciPy's functions, which takes a tenth of a second, at a time when nothing waits for it."""
    import scipy.special  # noqa: F401 (for its effect)


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


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of a median, from order statistics: it assumes no distribution.

    The number of values below the median is binomial. Even the range of fewer than `MIN_OF_MEDIAN` values is no such
    interval, and raises ValueError.
    """
    ordered, count = sorted(values), len(values)
    at_most = accumulate(math.comb(count, below) / 2**count for below in range(count))  # probabilities
    rank = sum(probability <= 1 - BOUND for probability in at_most)  # of the lower bound, from 1
    if not rank:
        raise ValueError(f"{count} values have no 95 % interval of their median, which needs {MIN_OF_MEDIAN}")
    return ordered[rank - 1], ordered[-rank]
