"""How much power each phase of a window draws, from samples: the equations, their solution, and its error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trainmeter.power.phases.sensor import Sensor, correlated, trend
from trainmeter.power.phases.timeline import Timeline

REPLICATES, GROUPS = 200, 400
"""Of the bootstrap: how often rows are drawn, and into how many groups they are put for it."""


class Equations(NamedTuple):
    """`instruments' @ (rows(watts) - columns @ levels) = 0` gives the levels, `joules @ levels` the phases' energy.

    The levels are the watts of each phase, then of the drift and its bend; `rows` makes rows of sampled watts.
    """

    instruments: np.ndarray
    columns: np.ndarray
    joules: np.ndarray
    rows: Callable[[np.ndarray], np.ndarray]

    def levels(self, watts: np.ndarray) -> np.ndarray:
        """LinAlgError where the equations have no one solution."""
        return np.linalg.solve(self.instruments.T @ self.columns, self.instruments.T @ self.rows(watts))


def direct(timeline: Timeline, sensor: Sensor, times_s: np.ndarray) -> Equations:
    """Each sample is booked on the phases that lie nearer to it than to any other sample.

    What is booked on a phase holds some of the others' power, as far as the sensor and the sampling blur their edges.
    The columns say how much, so that to solve the equations undoes it.
    """
    within = sensor.within(timeline, times_s)
    times_s = times_s[within]
    shares = sensor.shares(timeline, times_s)
    return _equations(timeline, _booked_s(timeline, sensor, times_s), shares, times_s, lambda watts: watts[within])


def regression(timeline: Timeline, sensor: Sensor, times_s: np.ndarray, width_s: float) -> Equations:
    """The mean power of stretches of `width_s` by the shares of the phases in them.

    The stretches overlap by half and count most in their middle, so that a part of a step more or less at an end, where
    all depends on how exactly the sensor is known, counts for nothing.
    """
    within = sensor.within(timeline, times_s)
    times_s = times_s[within]
    booked_s = _booked_s(timeline, sensor, times_s)
    seconds = booked_s.sum(axis=1)
    taper = Taper(times_s, seconds, width_s)
    shares = taper.means(sensor.shares(timeline, times_s))
    return _equations(
        timeline,
        taper.means(booked_s / seconds[:, None]),
        shares,
        taper.means(times_s),
        lambda watts: taper.means(watts[within]),
    )


class Taper:
    """Means over stretches that overlap by half, each weighted by half a wave: nothing at its ends, most in between."""

    def __init__(self, times_s: np.ndarray, seconds: np.ndarray, width_s: float) -> None:
        halves = times_s / (width_s / 2)
        self._half = np.floor(halves).astype(int) - int(halves[0])
        self._seconds = seconds
        self._wave = seconds * np.cos(np.pi * (halves - int(halves[0])))
        weights = self._sums(np.ones(len(times_s)))
        self._full = weights > np.median(weights) / 2
        self._weights = weights[self._full]

    def means(self, values: np.ndarray) -> np.ndarray:
        """By stretch, of what was sampled; of each column where there are several."""
        if values.ndim > 1:
            return np.stack([self.means(column) for column in values.T], axis=1)
        return self._sums(values)[self._full] / self._weights

    def _sums(self, values: np.ndarray) -> np.ndarray:
        flat, wave = np.bincount(self._half, values * self._seconds), np.bincount(self._half, values * self._wave)
        sign = (-1.0) ** np.arange(len(flat) - 1)
        return flat[:-1] + flat[1:] - sign * (wave[:-1] + wave[1:])


def _booked_s(timeline: Timeline, sensor: Sensor, times_s: np.ndarray) -> np.ndarray:
    """The seconds of each phase that lie nearer to a sample than to any other, and not in a gap of the sampling."""
    seen_s = times_s - sensor.center_s
    reach_s = np.median(np.diff(seen_s))
    middles_s = (seen_s[1:] + seen_s[:-1]) / 2
    begins_s = np.maximum(np.append(-np.inf, middles_s), seen_s - reach_s)
    ends_s = np.minimum(np.append(middles_s, np.inf), seen_s + reach_s)
    return timeline.spent_s(ends_s) - timeline.spent_s(begins_s)


def _equations(
    timeline: Timeline,
    booked: np.ndarray,
    shares: np.ndarray,
    times_s: np.ndarray,
    rows: Callable[[np.ndarray], np.ndarray],
) -> Equations:
    drift = trend(times_s, timeline.window_s)
    return Equations(
        instruments=np.hstack([booked, drift * booked.sum(axis=1, keepdims=True)]),
        columns=np.hstack([shares, drift]),
        joules=np.hstack([np.diag(timeline.columns_s), timeline.window_s / booked.sum() * booked.T @ drift]),
        rows=rows,
    )


def resolution(equations: Equations) -> np.ndarray:
    """The part of each phase's own power in what `direct` books on it."""
    phases = len(equations.joules)
    booked, shares = equations.instruments[:, :phases], equations.columns[:, :phases]
    return (booked * shares).sum(axis=0) / booked.sum(axis=0)


