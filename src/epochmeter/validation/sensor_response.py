"""The response of a sensor or counter, measured with a load whose times are known.

The readings are fitted by least squares: power of the load and of the pause, a slow drift, and the sensor's averaging
time and lag (`power/phases/sensor_model.py`). One that holds its readings is fitted at its renewals.
"""

from typing import NamedTuple

import numpy as np

from epochmeter.power.instrument import Domain
from epochmeter.power.meters.rails import FILTER_WIDTH
from epochmeter.power.phases.sensor_model import Sensor, SensorFit, refined_grid
from epochmeter.power.phases.step_timeline import Timeline
from epochmeter.power.renewals import find_renewals, one_per_renewal
from epochmeter.power.uncertainty import Response, renewal_s
from epochmeter.validation.switched_load import Recording

MIN_EXPLAINED = 0.8  # fraction of the variance of the power that the fit must explain
MIN_SWING = 0.05  # smallest difference of the power of load and pause, as a fraction of the load's
MIN_READINGS = 100
FINER = (0.06, 0.02, 0.007)  # step sizes of the last searches, as fractions of those of the first one
MIN_DISTINCT, WHOLE = 20, 0.01  # different readings that show a resolution, and what is left of a multiple of it
CONTINUOUS = 0.05  # difference of averaging time and period, as a fraction, up to which a sensor measures all the time
EACH_READ = 1.5  # a counter that is renewed within this many readings is as fast as it is read


class UnknownResponseError(Exception):
    """The readings do not show the response; the message is the reason."""


