"""A Gaussian process of a quantity's logarithms over places, and how far off it is.

After C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006.
"""

from __future__ import annotations

import math
import random
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochmeter.report.statistics import MIN_EFFECT, Estimate

MOST_REFITTED = 30
"""Up to so many jobs the process is fitted anew without each; of more, without a part at a time."""
FOLDS = 10
"""Into so many parts more jobs are divided, at random: always the same."""
EXPLAINED = 0.5
"""Of the squared error that a guess would make: a process that leaves more has learned too little."""
SCALES = (0.05, 20.0)
"""Bounds of the length scales, of keys that run from 0 to 1."""
NORMAL = 1.96
"""Standard deviations on each side of a 95 % interval."""


@dataclass(frozen=True)
class Error:
    """How far off jobs are predicted that were left out, each as a share of what was measured."""

    median: float
    most: float
    guess: float
    """Median error of the mean of the others."""
    left: float
    """Squared error of the logarithms, as a share of that of the guess."""
    within: int
    """How many lie within their 95 % interval."""
    jobs: int
    parts: int
    """In so many they were left out; as many as the jobs where that was one at a time."""

    @property
    def useful(self) -> bool:
        """Whether it is too small to matter, whatever a guess would do, or else much less than that of a guess."""
        return self.median <= MIN_EFFECT or self.left < EXPLAINED


def fit(places: list[list[float]], values: Sequence[float], like: Any = None, starts: int = 3) -> Any:
    """A process fitted to values at places, from so many starts; or held to the scales of another that it is like."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    free = ConstantKernel(1.0, (1e-2, 1e2)) * Matern([0.5] * len(places[0]), SCALES, nu=2.5)
    free += WhiteKernel(1e-3, (1e-6, 0.5))
    process = GaussianProcessRegressor(
        like.kernel_ if like else free,
        optimizer=None if like else "fmin_l_bfgs_b",
        n_restarts_optimizer=starts - 1,
        normalize_y=True,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a scale at its bound is a key that plays no part
        return process.fit(places, values)


def predict_at(model: Any, places: list[list[float]]) -> list[Estimate]:
    """What the process expects at places, no longer as logarithms."""
    means, deviations = model.predict(places, return_std=True)
    pairs = zip(means.tolist(), deviations.tolist(), strict=True)
    return [Estimate(*(math.exp(middle + side * NORMAL * off) for side in (0, -1, 1))) for middle, off in pairs]


def cross_validate(places: list[list[float]], values: Sequence[float]) -> Error:
    """The errors of each where it is predicted from others, by a process whose scales know nothing of it either."""
    count = len(values)
    parts = count if count <= MOST_REFITTED else FOLDS
    shuffled = random.Random(0).sample(range(count), count)
    off, guess, within = [], [], 0
    for part in (shuffled[first::parts] for first in range(parts)):
        others = [index for index in range(count) if index not in part]
        told = [values[other] for other in others]
        found = predict_at(fit([places[other] for other in others], told, starts=1), [places[index] for index in part])
        off += [math.log(each.value) - values[index] for each, index in zip(found, part, strict=True)]
        guess += [statistics.fmean(told) - values[index] for index in part]
        within += sum(each.contains(math.exp(values[index])) for each, index in zip(found, part, strict=True))
    shares, guessed = ([abs(math.expm1(each)) for each in logs] for logs in (off, guess))
    squares = [math.fsum(each**2 for each in logs) for logs in (off, guess)]
    left = squares[0] / squares[1] if squares[1] else 0.0
    return Error(statistics.median(shares), max(shares), statistics.median(guessed), left, within, count, parts)


def most_informative(
    models: Mapping[str, Any], places: list[list[float]], grid: list[list[float]], count: int
) -> list[int]:
    """Indices of the grid, each the least certain of all quantities together once those before it are believed."""
    chosen: list[int] = []
    current = dict(models)
    at = list(places)
    while len(chosen) < min(count, len(grid)):
        told = {name: model.predict(grid, return_std=True) for name, (model, _) in current.items()}
        doubt = [sum(float(deviations[index]) ** 2 for _, deviations in told.values()) for index in range(len(grid))]
        best = max((index for index in range(len(grid)) if index not in chosen), key=lambda index: doubt[index])
        chosen.append(best)
        at = [*at, grid[best]]
        believed = {name: [*values, float(told[name][0][best])] for name, (_, values) in current.items()}
        current = {name: (fit(at, values, models[name][0]), values) for name, values in believed.items()}
    return chosen
