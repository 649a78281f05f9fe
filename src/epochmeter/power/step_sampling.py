"""The error of a sensor that measures part of the time, for power that repeats in each training step.

If steps take nearly a multiple or a fraction of the sensor's renewal period, its readings see only a part of the steps
(Yang, Adamek, Armour, SC24, arXiv:2312.02741). docs/energy.md describes the method.
"""

import numpy as np

from epochmeter.power.renewals import find_renewals, period_range_s
from epochmeter.power.uncertainty import Response, misses_power

ASSUMED_PERIODS = 41  # number of renewal periods that are assumed if the samples do not show the true one


def in_step_j(
    times_s: np.ndarray,
    watts: np.ndarray,
    borders_s: np.ndarray,
    response: Response,
    *,
    is_estimated: bool = False,
    limit_w: float | None = None,
) -> float:
    """Half-width for power that is the same at the same place of each step, of which readings see certain places only.

    Koksma's inequality bounds the error of a mean over some places by the variation of the power and the discrepancy of
    the places (Kuipers and Niederreiter, Uniform Distribution of Sequences, 1974). On a circle, the discrepancy is the
    statistic of Kuiper (1960). Power is assumed to rise and fall once per step. In the longest stretch of a step that
    no reading has measured, power may also be beyond the range of the readings: between 0 and `limit_w`.

    Args:
        times_s: Times of the samples.
        borders_s: Beginnings of consecutive steps, and the end of the last one.
        is_estimated: Whether the renewal period of the sensor is an estimate.
        limit_w: The largest possible power; None: twice the largest reading.
    """
    begin_s, end_s = borders_s[[0, -1]] + response.delay_s
    within_w = watts[(times_s >= begin_s) & (times_s <= end_s)]
    if len(within_w) < 2 or end_s - begin_s < response.held_s:
        return 0.0
    if not misses_power(float(np.median(np.diff(times_s))), response):
        return 0.0
    lowest_w, highest_w = float(within_w.min()), float(within_w.max())
    beyond_w = max(lowest_w, (limit_w or 2 * highest_w) - highest_w)
    step_s, averaging_s = float(np.diff(borders_s).mean()), response.averaging_s or 0.0
    half_widths_w = []
    for renewed_s in _possible_renewals(times_s, watts, response, is_estimated=is_estimated):
        uneven, gap = unevenness(places_in_steps(renewed_s - response.lag_s - averaging_s / 2, borders_s))
        unseen = unseen_s(gap * step_s, averaging_s) / step_s
        half_widths_w.append(uneven * (highest_w - lowest_w) + unseen * beyond_w)
    return max(half_widths_w) * float(end_s - begin_s)


def places_in_steps(times_s: np.ndarray, borders_s: np.ndarray) -> np.ndarray:
    """The elapsed fraction of the step (0 to 1) at each moment that is within a step."""
    times_s = times_s[(times_s >= borders_s[0]) & (times_s < borders_s[-1])]
    step = np.searchsorted(borders_s, times_s, side="right") - 1
    elapsed: np.ndarray = (times_s - borders_s[step]) / (borders_s[step + 1] - borders_s[step])
    return elapsed


def unevenness(places: np.ndarray) -> tuple[float, float]:
    """Kuiper's statistic of places on a circle of length 1, and the longest arc without a place; both are at most 1."""
    count = len(places)
    if not count:
        return 1.0, 1.0
    ordered = np.sort(places)
    ahead = np.arange(1, count + 1) / count - ordered
    return float(np.ptp(ahead)) + 1 / count, float(np.diff(ordered, append=ordered[0] + 1).max())


def unseen_s(gap_s: float, averaging_s: float) -> float:
    """How long power may be far from all readings, if the ends of two successive ones in a step differ by `gap_s`.

    A reading is a mean over `averaging_s`, so it is far from its neighbors only if most of that time is between them.
    """
    return gap_s - averaging_s if gap_s >= 2 * averaging_s else gap_s**2 / (4 * averaging_s)


def _possible_renewals(
    times_s: np.ndarray, watts: np.ndarray, response: Response, *, is_estimated: bool
) -> list[np.ndarray]:
    """The times at which readings were renewed; if the samples do not show them, those of all possible periods."""
    found_s = find_renewals(times_s, watts, response.held_s, is_estimated=is_estimated)
    if found_s is not None:
        return [found_s]
    range_s = period_range_s(response.held_s, is_estimated=is_estimated)
    return [np.arange(times_s[0], times_s[-1], period_s) for period_s in np.linspace(*range_s, ASSUMED_PERIODS)]
