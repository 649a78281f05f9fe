"""95 % confidence intervals: Student's of a mean of a few values, and that of a median."""

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

BOUND = 0.975  # probability that one bound of a 95 % interval holds
NORMAL = 1.96  # this quantile of the normal distribution


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
    """Return the 95 % confidence interval of a median, from order statistics: it assumes no distribution."""
    ordered = sorted(values)
    count = len(ordered)
    reach = math.ceil(NORMAL * math.sqrt(count) / 2)
    return ordered[max(0, count // 2 - reach)], ordered[min(count - 1, count // 2 + reach)]
