"""Search for the best of several power limits, by repeated and interleaved probes of training.

With a higher limit a step takes less time and more power. Its cost may have flat parts and several minima, as devices
round limits or have few clocks. The search tries the limit in use, then one at 60 % of the highest, then the neighbors
of the best so far and of the limits next to it with the same cost, then the middle of long gaps. A limit is skipped if
monotonicity shows that it cannot be better. Limits are probed again, in turn, until none is likely to be better.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Floats = npt.NDArray[np.float64]
Cost = Callable[[float, float], float]  # cost of a step from its time in s and its mean power in W; it grows with both

START = 0.6  # first limit to try, as a fraction of the highest, unless power stays below it
POWER_HEADROOM = 0.8  # a limit above this fraction of the mean power without it restricts little
EFFECT = 1.2  # smallest ratio of the powers of tried limits at which limits have a clear effect
WIDE = 3  # neighbors to try on both sides if limits have no clear effect, so that cost may have several minima
MARGIN = 0.01  # relative difference in cost below which limits count as equal
MAX_REPEATS = 8
EQUAL = 0.02  # relative difference in cost of limits between which cost may have a flat part or a small rise
MAX_GAP = 3  # untried limits between two tried ones, unless none of them can be better
DRAWS, TAILS = 4000, (0.025, 0.975)
ENDED_EARLY = 1.15
"""Ratio of the errors of a saving to those that the residuals show: the search ends when these happen to be small. From
the simulations of `benchmarks/decisions/power_limits.py`."""
PRIOR_NOISE, PRIOR_PROBES = 0.02, 2
"""Relative noise of a probe before any is repeated, and the number of probes that this assumption counts as."""
DRIFT, HEAT = 0.005, 0.03
"""Standard deviations of the relative drift from probe to probe, and of the change while the device warms up."""
HEAT_PROBES = 4  # number of probes in which the device comes 63 % closer to its final temperature


class Probe(NamedTuple):
    """Training at one limit, an index in the list of limits: mean time and energy of a step."""

    limit: int
    step_s: float
    step_j: float


class Estimate(NamedTuple):
    """Logarithms of a quantity by limit, corrected for drift, with the covariance of their errors."""

    mean: dict[int, float]
    covariance: Floats
    degrees: float

    def difference(self, limit: int, other: int) -> tuple[float, float]:
        """Return `limit` minus `other`, and its standard error."""
        weights = np.array([(name == limit) - (name == other) for name in self.mean], dtype=float)
        return self.mean[limit] - self.mean[other], math.sqrt(max(0.0, weights @ self.covariance @ weights))

    def probability_below(self, limit: int, other: int, ratio: float) -> float:
        """Return the probability that `limit` is less than `ratio` times `other`."""
        difference, error = self.difference(limit, other)
        # The t distribution's function itself: `stats.t.cdf` checks shapes and takes ten times as long.
        return float(special.stdtr(self.degrees, (math.log(ratio) - difference) / max(error, 1e-12)))

    def draws(self) -> Floats:
        """Draw all means from their joint t distribution, shape (`DRAWS`, limits)."""
        drawn = stats.multivariate_t.rvs([*self.mean.values()], self.covariance, self.degrees, DRAWS, random_state=0)
        return np.reshape(drawn, (DRAWS, len(self.mean)))


@dataclass(frozen=True)
class Choice:
    """The chosen limit; `limit` is its index.

    Attributes:
        confidence: Probability that no tried limit that keeps the bounds has a cost lower by more than 1 %.
        saving: Fraction of the cost of the limit in use before, with the bounds of its 95 % confidence interval.
        slowdown: Time of a step, as a multiple of that with the limit in use before.
        is_allowed: Whether it keeps the bounds on time and power; no tried limit does if not.
    """

    limit: int
    confidence: float
    saving: tuple[float, float, float]
    slowdown: float
    is_allowed: bool


class LimitSearch:
    """The search: probe the limit `next_limit()` and `add` the probe, until it is None.

    Args:
        limits_w: The limits in ascending order; infinite: no limit.
        default: Index of the limit in use.
        max_slowdown: Highest time of a step, as a multiple of that with the limit in use.
        power_budget_w: Highest mean power.
        confidence: Probability with which the choice should be right.
        power_exponent: Power falls at most with this exponent of the limit: 1 for a limit in watts, and 3 for a clock,
            with which the voltage falls as well.
        start: Index of the first limit to try after the one in use; None: it is chosen after the first probe.
    """

    def __init__(
        self,
        limits_w: Sequence[float],
        default: int,
        cost: Cost,
        *,
        max_slowdown: float | None = None,
        power_budget_w: float | None = None,
        confidence: float = 0.95,
        power_exponent: float = 1.0,
        start: int | None = None,
    ) -> None:
        self.probes: list[Probe] = []
        self._limits_w, self.default, self._cost, self._start = limits_w, default, cost, start
        self._max_slowdown, self._power_budget_w = max_slowdown or math.inf, power_budget_w or math.inf
        self._confidence, self._power_exponent = confidence, power_exponent

    def add(self, probe: Probe) -> None:
        self.probes.append(probe)
        times_s = [probe.step_s for probe in self.probes]
        powers_w = [probe.step_j / probe.step_s for probe in self.probes]
        self._times, self._powers, self._costs = (
            estimate(self.probes, map(math.log, values))
            for values in (times_s, powers_w, map(self._cost, times_s, powers_w))
        )

    @property
    def tried(self) -> list[int]:
        """The limits with at least one probe, in ascending order."""
        return sorted({probe.limit for probe in self.probes})

    def next_limit(self) -> int | None:
        """Return the limit to probe next; None: the choice is made."""
        if not self.probes:
            return self.default
        if self._start is None:
            self._start = self._first_limit()
        if self._start not in self.tried:
            return self._start
        best = self._best()
        untried = self._untried_neighbor(best)
        return self._limit_to_repeat(best) if untried is None else untried

    def choice(self) -> Choice:
        """Return the best limit by the probes so far, at least one."""
        best = self._best()
        slowdown = math.exp(self._times.difference(best, self.default)[0])
        return Choice(best, self._confidence_in(best), self._saving(best), slowdown, self._is_allowed(best))

    def _saving(self, best: int) -> tuple[float, float, float]:
        """Return the saving of the best limit with its 95 % interval.

        The limit with the lowest estimate has an error that is probably negative (the winner's curse). The errors are
        therefore those of the limit that would be chosen with other errors, by a parametric bootstrap (B. Efron,
        R. J. Tibshirani, An Introduction to the Bootstrap, 1993).
        """
        if best == self.default:
            return 0.0, 0.0, 0.0
        estimates = np.array([*self._costs.mean.values()])
        errors = self._costs.draws() - estimates
        is_allowed = np.array([limit == best or self._is_allowed(limit) for limit in self.tried])
        chosen = np.where(is_allowed, estimates + errors, np.inf).argmin(axis=1)
        of_saving = errors[np.arange(len(errors)), chosen] - errors[:, self.tried.index(self.default)]
        of_saving *= ENDED_EARLY
        difference, _ = self._costs.difference(best, self.default)
        saving, low, high = 1 - np.exp(difference - np.array([of_saving.mean(), *np.quantile(of_saving, TAILS)]))
        return float(saving), float(low), float(high)

    def _confidence_in(self, best: int) -> float:
        """Return the probability that no tried limit that keeps the bounds has a cost lower by more than the margin."""
        costs, times = self._costs.draws(), self._times.draws()
        best_index, default = self.tried.index(best), self.tried.index(self.default)
        is_allowed = np.array([limit == best or not self._exceeds_power(limit) for limit in self.tried])
        keeps_time = times - times[:, [default]] <= math.log(self._max_slowdown)
        lowest = np.where(is_allowed & keeps_time, costs, np.inf).min(axis=1)
        return float(np.mean(costs[:, best_index] - lowest <= -math.log(1 - MARGIN)))

    def _first_limit(self) -> int:
        power_w = self.probes[0].step_j / self.probes[0].step_s
        highest_w = max(filter(math.isfinite, self._limits_w), default=power_w)
        aim_w = START * highest_w
        if self._power_exponent == 1:  # the limits are of the power
            aim_w = min(aim_w, POWER_HEADROOM * power_w, self._power_budget_w)
        others = [limit for limit in range(len(self._limits_w)) if limit != self.default]
        return min(others, key=lambda limit: abs(self._limits_w[limit] - aim_w), default=self.default)

    def _best(self) -> int:
        """The tried limit with the lowest cost of those that keep the bounds; the lowest limit if none does."""
        allowed = [limit for limit in self.tried if self._is_allowed(limit)]
        return min(allowed, key=lambda limit: self._costs.mean[limit], default=self.tried[0])

    def _is_allowed(self, limit: int) -> bool:
        return not self._exceeds_power(limit) and self._probability_in_time(limit) >= self._confidence

    def _probability_in_time(self, limit: int) -> float:
        """Return the probability that a limit keeps the bound on time."""
        if limit == self.default or self._max_slowdown == math.inf:
            return 1.0
        return self._times.probability_below(limit, self.default, self._max_slowdown)

    def _exceeds_power(self, limit: int) -> bool:
        return math.exp(self._powers.mean[limit]) > self._power_budget_w

    def _untried_neighbor(self, best: int) -> int | None:
        """The most promising untried neighbor of the best limit; None: no neighbor is likely to be better."""
        lower = [limit for limit in self.tried if limit < best and self._probability_in_time(limit) < self._confidence]
        if lower and self._is_promising(middle := (lower[-1] + best) // 2, best):
            return middle
        lowest, highest = self._equals(best, -1), self._equals(best, 1)
        distances = range(1, 2 if self._has_effect() else WIDE + 1)
        near = (end + sign * distance for distance in distances for end, sign in ((lowest, -1), (highest, 1)))
        promising = [limit for limit in near if self._is_promising(limit, best)]
        promising = promising or [limit for limit in self._middles_of_gaps() if self._is_promising(limit, best)]
        return min(promising, key=lambda limit: (abs(limit - best), self._least_cost(limit)), default=None)

    def _equals(self, best: int, step: int) -> int:
        """Return the last of the tried limits next to the best, in one direction, with about the same cost."""
        end = best
        while end + step in self.tried:
            difference, error = self._costs.difference(end + step, best)
            if difference - error > math.log1p(EQUAL):
                break
            end += step
        return end

    def _middles_of_gaps(self) -> list[int]:
        """Return the middle of each long series of untried limits, as cost may have several minima."""
        ends = [-1, *self.tried, len(self._limits_w)]
        return [(low + high) // 2 for low, high in pairwise(ends) if high - low > MAX_GAP + 1]

    def _limit_to_repeat(self, best: int) -> int | None:
        """The least probed of the limits that may be the best; of several, the one whose last probe is the oldest."""
        counts = Counter(probe.limit for probe in self.probes)
        last = {probe.limit: number for number, probe in enumerate(self.probes)}
        rivals = [limit for limit in self.tried if limit != best and self._is_rival(limit, best)]
        if rivals and self._max_slowdown < math.inf:
            rivals.append(self.default)  # the bound is relative to its time, which may drift
        again = {best, *rivals} if rivals else {limit for limit in (best, self.default) if counts[limit] < 2}
        candidates = [limit for limit in again if counts[limit] < MAX_REPEATS]
        return min(candidates, key=lambda limit: (counts[limit], last[limit]), default=None)

    def _is_promising(self, limit: int, best: int) -> bool:
        """Whether a limit is untried, and may have a lower cost than the best and keep the bounds."""
        if (
            limit in self.tried
            or not 0 <= limit < len(self._limits_w)
            or any(other > limit and self._slow_for_sure(other) for other in self.tried)
            or any(other < limit and self._exceeds_power(other) for other in self.tried)
        ):
            return False
        if not self._is_allowed(best) or not self._has_effect():
            return True
        return self._least_cost(limit) < math.exp(self._costs.mean[best]) * (1 - MARGIN)

    def _has_effect(self) -> bool:
        """Whether the tried limits have clearly different powers."""
        powers = self._powers.mean.values()
        return max(powers) - min(powers) > math.log(EFFECT)

    def _least_cost(self, limit: int) -> float:
        """Lower bound of the cost: with the time of the next higher limit and the power of the next lower one."""
        above = min((other for other in self.tried if other > limit), default=None)
        below = max((other for other in self.tried if other < limit), default=None)
        step_s = math.exp(self._times.mean[above]) if above is not None else 0.0
        if below is not None:
            return self._cost(step_s, math.exp(self._powers.mean[below]))
        assert above is not None  # a tried limit is above or below
        fraction = min(1.0, self._limits_w[limit] / self._limits_w[above])
        return self._cost(step_s, math.exp(self._powers.mean[above]) * fraction**self._power_exponent)

    def _slow_for_sure(self, limit: int) -> bool:
        """Whether a limit is likely to be slower than allowed, so that lower limits are as well."""
        return self._probability_in_time(limit) < 1 - self._confidence

    def _is_rival(self, limit: int, best: int) -> bool:
        """Whether a limit may be better than the best by more than the margin, and may keep the bounds."""
        if self._exceeds_power(limit) or self._slow_for_sure(limit):
            return False
        # Divided by the number of rivals (Bonferroni), so that the choice as a whole has the confidence.
        return self._costs.probability_below(limit, best, 1 - MARGIN) > (1 - self._confidence) / (len(self.tried) - 1)


def estimate(probes: Sequence[Probe], logarithms: Iterable[float]) -> Estimate:
    """Fit a mean for each limit, a linear drift over the probes, and warming up; the last two have weak priors.

    This is Bayesian linear regression with conjugate priors (Gelman et al., Bayesian Data Analysis, chapter 14).
    """
    values, order = np.array([*logarithms]), np.arange(len(probes))
    limits = sorted({probe.limit for probe in probes})
    of_limit = [[probe.limit == limit for probe in probes] for limit in limits]
    design = np.column_stack([*of_limit, order - order.mean(), np.exp(-order / HEAT_PROBES)]).astype(float)
    prior = np.diag([*np.zeros(len(limits)), (PRIOR_NOISE / DRIFT) ** 2, (PRIOR_NOISE / HEAT) ** 2])
    inverse = np.linalg.inv(design.T @ design + prior)
    effects = inverse @ design.T @ values
    residuals = values - design @ effects
    degrees = PRIOR_PROBES + len(probes) - len(limits)
    variance = (PRIOR_PROBES * PRIOR_NOISE**2 + residuals @ residuals + effects @ prior @ effects) / degrees
    means = dict(zip(limits, map(float, effects[:-2]), strict=True))
    return Estimate(means, variance * inverse[:-2, :-2], float(degrees))
