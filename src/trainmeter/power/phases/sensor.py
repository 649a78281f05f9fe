"""What a sensor does to power before it is read: it averages, and it lags. Estimated from the samples it gave."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from trainmeter.power.phases.timeline import Timeline

AVERAGING_S = (0.001, 0.01, 0.02, 0.04, 0.06, 0.08, 0.11, 0.16, 0.22, 0.32, 0.45, 0.64, 0.9, 1.28, 1.8, 2.56)
LAG_STEPS_S, LAG_MOST_S = (0.005, 0.01, 0.04), 0.3
"""From each lag to the next: for a sensor that averages over next to nothing, for one that does not, for a slow one."""
LONGEST_SHARE = 0.05
"""Of the window: no sensor is looked for that averages over more or lags by more."""
MOST_SAMPLES = 1000
"""What the search looks at, from all over the window."""
SHIFTS = 512
"""How many shifts of the samples are kept, since sensors share them."""
CLOSER = (0.25, 0.06)
"""The steps of each closer look around the best sensor so far, as shares of those of the first look."""
LEADERS = 3
"""How many of the first look are looked at closer."""
ALIKE = 6.0
"""How much less a sensor may explain and still be the one, in variances of what is unexplained: 95 % of the time."""
FADING = (0.0, *(math.log(5 / left) for left in (4, 3, 2, 1)), math.log(5) + 2)
"""An exponential in five stretches of the same weight, by their ends in time constants; the last has the right mean."""
TIME_CONSTANT = 12**-0.5
"""Of a sensor that fades, as a share of what a plain one averages over that spreads power as much."""


class Sensor(NamedTuple):
    """A reading is the mean of the power from `lag_s + averaging_s` to `lag_s` before it.

    Or, of a sensor that `fades`, of all the power until `lag_s` before it, with exponentially less weight of the older.
    """

    averaging_s: float
    lag_s: float
    fades: bool = False

    @property
    def ends_s(self) -> np.ndarray:
        """How old the power is at the ends of the stretches that a reading is the mean of."""
        if self.fades:
            return self.lag_s + self.averaging_s * TIME_CONSTANT * np.array(FADING)
        return self.lag_s + self.averaging_s * np.array([0.0, 1.0])

    @property
    def center_s(self) -> float:
        """How old the power is, on average, that a reading tells of."""
        return self.lag_s + self.averaging_s * (TIME_CONSTANT if self.fades else 0.5)

    def like(self, averaging_s: float, center_s: float) -> Sensor:
        """Another of this kind; none tells of the future."""
        lag_s = center_s - Sensor(averaging_s, 0.0, self.fades).center_s
        return Sensor(averaging_s, max(0.0, lag_s), self.fades)

    def shares(self, timeline: Timeline, times_s: np.ndarray) -> np.ndarray:
        """The share of each phase, in columns, of the time that readings at these moments are means of."""
        return self.mean(lambda age_s: timeline.spent_s(times_s - age_s))

    def mean(self, until: Callable[[float], np.ndarray]) -> np.ndarray:
        """Of what had come to so much `until` so many seconds before each reading."""
        ends_s = self.ends_s
        weights = 1 / np.diff(ends_s) / (len(ends_s) - 1)
        sums = [until(end_s) for end_s in ends_s.tolist()]
        return sum(weight * (newer - older) for weight, (newer, older) in zip(weights, pairwise(sums), strict=True))

    def within(self, timeline: Timeline, times_s: np.ndarray) -> np.ndarray:
        """Which readings tell of the window and of nothing else."""
        return (times_s >= self.ends_s[-1]) & (times_s <= timeline.window_s + self.lag_s)


class Search:
    """Looks for the sensor through which the phases explain most of the power, beside a slow drift.

    `found` is the best; `alike` are those that explain about as much, and may be the one as well.
    """

    def __init__(self, timeline: Timeline, times_s: np.ndarray, watts: np.ndarray) -> None:
        sensors = plausible(timeline.window_s)
        reach_s = max(sensor.ends_s[-1] for sensor in sensors)
        told = np.flatnonzero((times_s >= reach_s) & (times_s <= timeline.window_s))
        self._looked_at = told[:: max(1, len(told) // MOST_SAMPLES)]
        self._drift = trend(times_s[self._looked_at], timeline.window_s)
        self._until = lru_cache(SHIFTS)(lambda age_us: timeline.spent_s(times_s[self._looked_at] - age_us / 1e6))
        self._sensors = sensors
        self._columns, self._inverses = self._see(sensors)
        for leader in self._leaders(watts):
            self._look(near(leader, CLOSER[0]))
        self._look(near(self.best(watts[:, None])[0], CLOSER[1]))
        self._look(fading(self.best(watts[:, None])[0]))
        for closer in CLOSER:
            self._look(near(self.best(watts[:, None])[0], closer))
        explained = self._explained(watts[:, None])[:, 0]
        best = explained.argmax()
        columns, power = self._columns[best], self._centered(watts)
        unexplained = power - self._inverses[best] @ (columns @ power) @ columns
        enough = explained[best] - ALIKE * unexplained.var() * correlated(unexplained)
        self.found = self._sensors[best]
        self.alike = [self._sensors[index] for index in np.flatnonzero(explained >= enough)]

    def best(self, waves: np.ndarray) -> list[Sensor]:
        """The best for each of the waves of power, which stand in columns and were sampled as the samples were."""
        return [self._sensors[index] for index in self._explained(waves).argmax(axis=0)]

    def _explained(self, waves: np.ndarray) -> np.ndarray:
        """The sum of squares that the phases and the drift explain, by sensor and wave."""
        sensors, columns, times = self._columns.shape
        products = (self._columns.reshape(-1, times) @ self._centered(waves)).reshape(sensors, columns, -1)
        return (products * (self._inverses @ products)).sum(axis=1)

    def _centered(self, waves: np.ndarray) -> np.ndarray:
        waves = waves[self._looked_at]
        return waves - waves.mean(axis=0)

    def _leaders(self, watts: np.ndarray) -> list[Sensor]:
        """The best of each averaging time, of those that explain most: steps that repeat favor several."""
        leaders: dict[float, Sensor] = {}
        for index in np.argsort(-self._explained(watts[:, None])[:, 0]):
            leaders.setdefault(self._sensors[index].averaging_s, self._sensors[index])
        return list(leaders.values())[:LEADERS]

    def _look(self, sensors: list[Sensor]) -> None:
        columns, inverses = self._see(sensors)
        self._sensors += sensors
        self._columns = np.concatenate([self._columns, columns])
        self._inverses = np.concatenate([self._inverses, inverses])

    def _see(self, sensors: list[Sensor]) -> tuple[np.ndarray, np.ndarray]:
        """For each sensor what it makes of the phases and the drift, in rows, and the inverse of their products."""
        seen = [
            np.hstack([sensor.mean(lambda age_s: self._until(round(1e6 * age_s))), self._drift]) for sensor in sensors
        ]
        columns = np.ascontiguousarray(np.stack(seen).transpose(0, 2, 1))
        return columns, np.linalg.pinv(columns @ columns.transpose(0, 2, 1), rcond=1e-9, hermitian=True)


def plausible(window_s: float) -> list[Sensor]:
    """Sensors of all kinds that a window of this length can tell apart."""
    most_s = LONGEST_SHARE * window_s
    return [
        Sensor(averaging_s, float(lag_s))
        for averaging_s in AVERAGING_S
        if averaging_s <= max(most_s, AVERAGING_S[0])
        for lag_s in np.arange(0.0, min(LAG_MOST_S, most_s), _lag_step_s(averaging_s))
    ]


def near(best: Sensor, closer: float) -> list[Sensor]:
    """Sensors that average a little shorter or longer than the best, or are a little quicker or slower."""
    steps = (-2, -1, 0, 1, 2)
    averagings_s = [best.averaging_s * (1 + closer) ** step for step in steps]
    centers_s = [best.center_s + step * closer * _lag_step_s(best.averaging_s) for step in steps]
    return [best.like(averaging_s, center_s) for averaging_s in averagings_s for center_s in centers_s]


def fading(best: Sensor) -> list[Sensor]:
    """Sensors that fade and may look like the best, plain one, which is too short for them the faster the steps are."""
    lags_s = [max(0.0, best.lag_s + step * _lag_step_s(best.averaging_s) / 4) for step in (-1, 0, 1)]
    averagings_s = [best.averaging_s * longer for longer in (0.9, 1.2, 1.7, 2.4, 3.5, 5.0, 7.0)]
    return [Sensor(averaging_s, lag_s, fades=True) for averaging_s in averagings_s for lag_s in lags_s]


def _lag_step_s(averaging_s: float) -> float:
    return LAG_STEPS_S[bisect_left((0.03, 0.4), averaging_s)]


def trend(times_s: np.ndarray, window_s: float) -> np.ndarray:
    """A slow drift and its bend, in columns: a machine that warms up draws more in every phase."""
    place = 2 * times_s / window_s - 1
    return np.stack([place, place**2 - 1 / 3], axis=1)


def correlated(residuals: np.ndarray) -> float:
    """How many residuals in a row tell the same: 1 where each is a surprise."""
    spectrum = np.fft.rfft(residuals - residuals.mean(), 2 * len(residuals))
    products = np.fft.irfft(abs(spectrum) ** 2)[: max(2, len(residuals) // 4)]
    if not products[0] > 0:
        return 1.0
    likeness = products / products[0]
    apart = likeness < 0.05
    return float(1 + 2 * likeness[1 : apart.argmax() if apart.any() else None].sum())
