"""What a sensor does to power before it is read: it averages, and it lags. Estimated from the samples it gave."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from trainmeter.power.timeline import Timeline

AVERAGING_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
LAG_STEP_S, LAG_MOST_S = 0.005, 0.3
LONGEST_SHARE = 0.05
"""Of the window: no sensor is looked for that averages over more or lags by more."""
MOST_SAMPLES = 2000
"""What the search looks at, from all over the window."""
CLOSER = (0.25, 0.125, 0.03)
"""The steps of each closer look around the best sensor so far, as shares of those of the first look."""
ALIKE = 6.0
"""How much less a sensor may explain and still be the one, in variances of what is unexplained: 95 % of the time."""
FADING = (0.0, *(math.log(5 / left) for left in (4, 3, 2, 1)), math.log(5) + 2)
"""An exponential in five stretches of the same weight, by their ends in time constants; the last has the right mean."""
TIME_CONSTANT = 12**-0.5
"""Of a sensor that forgets exponentially, as a share of what one averages over that spreads power as much."""


class Sensor(NamedTuple):
    """A reading is the mean of the power from `lag_s + averaging_s` to `lag_s` before it.

    Or, of a sensor that fades, the mean of all power until `lag_s` before it, the less of it the older it is.
    """

    averaging_s: float
    lag_s: float
    fades: bool = False

    @property
    def ends_s(self) -> np.ndarray:
        """How old the power is at the ends of the stretches that a reading is the mean of."""
        if self.fades:
            return self.lag_s + self.averaging_s * TIME_CONSTANT * np.array(FADING)
        return np.array([self.lag_s, self.lag_s + self.averaging_s])

    @property
    def center_s(self) -> float:
        """How old the power is, on average, that a reading tells of."""
        return self.lag_s + self.averaging_s * (TIME_CONSTANT if self.fades else 0.5)

    def shares(self, timeline: Timeline, times_s: np.ndarray) -> np.ndarray:
        """The share of each phase, in columns, in what readings at these moments are means of."""
        ends_s = self.ends_s
        spent_s = [timeline.spent_s(times_s - end_s) for end_s in ends_s]
        means = [(newer - older) / lasts_s for newer, older, lasts_s in zip(spent_s, spent_s[1:], np.diff(ends_s))]
        return sum(means[1:], means[0]) / len(means)

    def like(self, averaging_s: float, center_s: float) -> Sensor:
        """One of the same kind; it never tells of the future."""
        early = Sensor(averaging_s, 0.0, self.fades).center_s
        return Sensor(averaging_s, max(0.0, center_s - early), self.fades)

    def within(self, timeline: Timeline, times_s: np.ndarray) -> np.ndarray:
        """Which readings tell of the window and of nothing else."""
        return (times_s >= self.ends_s[-1]) & (times_s <= timeline.window_s + self.lag_s)


class Search:
    """Looks for the sensor through which the phases explain most of the power, beside a slow drift.

    `found` is the best; `alike` are those that explain about as much, and may be the one as well.
    """

    def __init__(self, timeline: Timeline, times_s: np.ndarray, watts: np.ndarray) -> None:
        sensors = plausible(timeline.window_s)
        longest_s = max(sensor.lag_s + sensor.averaging_s for sensor in sensors)
        seen = np.flatnonzero((times_s >= longest_s) & (times_s <= timeline.window_s))
        self._looked_at = seen[:: max(1, len(seen) // MOST_SAMPLES)]
        self._timeline, self._times_s = timeline, times_s[self._looked_at]
        self._sensors = sensors
        self._columns, self._inverses = self._see(sensors)
        for closer in CLOSER:
            self._look(near(self.best(watts[:, None])[0], closer))
            if closer == CLOSER[0]:
                self._look(fading(self.best(watts[:, None])[0]))
        explained = self._explained(watts[:, None])[:, 0]
        best = explained.argmax()
        power = self._centered(watts)
        residuals = power - self._inverses[best] @ self._columns[best] @ power @ self._columns[best]
        enough = explained[best] - ALIKE * residuals.var() * correlated(residuals)
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

    def _look(self, sensors: list[Sensor]) -> None:
        columns, inverses = self._see(sensors)
        self._sensors += sensors
        self._columns = np.concatenate([self._columns, columns])
        self._inverses = np.concatenate([self._inverses, inverses])

    def _see(self, sensors: list[Sensor]) -> tuple[np.ndarray, np.ndarray]:
        """For each sensor what it makes of the phases and the drift, in rows, and the inverse of their products."""
        drift = trend(self._times_s, self._timeline.window_s)
        seen = np.stack([np.hstack([sensor.shares(self._timeline, self._times_s), drift]).T for sensor in sensors])
        return seen, np.linalg.pinv(seen @ seen.transpose(0, 2, 1), rcond=1e-9, hermitian=True)


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
    averagings_s = [best.averaging_s * (1 + closer) ** steps for steps in (-2, -1, 0, 1, 2)]
    later_s = [steps * closer * _lag_step_s(best.averaging_s) for steps in (-2, -1, 0, 1, 2)]
    return [best.like(averaging_s, best.center_s + later) for averaging_s in averagings_s for later in later_s]


def fading(best: Sensor) -> list[Sensor]:
    """Sensors that fade and may look like the best: that is shorter the faster the steps, and no less late."""
    lags_s = [max(0.0, best.lag_s + steps * _lag_step_s(best.averaging_s) / 4) for steps in (-1, 0, 1)]
    times = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
    return [Sensor(best.averaging_s * t / TIME_CONSTANT / 2, lag_s, True) for t in times for lag_s in lags_s]


def _lag_step_s(averaging_s: float) -> float:
    return max(LAG_STEP_S, averaging_s / 4)


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
