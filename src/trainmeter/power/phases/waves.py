"""Known waves: what the method makes of windows like this one, of which the energy by phase is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trainmeter.power.phases.levels import Equations, Solution, solve
from trainmeter.power.phases.sensor import Search, Sensor, correlated, trend
from trainmeter.power.phases.timeline import Timeline

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
    drift, noise, step_w = trend(case.times_s, case.timeline.window_s), _noise(case), _step_w(case.watts)
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
        power_w += drift @ drift_w * (power_w / mean_w if multiplies else 1)
        power_w += noise(rng)
        waves.append(np.round(power_w / step_w) * step_w if step_w else power_w)
        joules = phases_j + drift_j * (phases_w / mean_w if multiplies else 1)
        known_j.append(joules * (case.gross_j / joules.sum()))
    return np.column_stack(waves), np.array(known_j)


def _noise(case: Case) -> Callable[[np.random.Generator], np.ndarray]:
    """Draws the residuals of the samples anew, in blocks as long as they remember."""
    sensor = case.search.found
    columns = np.hstack([sensor.shares(case.timeline, case.times_s), trend(case.times_s, case.timeline.window_s)])
    residuals = case.watts - columns @ case.equations(sensor).levels(case.watts)
    residuals = residuals[sensor.within(case.timeline, case.times_s)]
    residuals -= residuals.mean()
    block = min(math.ceil(2 * correlated(residuals)), len(residuals) // 5)

    def draw(rng: np.random.Generator) -> np.ndarray:
        first = rng.integers(0, len(residuals), -(-len(case.times_s) // block))
        drawn = (first[:, None] + np.arange(block)).ravel()[: len(case.times_s)]
        return residuals[drawn % len(residuals)]

    return draw


def _unlike(sensor: Sensor, rng: np.random.Generator) -> Sensor:
    longer_s, later_s = rng.uniform(-1, 1, 2) * (OFF_SHARE * sensor.averaging_s + OFF_S)
    return sensor.like(max(sensor.averaging_s + longer_s, OFF_S / 10), sensor.center_s + later_s)


def _step_w(watts: np.ndarray) -> float | None:
    """The smallest between samples; None where they have no steps."""
    step_w = float(np.diff(np.unique(watts)).min(initial=np.inf))
    return step_w if 1e-6 < step_w < np.inf else None
