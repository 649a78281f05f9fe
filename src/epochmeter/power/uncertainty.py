"""The uncertainty of energy that is integrated from power samples; docs/energy.md describes the method."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

NORMAL_95 = 1.96
MARGIN = 0.16
"""Largest error at a border, per second of sensor memory and watt of swing around it.

A single step gives 1/8 at most. A moving mean with the memory `averaging` errs by `averaging / 8`. One renewed once per
averaging time errs by twice as much, with twice the memory. Readings of several steps swing less than the power.
"""
HIDDEN = 0.1
"""The same error per watt of mean power, for a load whose cycles are shorter than the averaging time.

Its readings are constant, so no bound follows from them. For a square wave from 0 to 2 P, 95 of 100 borders inside a
cycle err by at most 0.07 (cycle: half the averaging time) to 0.14 (cycle: the averaging time) of P x memory.
"""
RENEWAL_S = 0.1
"""Longest known renewal period of a GPU's power reading (Yang et al., SC24); assumed until it is measured."""
LONG_GAP = 3.0  # a gap is a hole if it is this many times the median interval; jitter alone reaches 1.5
NOISY = 0.4  # fraction of the samples' variance in reversals above which the samples count as independent of each other


class Response(NamedTuple):
    """Response of a power sensor: a reading at t is the mean power from `t - delay - averaging_s` to `t - delay`.

    The delay grows from `lag_s` to `lag_s + renewal_s` until the sensor renews its reading.

    Attributes:
        averaging_s: The time that a reading averages over (A in docs/energy.md), in seconds; None: unknown.
        lag_s: The delay from the end of that time to the earliest reading (L), in seconds.
        renewal_s: How often a new reading appears (R), in seconds; 0: at each read; None: unknown, estimated.
        is_filter: Whether the sensor is a low-pass filter. The other fields describe a moving mean with the same mean
            age of power, which is the time constant of the filter.
    """

    averaging_s: float | None = 0.0
    lag_s: float = 0.0
    renewal_s: float | None = 0.0
    is_filter: bool = False

    def resolved(self, estimated_s: float) -> "Response":
        """The response, with the estimated renewal period if it is unknown."""
        return self._replace(renewal_s=estimated_s) if self.renewal_s is None else self

    @property
    def held_s(self) -> float:
        """The renewal period in seconds; the longest known one if it is unknown."""
        return RENEWAL_S if self.renewal_s is None else self.renewal_s

    @property
    def memory_s(self) -> float:
        """Time of past power in a reading, without the lag; an unknown averaging time counts as one renewal."""
        return self.held_s + (self.held_s if self.averaging_s is None else self.averaging_s)

    @property
    def delay_s(self) -> float:
        """The mean age of the power in a reading; for an unknown averaging time, the middle of its possible range."""
        averaging_s = self.held_s / 2 if self.averaging_s is None else self.averaging_s
        return self.lag_s + (self.held_s + averaging_s) / 2

    @property
    def delay_error_s(self) -> float:
        """How far the mean age may be from `delay_s`."""
        return self.held_s / 4 if self.averaging_s is None else 0.0

    @property
    def unsampled(self) -> float:
        """The fraction of time in which the sensor does not measure; 1 if its averaging time is unknown."""
        if not self.held_s:
            return 0.0
        return max(0.0, 1 - (self.averaging_s or 0.0) / self.held_s)

    @property
    def settled_s(self) -> float:
        """After this time no reading depends on earlier power."""
        return self.lag_s + self.memory_s

    def is_same(self, other: "Response") -> bool:
        """Whether two responses are of sensors of the same kind; measured ones differ slightly."""
        kinds = self.is_filter == other.is_filter
        return kinds and all(is_same_s(*pair) for pair in zip(self[:3], other[:3], strict=True))


MEASURED, MEASURED_S = 0.1, 0.002  # largest errors of a measured time: as a fraction and in seconds


def is_same_s(first_s: float | None, second_s: float | None) -> bool:
    """Whether two times of responses are equal, as far as they can be measured; unknown ones are equal."""
    if first_s is None or second_s is None:
        return first_s is second_s
    return math.isclose(first_s, second_s, rel_tol=MEASURED, abs_tol=MEASURED_S)


Sensors = Mapping[str, Mapping[str, float | None]]
"""The responses of a device's sensors by name (`sensors` in conf/device), with the fields of `Response`."""

NONE, UNKNOWN = Response(), Response(None, 0.0, None)


def response_of(sensors: Sensors | None, name: str, default: Response = NONE) -> Response:
    """The response of a sensor by the device's table (`sensors` in conf/device)."""
    sensor = (sensors or {}).get(name)
    return default if sensor is None else Response(**sensor)  # type: ignore[arg-type]  # the fields by name


