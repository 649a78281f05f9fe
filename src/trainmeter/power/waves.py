"""Known waves: what the method makes of windows like this one whose energy by phase is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from trainmeter.power.levels import Equations, solve
from trainmeter.power.sensor import Search, Sensor, correlated, trend
from trainmeter.power.timeline import Timeline

WAVES = 40
OFF_SHARE, OFF_S = 0.03, 0.0005
"""How exactly a sensor is known at best: a share of its averaging time, and seconds."""


def errors(
    timeline: Timeline,
    search: Search,
    equations: Callable[[Sensor], Equations],
    times_s: np.ndarray,
    watts: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """The error of each phase's energy on each of WAVES known waves, in half widths of the interval given for it."""
    waves, known_j = make(timeline, search, equations, times_s, watts, rng)
    sensors = search.best(waves)
    missed = np.empty_like(known_j)
    for wave in sorted(range(WAVES), key=sensors.__getitem__):
        energy_j, half_width_j, _ = solve(equations(sensors[wave]), waves[:, wave], known_j[wave].sum(), rng)
        missed[wave] = abs(energy_j - known_j[wave]) / half_width_j
    return missed


def make(
    timeline: Timeline,
    search: Search,
    equations: Callable[[Sensor], Equations],
    times_s: np.ndarray,
    watts: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Waves, in columns, sampled when the samples were, with their noise and in their steps; and their joules by phase.

    Each has the levels that the samples have through one of the sensors that may be the one, and is seen by a sensor a
    little unlike it. Every other wave's drift multiplies its power rather than adds to it, and every other pair of
    waves is seen by a sensor that fades.
    """
    phases = len(timeline.columns_s)
    drift = trend(times_s, timeline.window_s)
    waves, known_j = [], []
    for wave, sensor in enumerate(sorted(search.alike[i] for i in rng.integers(0, len(search.alike), WAVES))):
        solved = equations(sensor)
        levels_w = solved.levels(watts)
        by_phase, by_drift = levels_w[:phases], levels_w[phases:]
        mean_w = by_phase @ timeline.columns_s / timeline.window_s
        unlike = _unlike(sensor, rng)
        shares = unlike.shares(timeline, times_s)
        power_w = shares @ by_phase
        multiplies = wave % 2
        waves.append(power_w + drift @ by_drift * (power_w / mean_w if multiplies else 1))
        known_j.append(
            solved.joules[:, :phases] @ by_phase
            + solved.joules[:, phases:] @ by_drift * (by_phase / mean_w if multiplies else 1)
        )
    return _rounded_as(
        watts, np.column_stack(waves) + _noise(timeline, search.found, equations, times_s, watts, rng)
    ), np.array(known_j)


def _noise(timeline, sensor, equations, times_s, watts, rng):
    columns = np.hstack([sensor.shares(timeline, times_s), trend(times_s, timeline.window_s)])
    residuals = (watts - columns @ equations(sensor).levels(watts))[sensor.within(timeline, times_s)]
    block = min(math.ceil(2 * correlated(residuals)), len(residuals) // 5)
    first = rng.integers(0, len(residuals), (WAVES, -(-len(times_s) // block)))
    drawn = (first[:, :, None] + np.arange(block)).reshape(WAVES, -1)[:, : len(times_s)] % len(residuals)
    return (residuals - residuals.mean())[drawn].T


def _unlike(sensor: Sensor, rng: np.random.Generator) -> Sensor:
    longer_s, later_s = rng.uniform(-1, 1, 2) * (OFF_SHARE * sensor.averaging_s + OFF_S)
    averaging_s = max(sensor.averaging_s + longer_s, OFF_S / 10)
    return sensor.like(averaging_s, sensor.center_s + later_s)


def _rounded_as(watts: np.ndarray, waves: np.ndarray) -> np.ndarray:
    """In steps as large as the smallest between samples, where they have steps at all."""
    step_w = np.diff(np.unique(watts)).min(initial=np.inf)
    return np.round(waves / step_w) * step_w if 1e-6 < step_w < np.inf else waves