class Measured(NamedTuple):
    """A measured response, and the power through it.

    Attributes:
        response: With `renewal_s` 0 if each reading was a new one.
        is_held: Whether the sensor holds its readings, so that its renewals were seen.
        step: Smallest difference of two readings: joules of a counter, watts of a power.
        drift_w: Linear and quadratic change of the power of both phases, over the window from -1 to 1.
        explained: Fraction of the variance of the power that the fit explains.
    """

    response: Response
    is_held: bool
    step: float
    load_w: float
    pause_w: float
    drift_w: tuple[float, float]
    window_s: float
    explained: float

    def joules(self, timeline: Timeline, begin_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
        """Return the energy between moments, in seconds since the recording began, by the fit and the load's times."""
        spent = timeline.spent_s(end_s) - timeline.spent_s(begin_s)
        steady_j = spent @ np.array([self.load_w, self.pause_w])
        drifted: np.ndarray = steady_j + self._drifted_j(end_s) - self._drifted_j(begin_s)
        return drifted

    def _drifted_j(self, at_s: np.ndarray) -> np.ndarray:
        """Integrate the drift, which is a polynomial of the elapsed fraction of the window, from -1 to 1."""
        linear_w, square_w = self.drift_w
        position = 2 * at_s / self.window_s - 1
        return self.window_s / 2 * (linear_w * position**2 / 2 + square_w * (position**3 / 3 - position / 3))


def measure_response(recording: Recording, name: str, domain: Domain) -> Measured:
    """Measure the response of an instrument; UnknownResponseError with the reason if its readings do not show it."""
    readings, timeline = recording.readings[name], recording.timeline
    _require(len(readings.times_s) >= MIN_READINGS, f"only {len(readings.times_s)} readings.")
    times_s, values = readings.times_s - recording.begun_s, readings.values
    is_counter = domain.source == "counter"
    step = resolution(values, is_counter=is_counter)
    fitted_s, watts, held_s = _powers(times_s, values, is_counter=is_counter)
    _require(len(fitted_s) >= MIN_READINGS, f"only {len(fitted_s)} different readings.")
    sensor = fit_sensor(timeline, fitted_s, watts)
    (load_w, pause_w), drift_w, explained = solve(timeline, sensor, fitted_s, watts)
    _require(
        load_w - pause_w >= MIN_SWING * abs(load_w),
        f"the load changes the power by too little: {pause_w:.3g} W without it, {load_w:.3g} W with it.",
    )
    _require(explained >= MIN_EXPLAINED, f"load and pause explain only {explained:.0%} of the changes of the power.")
    response = as_response(sensor, held_s)
    return Measured(response, held_s > 0, step, load_w, pause_w, drift_w, timeline.window_s, explained)


def _powers(times_s: np.ndarray, values: np.ndarray, *, is_counter: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Return power over time, and how long the instrument holds a reading; 0 if each reading is a new one."""
    renewed_s, period_s = _renewals(times_s, values)
    if renewed_s is not None:
        samples, times_s = one_per_renewal(times_s, renewed_s)
        values = values[samples]
    if not is_counter:
        return times_s, values, period_s
    spans_s = np.diff(times_s)
    usual_s = float(np.median(spans_s))
    whole = abs(spans_s - usual_s) < 0.5 * usual_s  # a tick that was not seen is in a longer span
    increases = np.diff(values)
    _require(not np.any(increases < 0), "the counter ran backwards.")
    return times_s[1:][whole], (increases / spans_s)[whole], period_s


def _renewals(times_s: np.ndarray, values: np.ndarray) -> tuple[np.ndarray | None, float]:
    """Return when the instrument renewed its reading, and the period; None and 0 if each reading is a new one."""
    estimated_s = renewal_s(times_s, values)
    _require(estimated_s is not None, "its readings do not change.")
    assert estimated_s is not None
    if estimated_s < EACH_READ * 2 * float(np.median(np.diff(times_s))):
        return None, 0.0
    renewed_s = find_renewals(times_s, values, estimated_s, is_estimated=True)
    _require(renewed_s is not None, "its readings do not show when they are renewed.")
    assert renewed_s is not None
    return renewed_s, float(np.diff(renewed_s).mean())


def fit_sensor(timeline: Timeline, times_s: np.ndarray, watts: np.ndarray) -> Sensor:
    """Return the sensor that fits the readings best, more closely than the search for phases needs it."""
    fit = SensorFit(timeline, times_s, watts)
    best, least = fit.best_sensor, fit.residual(fit.best_sensor)
    for closer in FINER:
        for sensor in refined_grid(best, closer):
            if (residual := fit.residual(sensor)) < least:
                best, least = sensor, residual
    return best


def solve(
    timeline: Timeline, sensor: Sensor, times_s: np.ndarray, watts: np.ndarray
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Return the power of load and pause, linear and quadratic drift, and the fraction of the variance explained."""
    within = sensor.within(timeline, times_s)
    times_s, watts = times_s[within], watts[within]
    position = 2 * times_s / timeline.window_s - 1
    columns = np.column_stack([sensor.shares(timeline, times_s), position, position**2 - 1 / 3])
    solution, *_ = np.linalg.lstsq(columns, watts, rcond=None)
    unexplained = watts - columns @ solution
    explained = 1 - float(unexplained.var()) / max(float(watts.var()), 1e-12)
    load_w, pause_w, linear_w, square_w = (float(value) for value in solution)
    return (load_w, pause_w), (linear_w, square_w), explained


def as_response(sensor: Sensor, held_s: float) -> Response:
    """Return the response of a sensor that was fitted; `held_s`: at its renewals, else to all of its readings."""
    if sensor.is_filter:  # docs/energy.md: described by a moving mean with the same mean age of the power
        constant_s = sensor.averaging_s / 2
        memory_s = FILTER_WIDTH * constant_s
        lag_s = sensor.lag_s + constant_s - memory_s / 2
        return Response(max(0.0, memory_s - held_s), lag_s, held_s, is_filter=True)
    is_continuous = held_s and abs(sensor.averaging_s / held_s - 1) < CONTINUOUS
    return Response(held_s if is_continuous else sensor.averaging_s, sensor.lag_s, held_s)


def resolution(values: np.ndarray, *, is_counter: bool) -> float:
    """Return the resolution of readings; 0 if it is unknown.

    A counter advances by much more than its resolution: it is the largest unit of which all readings are multiples.
    Power is rounded by a sensor in units of its own: it is one of the smallest differences.
    """
    distinct = np.unique(values)
    if len(distinct) < MIN_DISTINCT:
        return 0.0
    if is_counter:
        units = (digit * 10.0**power for power in range(2, -7, -1) for digit in (5, 2, 1))
        return next((unit for unit in units if np.abs(distinct / unit - np.round(distinct / unit)).max() < WHOLE), 0.0)
    gaps = np.diff(distinct)
    return float(np.percentile(gaps[gaps > 1e-9 * abs(distinct[-1])], 5))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UnknownResponseError(otherwise)