def slowest(responses: list[Response]) -> Response:
    """The largest value of each field; unknown if any is unknown."""
    fields = zip(*responses, strict=True)
    return Response(*(None if None in values else max(values) for values in fields))  # type: ignore[arg-type]  # in order


def renewal_s(times_s: np.ndarray, watts: np.ndarray) -> float | None:
    """Estimate a sensor's renewal period from runs of identical readings; None with fewer than 4 changes.

    The time between successive changes is a multiple of the period. It is at most the time from the last sample before
    the first change to the first one after the second. The 10th percentile of these spans is an upper estimate.
    """
    changes = np.flatnonzero(np.diff(watts))
    if len(changes) < 4:
        return None
    return float(np.percentile(times_s[changes[1:] + 1] - times_s[changes[:-1]], 10))


def misses_power(period_s: float, response: Response) -> bool:
    """Whether samples every `period_s` are of certain parts of the time only, whose phase is the sensor's.

    If the sensor renews its reading for each sample, the jitter of the samples makes them independent of its phase.
    """
    return response.unsampled > 0 and repeats_readings(period_s, response)


def repeats_readings(period_s: float, response: Response) -> bool:
    """Whether samples every `period_s` may be of the same reading."""
    return response.held_s >= 0.9 * period_s


def interior_j(
    times_s: np.ndarray, watts: np.ndarray, opened_s: float, closed_s: float, response: Response, in_step_j: float = 0.0
) -> tuple[float, float]:
    """Return the half-width of the 95 % interval of a window's energy from all causes, and from missed power.

    Structure that samples before the window show may be in the window too. Readings belong to the window if they are
    between its borders, both moved by the mean delay of the sensor. `in_step_j` is the half-width for power that
    repeats in each step: it replaces the one from missed power if it is larger.
    """
    if len(times_s) < 3:
        return 0.0, 0.0
    opened_s, closed_s = opened_s + response.delay_s, closed_s + response.delay_s
    spans_s, jumps_w = np.diff(times_s), np.diff(watts)
    typical_s = float(np.median(spans_s))
    long = spans_s > LONG_GAP * typical_s
    inside = (times_s[1:] > opened_s) & (times_s[:-1] < closed_s)
    structure_j = _structure_j(times_s, watts, opened_s, closed_s, long)
    if misses_power(typical_s, response):
        within = watts[(times_s >= opened_s) & (times_s <= closed_s)]
        missed_j = part_time_j(within, closed_s - opened_s, response)
        # Few readings hardly show how much the power varies, but it is between 0 and the highest one.
        highest_j = (closed_s - opened_s + response.held_s) * float(watts.max())
        structure_j = max(structure_j, min(missed_j, highest_j))
    holes_j = [_hole_j(times_s, watts, int(first)) for first in np.flatnonzero(long & inside)]
    unsampled_j = max(structure_j, in_step_j)
    return math.hypot(_steps_j((jumps_w * spans_s)[inside & ~long]), unsampled_j, math.hypot(*holes_j)), structure_j


def _steps_j(jumps_j: np.ndarray) -> float:
    """Half-width for power that changes once between two samples: uniform errors, at most half of all jumps.

    The number of degrees of freedom of the sum is by Welch and Satterthwaite.
    """
    variances = jumps_j**2 / 12
    variance = float(variances.sum())
    if not variance > 0:
        return 0.0
    freedom = variance**2 / float((variances**2).sum())
    return min(float(np.abs(jumps_j).sum()) / 2, student_95(freedom) * math.sqrt(variance))


def _structure_j(times_s: np.ndarray, watts: np.ndarray, opened_s: float, closed_s: float, long: np.ndarray) -> float:
    """Half-width for power that rises and falls between samples, which shows in samples that reverse direction.

    The mean of minus the product of successive jumps is the variance of independent samples (Roll, J. Finance 39,
    1984). Each product is weighted with the time of its sample. One rare event, such as a spike, more than samples hit
    is assumed.
    """
    spans_s, jumps_w = np.diff(times_s), np.diff(watts)
    weights_s = np.where(long[:-1] | long[1:], 0.0, (spans_s[:-1] + spans_s[1:]) / 2)
    reversals = np.maximum(0.0, -jumps_w[:-1] * jumps_w[1:]) * weights_s**2
    middle_s = times_s[1:-1]
    within = (middle_s >= opened_s) & (middle_s <= closed_s)
    variance, event = _sums(reversals[within])
    if within.sum() > 2:
        readings = watts[1:-1][within]
        independent = float(np.var(readings, ddof=1) * (weights_s[within] ** 2).sum())
        if variance > NOISY * independent:
            off = readings - readings.mean()
            correlation = float((off[1:] * off[:-1]).sum() / (off**2).sum())  # of successive readings
            variance = max(variance, independent * (1 + 2 * max(0.0, correlation)))
    before = middle_s < opened_s
    if before.any():
        earlier, earlier_event = _sums(reversals[before])
        rate = earlier / (opened_s - float(times_s[0]))
        variance, event = max(variance, rate * (closed_s - opened_s)), max(event, earlier_event)
    return NORMAL_95 * math.sqrt(variance) + math.sqrt(event)


