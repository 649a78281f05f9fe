"""A power sensor's averaging time and lag, estimated from its samples if they are unknown."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from epochmeter.power.phases.step_timeline import Timeline
from epochmeter.power.uncertainty import Response

AVERAGING_S = (0.001, 0.01, 0.02, 0.04, 0.06, 0.08, 0.11, 0.16, 0.22, 0.32, 0.45, 0.64, 0.9, 1.28, 1.8, 2.56)
LAG_STEPS_S, MAX_LAG_S = (0.005, 0.01, 0.04), 0.3
"""Step size of the lags tried, for averaging times below 0.03 s, below 0.4 s and above; and the longest lag."""
FILTERS_S = AVERAGING_S[2::2]  # averaging times of the low-pass filters tried, with the largest of the lag steps
MAX_WINDOW_FRACTION = 0.05  # longest averaging time and lag tried, as a fraction of the window
MAX_SAMPLES = 1000  # the search uses at most about this many samples, from all over the window
SHIFTS = 512  # size of the cache of shifted samples, which sensors share
REFINEMENTS = (0.25, 0.06)
"""Step sizes of the finer searches around the best sensor, as fractions of those of the first search."""
REFINED_SENSORS = 3  # sensors of the first search that are refined
PLAUSIBLE_RESIDUAL = 1.25
"""A sensor is plausible if it leaves at most this many times the best sensor's residual sum of squares."""
PLAUSIBLE_VARIANCES = 6.0
"""Or at most this many residual variances per independent residual more: chi-squared at 95 % for two parameters."""

TOLERANCE_FRACTION, TOLERANCE_S = 0.03, 0.0005
"""Best accuracy of a stated sensor and of the steps' clock: a fraction of the averaging time, and seconds."""

FILTER_WIDTHS = (0.255, 0.549, 0.843, 1.231, 2.122)
"""Widths of the moving means whose mean is a low-pass filter, as fractions of its averaging time.

An exponential weighting is a mixture of moving means whose widths have a gamma distribution of shape 2. The fractions
are the means of five equally probable parts of it; their own mean is 1.
"""


class Sensor(NamedTuple):
    """A reading is the mean power from `lag_s + averaging_s` to `lag_s` before it.

    A low-pass filter weights past power exponentially instead. Its averaging time is twice its time constant, so that
    the mean age of the power in a reading is the same.
    """

    averaging_s: float
    lag_s: float = 0.0
    is_filter: bool = False

    @property
    def center_s(self) -> float:
        """Mean age of the power in a reading."""
        return self.lag_s + self.averaging_s / 2

    @property
    def widths_s(self) -> tuple[float, ...]:
        """Widths of the moving means whose mean a reading is."""
        return tuple(max(1e-6, width * self.averaging_s) for width in (FILTER_WIDTHS if self.is_filter else (1.0,)))

    @classmethod
    def of(cls, response: Response) -> "Sensor":
        """Return the sensor of a known response; over many steps, periodic renewal has the effect of averaging."""
        if response.is_filter:
            return cls(2 * response.delay_s, is_filter=True)
        averaging_s, renewal_s = response.averaging_s or 0.0, response.renewal_s or 0.0
        both_s = math.hypot(averaging_s, renewal_s)
        return cls(both_s, response.delay_s - both_s / 2)

    def similar(self) -> "list[Sensor]":
        """Sensors within the accuracy of this one: slightly other lags and averaging times."""
        off_s = TOLERANCE_FRACTION * self.averaging_s + TOLERANCE_S
        moved = [self._replace(lag_s=self.lag_s + later_s) for later_s in (-off_s, off_s)]
        widened_s = [max(0.0, self.averaging_s + wider_s) for wider_s in (-off_s, off_s)]
        return [*moved, *(self._replace(averaging_s=wide_s) for wide_s in widened_s)]

    def shares(self, timeline: Timeline, times_s: np.ndarray) -> np.ndarray:
        """Fraction of each phase, in columns, in the time that the readings at these moments average over."""
        return self.mean_shares(lambda age_s: timeline.spent_s(times_s - age_s))

    def mean_shares(self, spent_s: Callable[[float], np.ndarray]) -> np.ndarray:
        """The same as `shares`, given a function that returns the seconds of each phase up to an age of readings."""
        until_s = spent_s(self.lag_s)
        moving = [(until_s - spent_s(self.lag_s + width_s)) / width_s for width_s in self.widths_s]
        shares: np.ndarray = moving[0] if len(moving) == 1 else np.mean(moving, axis=0)
        return shares

    def within(self, timeline: Timeline, times_s: np.ndarray) -> np.ndarray:
        """Whether each reading averages only over power from the window."""
        ends_s = times_s - self.lag_s
        return (ends_s >= self.widths_s[-1]) & (ends_s <= timeline.window_s)


