"""Known waves: what the method makes of windows like this one, of which the energy by phase is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trainmeter.power.levels import Equations, Solution, solve
from trainmeter.power.sensor import Search, Sensor, correlated, trend
from trainmeter.power.timeline import Timeline

WAVES = 40
OFF_SHARE, OFF_S = 0.03, 0.0005
"""How exactly a sensor can be known at best: a share of its averaging time, and seconds."""


class Case(NamedTuple):
    """A window and its samples, the search for their sensor, and the equations of the samples through a sensor."""

    timeline: Timeline
    times_s: np.ndarray
    watts: np.ndarray
    gross_j: float
    search: Search
    equations: Callable[[Sensor], Equations]


class Trial(NamedTuple):
    """By known wave and phase: by how much its energy was missed, and the half width that its noise gave."""

    missed_j: np.ndarray
    half_width_j: np.ndarray

    def widened(self, half_width_j: np.ndarray) -> np.ndarray:
        """At least what 95 of 100 known waves are missed by: beside noise that is a sensor not known exactly."""
        return np.maximum(half_width_j, np.quantile(self.missed_j, 0.95, axis=0))

    def coverage(self) -> float:
        """How often the intervals of every other wave, widened by the waves between them, hold the truth."""
        widened_j = Trial(self.missed_j[::2], self.half_width_j[::2]).widened(self.half_width_j[1::2])
        return float((self.missed_j[1::2] <= widened_j).mean())


def trial(case: Case, rng: np.random.Generator) -> Trial:
    """Solves WAVES known waves, whose sensors are looked for anew, as the window itself is solved."""
    waves, known_j = make(case, rng)
    sensors = case.search.best(waves)
    solutions: dict[int, Solution] = {}
    for wave in sorted(range(WAVES), key=sensors.__getitem__):
        solutions[wave] = solve(case.equations(sensors[wave]), waves[:, wave], case.gross_j, rng)
    in_order = [solutions[wave] for wave in range(WAVES)]
    energy_j = np.array([solution.energy_j for solution in in_order])
    return Trial(abs(energy_j - known_j), np.array([solution.half_width_j for solution in in_order]))


def make(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Waves, in columns, sampled when the samples were, with their noise and in their steps; and their joules by phase.

    Each has the levels of the samples through one of the sensors that may be the one, and is seen by a sensor a little
    unlike that. In every other pair the drift multiplies the power rather than adds to it.
    """
    drift = trend(case.times_s, case.timeline.window_s)
    waves, known_j = [], []
    for wave, drawn in enumerate(sorted(rng.integers(0, len(case.search.alike), WAVES))):
        sensor = case.search.alike[drawn]
        equations = case.equations(sensor)
        phases = len(equations.joules)
        phases_w, drift_w = np.split(equations.levels(case.watts), [phases])
        phases_j, drift_j = equations.joules[:, :phases] @ phases_w, equations.joules[:, phases:] @ drift_w
        mean_w = phases_j.sum() / case.timeline.window_s
        power_w = _unlike(sensor, rng).shares(case.timeline, case.times_s) @ phases_w
        multiplies = wave // 2 % 2
        waves.append(power_w + drift @ drift_w * (power_w / mean_w if multiplies else 1))
        joules = phases_j + drift_j * (phases_w / mean_w if multiplies else 1)
        known_j.append(joules * (case.gross_j / joules.sum()))
    return _rounded_like(case.watts, np.column_stack(waves) + _noise(case, rng)), np.array(known_j)


def _noise(case: Case, rng: np.random.Generator) -> np.ndarray:
    """The residuals of the samples, for each wave in other blocks of them, as long as they remember."""
    sensor = case.search.found
    columns = np.hstack([sensor.shares(case.timeline, case.times_s), trend(case.times_s, case.timeline.window_s)])
    residuals = case.watts - columns @ case.equations(sensor).levels(case.watts)
    residuals = residuals[sensor.within(case.timeline, case.times_s)]
    block = min(math.ceil(2 * correlated(residuals)), len(residuals) // 5)
    first = rng.integers(0, len(residuals), (WAVES, -(-len(case.times_s) // block)))
    drawn = (first[:, :, None] + np.arange(block)).reshape(WAVES, -1)[:, : len(case.times_s)] % len(residuals)
    return (residuals - residuals.mean())[drawn].T


def _unlike(sensor: Sensor, rng: np.random.Generator) -> Sensor:
    longer_s, later_s = rng.uniform(-1, 1, 2) * (OFF_SHARE * sensor.averaging_s + OFF_S)
    return sensor.like(max(sensor.averaging_s + longer_s, OFF_S / 10), sensor.center_s + later_s)


def _rounded_like(watts: np.ndarray, waves: np.ndarray) -> np.ndarray:
    """In steps as large as the smallest between samples, where they have steps at all."""
    step_w = np.diff(np.unique(watts)).min(initial=np.inf)
    return np.round(waves / step_w) * step_w if 1e-6 < step_w < np.inf else waves