def condition(equations: Equations) -> float:
    """1 where each phase's share varies by itself; large where they hardly vary, or only together."""
    return float(np.linalg.cond(equations.instruments / np.linalg.norm(equations.instruments, axis=0)))


def explained(equations: Equations, watts: np.ndarray) -> float:
    """The part of the power's variance beside the drift that the phases explain."""
    rows = equations.rows(watts)

    def unexplained(columns: np.ndarray) -> float:
        return float(np.var(rows - columns @ np.linalg.lstsq(columns, rows)[0]))

    drift = equations.columns[:, len(equations.joules) :]
    varies = unexplained(np.column_stack([np.ones(len(rows)), drift]))
    return 1 - unexplained(equations.columns) / varies if varies > 0 else 0.0


class Solution(NamedTuple):
    """By phase that has a column: its energy, the half width of that by the noise, and its energy by the samples alone.

    The samples' own is not scaled to the gross energy.
    """

    energy_j: np.ndarray
    half_width_j: np.ndarray
    sampled_j: np.ndarray


def solve(equations: Equations, watts: np.ndarray, gross_j: float, rng: np.random.Generator) -> Solution:
    """By a moving-block bootstrap over the rows, 95 %. LinAlgError where the equations have no one solution."""
    z, x, joules, rows = equations
    y = rows(watts)
    count, unknown = x.shape
    levels_w = equations.levels(watts)
    memory = correlated(y - x @ levels_w)
    size = -(-count // GROUPS)
    products = np.concatenate([z[:, :, None] * x[:, None, :], (z * y[:, None])[:, :, None]], axis=2)
    groups = np.add.reduceat(products, np.arange(0, count, size))
    block = max(1, min(math.ceil(max(2 * memory / size, len(groups) / 100)), len(groups) // 5))
    sums = np.cumsum(np.concatenate([np.zeros_like(groups[:1]), groups, groups[:block]]), axis=0)
    first = rng.integers(0, len(groups), (REPLICATES, -(-len(groups) // block)))
    drawn = (sums[first + block] - sums[first]).sum(axis=1)
    replicas_w = np.linalg.solve(drawn[:, :, :unknown], drawn[:, :, unknown:])[:, :, 0]
    sampled_j = joules @ levels_w
    energy_j = _scaled(sampled_j, gross_j)
    off_j = abs(_scaled(replicas_w @ joules.T, gross_j) - energy_j)
    return Solution(energy_j, np.quantile(off_j, 0.95, axis=0) * _student(count / memory - unknown), sampled_j)


def _scaled(joules: np.ndarray, gross_j: float) -> np.ndarray:
    return joules * (gross_j / joules.sum(axis=-1, keepdims=True))


def _student(freedom: float) -> float:
    """How much wider than a normal 95 % interval Student's is, by the first terms of its series."""
    n = max(freedom, 1.0)
    return 1 + (2.372 / n + 2.82 / n**2 + 2.56 / n**3) / 1.96