class SensorFit:
    """Least-squares search for the sensor through which one power level per phase, and a slow drift, fit the samples.

    Attributes:
        best_sensor: The sensor with the smallest residual.
        explained: The fraction of the power's variance that its fit explains.
        plausible: Sensors that fit almost as well. There are many if power changes within the phases, which leaves a
            large residual whatever the sensor.
    """

    def __init__(self, timeline: Timeline, times_s: np.ndarray, watts: np.ndarray) -> None:
        candidates = initial_grid(timeline.window_s)
        reach_s = max(sensor.lag_s + sensor.widths_s[-1] for sensor in candidates)
        inside = np.flatnonzero((times_s >= reach_s) & (times_s <= timeline.window_s))
        inside = inside[:: max(1, len(inside) // MAX_SAMPLES)]
        times_s, self._watts = times_s[inside], watts[inside] - watts[inside].mean()
        position = 2 * times_s / timeline.window_s - 1
        # A machine that warms up uses more power in every phase: linear and quadratic drift, in columns.
        self._drift = np.stack([position, position**2 - 1 / 3], axis=1)
        spent_s = lru_cache(SHIFTS)(lambda age_us: timeline.spent_s(times_s - age_us / 1e6))
        self._spent_s = lambda age_s: spent_s(round(1e6 * age_s))
        residuals = self._search(candidates)
        self.best_sensor = min(residuals, key=residuals.__getitem__)
        unexplained, least = self._unexplained(self.best_sensor), residuals[self.best_sensor]
        self.explained = 1 - least / max(float((self._watts**2).sum()), 1e-12)
        independent = correlation_length(unexplained)
        most = max(least + PLAUSIBLE_VARIANCES * unexplained.var() * independent, PLAUSIBLE_RESIDUAL * least)
        self.plausible = [sensor for sensor, residual in residuals.items() if residual <= most]

    def _search(self, candidates: Iterable[Sensor]) -> dict[Sensor, float]:
        """Compute the residuals of a grid of sensors, and of finer grids around the best of them."""
        residuals = {sensor: self.residual(sensor) for sensor in candidates}
        leaders: dict[Sensor, Sensor] = {}  # with different averaging times; periodic steps fit several of them
        for sensor in sorted(residuals, key=residuals.__getitem__):
            leaders.setdefault(sensor._replace(lag_s=0.0), sensor)
        for leader in list(leaders.values())[:REFINED_SENSORS]:
            residuals |= {sensor: self.residual(sensor) for sensor in refined_grid(leader, REFINEMENTS[0])}
        best = min(residuals, key=residuals.__getitem__)
        return residuals | {sensor: self.residual(sensor) for sensor in refined_grid(best, REFINEMENTS[1])}

    def _unexplained(self, sensor: Sensor) -> np.ndarray:
        columns = np.hstack([sensor.mean_shares(self._spent_s), self._drift])
        columns -= columns.mean(axis=0)
        gram = columns.T @ columns
        gram += 1e-9 * np.trace(gram) * np.eye(len(gram))  # shares sum to 1, and phases may have no time
        unexplained: np.ndarray = self._watts - columns @ np.linalg.solve(gram, columns.T @ self._watts)
        return unexplained

    def residual(self, sensor: Sensor) -> float:
        return float((self._unexplained(sensor) ** 2).sum())


def initial_grid(window_s: float) -> list[Sensor]:
    """List the sensors that a window of this length can distinguish."""
    most_s = MAX_WINDOW_FRACTION * window_s
    means = [Sensor(averaging_s) for averaging_s in AVERAGING_S if averaging_s <= max(most_s, AVERAGING_S[0])]
    filters = [Sensor(averaging_s, is_filter=True) for averaging_s in FILTERS_S if averaging_s <= most_s]
    return [
        sensor._replace(lag_s=float(lag_s))
        for sensor in (*means, *filters)
        for lag_s in np.arange(0.0, min(MAX_LAG_S, most_s), _lag_step_s(sensor))
    ]


def refined_grid(best: Sensor, closer: float) -> list[Sensor]:
    """List sensors around the best one, with slightly other averaging times and lags."""
    steps = (-2, -1, 0, 1, 2)
    centers_s = [best.center_s + step * closer * _lag_step_s(best) for step in steps]
    averagings_s = [best.averaging_s * (1 + closer) ** step for step in steps]
    return [
        Sensor(wide_s, max(0.0, center_s - wide_s / 2), best.is_filter)
        for wide_s in averagings_s
        for center_s in centers_s
    ]


def _lag_step_s(sensor: Sensor) -> float:
    return LAG_STEPS_S[2 if sensor.is_filter else bisect_left((0.03, 0.4), sensor.averaging_s)]


def correlation_length(residuals: np.ndarray) -> float:
    """Number of samples per independent residual, 1 for white noise: the integrated autocorrelation time.

    The autocorrelation is the inverse transform of the power spectrum (Wiener-Khinchin theorem), summed up to the first
    lag at which it is negligible.
    """
    spectrum = np.fft.rfft(residuals - residuals.mean(), 2 * len(residuals))
    products = np.fft.irfft(abs(spectrum) ** 2)[: max(2, len(residuals) // 4)]
    if not products[0] > 0:
        return 1.0
    correlation = products / products[0]
    independent = correlation < 0.05
    return float(1 + 2 * correlation[1 : independent.argmax() if independent.any() else None].sum())