def _sums(variances: np.ndarray) -> tuple[float, float]:
    """Sum of the variances, and their mean weighted by themselves."""
    total = float(variances.sum())
    return total, float((variances**2).sum()) / total if total > 0 else 0.0


def part_time_j(watts: np.ndarray | Sequence[float], seconds: float, response: Response) -> float:
    """Half-width for a sensor that measures only part of each renewal period: its readings are a random sample.

    The whole variance of the readings counts, as a load whose cycle is nearly a multiple of the renewal period looks
    slow. Readings of a load that is nearly in step are not independent, so 1.5 standard deviations of a reading are
    added. In simulations, this covers 95 % of square waves of any cycle that differs from the renewal period and its
    multiples. Readings do not show whether it differs; `step_sampling.in_step_j` uses the times of the steps.
    """
    if not response.unsampled or len(watts) < 2 or seconds < response.held_s:
        return 0.0
    spread_j, freedom = float(np.std(watts, ddof=1)) * response.held_s, seconds / response.held_s - 1
    return spread_j * _missed_spreads(seconds, response, student_95(freedom))


def assumed_part_time_j(mean_w: float, seconds: float, response: Response) -> float:
    """The same if no readings are known: power is assumed to be between 0 and twice its mean.

    Its standard deviation is then at most the mean, and the mean power of a short time differs by at most as much.
    """
    if not response.unsampled or seconds < response.held_s:
        return 0.0
    spread_j = mean_w * response.held_s
    return min(spread_j * _missed_spreads(seconds, response, NORMAL_95), mean_w * (seconds + response.held_s))


def _missed_spreads(seconds: float, response: Response, quantile: float) -> float:
    """Half-width for power that a part-time sensor missed, in standard deviations of a reading times its period."""
    return quantile * math.sqrt(seconds / response.held_s * response.unsampled) + 1.5


def _hole_j(times_s: np.ndarray, watts: np.ndarray, first: int) -> float:
    """The largest error of a straight line over a hole, if power stays in the range that it has around the hole."""
    span_s = float(times_s[first + 1] - times_s[first])
    from_, to = np.searchsorted(times_s, [times_s[first] - LONG_GAP * span_s, times_s[first + 1] + LONG_GAP * span_s])
    around, mean_w = watts[from_:to], float(watts[first] + watts[first + 1]) / 2
    return span_s * max(float(around.max()) - mean_w, mean_w - float(around.min()))


def border_j(times_s: np.ndarray, watts: np.ndarray, border_s: float, response: Response) -> float:
    """Bound the energy that averaging and renewal attribute to the wrong side of a window's border.

    The mean delay is corrected, as the energy is integrated `delay_s` later than the window.
    """
    memory_s, at_s = response.memory_s, border_s + response.delay_s
    if not memory_s or not len(watts):
        return 0.0
    first = max(0, int(np.searchsorted(times_s, at_s - 1.5 * memory_s)) - 1)
    near = watts[first : int(np.searchsorted(times_s, at_s + 1.5 * memory_s)) + 1]
    if times_s[-1] < border_s + 0.9 * response.settled_s:
        # No later reading covers the power at the border: it is between 0 and twice the readings.
        return (response.lag_s + memory_s) * max(float(np.ptp(watts)), float(np.mean(near)))
    swing_w = float(np.ptp(near))
    return memory_s * max(MARGIN * swing_w, HIDDEN * float(np.mean(near))) + response.delay_error_s * swing_w


def correction_j(times_s: np.ndarray, watts: np.ndarray, read_s: float, last_s: float, delay_s: float) -> float:
    """Return the joules to add to an energy reading: corrections of the sensor's delay and of the extrapolation.

    Power was extrapolated from the sample at `last_s`. A later sample may have been added after the reading.
    """
    last = int(np.searchsorted(times_s, last_s, side="right")) - 1
    if last < 0:
        return 0.0
    until_s = read_s + delay_s
    inner = (times_s > times_s[last]) & (times_s < until_s)
    at_s = np.concatenate([times_s[last : last + 1], times_s[inner], [until_s]])
    at_w = np.interp(at_s, times_s, watts)
    return float((np.diff(at_s) * (at_w[1:] + at_w[:-1]) / 2).sum() - watts[last] * (read_s - times_s[last]))


def student_95(freedom: float) -> float:
    """The 97.5th percentile of Student's t by its series in `1 / freedom` (Abramowitz and Stegun, 26.7.5).

    Its last coefficient is larger, so that the quantile is at most 2 % too large.
    """
    n = max(freedom, 1.0)
    return NORMAL_95 + 2.372 / n + 2.82 / n**2 + 2.56 / n**3 + 3.0 / n**4
