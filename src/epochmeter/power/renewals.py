"""When a sensor renewed its reading, found from samples that repeat a reading until it is renewed."""

import numpy as np

STATED_RANGE, ESTIMATED_RANGE = (0.97, 1.03), (0.5, 1.05)
"""Where the true period may be, as multiples of a stated and of an estimated one. An A100's is 101 ms, not 100 ms."""
SEARCHED, AVERAGED = 200, 201
"""Number of changes of readings from which the period is found, and over which their phase is averaged.

Of recorded readings of an A100 (data of arXiv:2312.02741), 90 % of the renewals are then found within 3.3 ms. With one
period for all 200 s, it would be 25 ms.
"""
MIN_CHANGED, MIN_COHERENCE = 0.5, 0.3
"""Least number of changes per renewal, and least mean resultant length of their phases, that show the renewals."""
MIN_SAMPLES = 1.2  # fewest samples per renewal; the period of one sample each is that of the sampling
MAX_OFF_CENTER = 0.45  # a sample closer to a renewal than 5 % of the period may be of the reading before or after it


def find_renewals(
    times_s: np.ndarray, watts: np.ndarray, period_s: float, *, is_estimated: bool = False
) -> np.ndarray | None:
    """Find the times at which a sensor renewed its reading, which are nearly periodic.

    Two samples with different readings enclose a renewal. The period is that at which the middles of these intervals
    have the largest mean resultant length (Rayleigh periodogram). Their phase at this period is averaged, so that a
    slow drift is followed.

    Args:
        period_s: The stated or estimated period.

    Returns:
        The times, from the first to the last sample; None if the samples do not show them.
    """
    changes = np.flatnonzero(np.diff(watts))
    if len(changes) < 2 or len(changes) * period_s < MIN_CHANGED * (times_s[-1] - times_s[0]):
        return None
    middles_s = (times_s[changes] + times_s[changes + 1]) / 2
    found_s, coherence = _period_s(middles_s[:SEARCHED], *period_range_s(period_s, is_estimated=is_estimated))
    if coherence < MIN_COHERENCE or found_s < MIN_SAMPLES * float(np.median(np.diff(times_s))):
        return None
    return _nearly_periodic_s(middles_s, found_s, times_s[0], times_s[-1])


def one_per_renewal(times_s: np.ndarray, renewed_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Select one sample per renewal, far from the next and the last one; return their indices and times of renewal."""
    renewal = np.searchsorted(renewed_s, times_s, side="right") - 1
    inside = np.flatnonzero((renewal >= 0) & (renewal < len(renewed_s) - 1))
    renewal = renewal[inside]
    off_center = abs((times_s[inside] - renewed_s[renewal]) / np.diff(renewed_s)[renewal] - 0.5)
    order = np.lexsort((off_center, renewal))
    numbers, first = np.unique(renewal[order], return_index=True)
    is_clear = off_center[order[first]] < MAX_OFF_CENTER
    return inside[order[first]][is_clear], renewed_s[numbers[is_clear]]


def period_range_s(period_s: float, *, is_estimated: bool) -> tuple[float, float]:
    """The range in which the true period is, given a stated or estimated one."""
    low, high = ESTIMATED_RANGE if is_estimated else STATED_RANGE
    return low * period_s, high * period_s


def _period_s(middles_s: np.ndarray, low_s: float, high_s: float) -> tuple[float, float]:
    """Find the period of the renewals, and the mean resultant length of their phases."""
    elapsed_s = middles_s - middles_s[0]
    step_hz = 0.1 / elapsed_s[-1]  # a tenth of the resolution
    tried_hz = np.arange(1 / high_s, 1 / low_s + step_hz, step_hz)
    coherence = abs(np.exp(2j * np.pi * np.outer(tried_hz, elapsed_s)).mean(axis=1))
    return 1 / float(tried_hz[coherence.argmax()]), float(coherence.max())


def _nearly_periodic_s(middles_s: np.ndarray, period_s: float, begin_s: float, end_s: float) -> np.ndarray:
    """All times from `begin_s` to `end_s` of a nearly periodic event that occurred close to each of the `middles_s`."""
    turns = np.exp(2j * np.pi * middles_s / period_s)
    averaged = np.convolve(turns, np.ones(AVERAGED), "full")[AVERAGED // 2 :][: len(turns)]
    phase = np.unwrap(np.angle(averaged)) / (2 * np.pi)
    numbers, first = np.unique(np.round(middles_s / period_s - phase), return_index=True)
    all_numbers = np.arange(np.floor(begin_s / period_s - phase[0]), np.ceil(end_s / period_s - phase[-1]) + 1)
    times_s: np.ndarray = (all_numbers + np.interp(all_numbers, numbers, phase[first])) * period_s
    return times_s
