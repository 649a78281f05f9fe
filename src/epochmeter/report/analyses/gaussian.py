"""Gaussian process regression of the logarithm of a quantity, with its cross-validated error.

C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006. Intervals are calibrated by errors of
held-out configurations, as the intervals of the process itself are too narrow with little data.
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

MAX_LEAVE_ONE_OUT = 30
"""Up to this number of configurations, cross-validation leaves out one at a time; otherwise it has `FOLDS` folds."""
FOLDS = 10
"""Number of folds; random, with a fixed seed."""
MAX_UNEXPLAINED = 0.5
"""Fraction of the variance; a process that leaves more unexplained is not used."""
LENGTH_SCALES = (0.05, 20.0)
"""Bounds, for keys that are scaled from 0 to 1."""


@dataclass(frozen=True)
class Error:
    """Cross-validated error of predictions, relative to the measured values.

    Attributes:
        median: Median absolute error.
        most: Largest absolute error.
        guess: Median error of the mean of the other configurations.
        unexplained: Squared error of the logarithms, as a fraction of that of the guess.
        within: Number of configurations within their 95 % interval.
        configurations: Number of configurations.
        folds: Number of folds of the cross-validation.
        width: Half-width of a 95 % interval, in standard deviations of the process.
    """

    median: float
    most: float
    guess: float
    unexplained: float
    within: int
    configurations: int
    folds: int
    width: float

    @property
    def is_useful(self) -> bool:
        """Whether the error is negligible, or much smaller than that of the guess."""
        return self.median <= MIN_EFFECT or self.unexplained < MAX_UNEXPLAINED


def fit(places: list[list[float]], values: Sequence[float], like: Any = None, starts: int = 3) -> Any:
    """Fit a process; with the length scales of another if `like` is given, else from several starting points."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    free = ConstantKernel(1.0, (1e-2, 1e2)) * Matern([0.5] * len(places[0]), LENGTH_SCALES, nu=2.5)
    free += WhiteKernel(1e-3, (1e-6, 0.5))
    process = GaussianProcessRegressor(
        like.kernel_ if like else free,
        optimizer=None if like else "fmin_l_bfgs_b",
        n_restarts_optimizer=starts - 1,
        normalize_y=True,
        random_state=0,
    )
    with warnings.catch_warnings():
        # The length scale of a key without effect ends at its bound.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return process.fit(places, values)


def predict_at(model: Any, places: list[list[float]], width: float) -> list[Estimate]:
    """Predict the quantity itself, with intervals of this many standard deviations of the logarithm to each side."""
    means, deviations = model.predict(places, return_std=True)
    pairs = zip(means.tolist(), deviations.tolist(), strict=True)
    return [Estimate(middle, middle - width * off, middle + width * off).exp() for middle, off in pairs]


def cross_validate(places: list[list[float]], values: Sequence[float]) -> Error:
    """Return the errors of predictions for held-out configurations, by processes fitted to the others."""
    count = len(values)
    folds = count if count <= MAX_LEAVE_ONE_OUT else FOLDS
    shuffled = random.Random(0).sample(range(count), count)
    errors, guesses, deviations = [], [], []
    for fold in (shuffled[first::folds] for first in range(folds)):
        others = [index for index in range(count) if index not in fold]
        kept = [values[other] for other in others]
        model = fit([places[other] for other in others], kept, starts=1)
        means, spreads = model.predict([places[index] for index in fold], return_std=True)
        errors += [float(mean) - values[index] for mean, index in zip(means, fold, strict=True)]
        guesses += [statistics.fmean(kept) - values[index] for index in fold]
        deviations += [float(spread) for spread in spreads]
    width = _calibrated_width(errors, deviations)
    relative, guessed = ([abs(math.expm1(error)) for error in logs] for logs in (errors, guesses))
    squares, guessed_squares = (math.fsum(error**2 for error in logs) for logs in (errors, guesses))
    return Error(
        median=statistics.median(relative),
        most=max(relative),
        guess=statistics.median(guessed),
        unexplained=squares / guessed_squares if guessed_squares else 0.0,
        within=sum(abs(error) <= width * spread for error, spread in zip(errors, deviations, strict=True)),
        configurations=count,
        folds=folds,
        width=width,
    )


def _calibrated_width(errors: Sequence[float], deviations: Sequence[float]) -> float:
    """Return the half-width of a 95 % interval in standard deviations, from the standardized errors.

    It is Student's quantile times their root mean square, so that few errors give wide intervals.
    """
    from scipy.special import stdtrit

    ratios = [error / spread for error, spread in zip(errors, deviations, strict=True) if spread]
    if not ratios:
        return 0.0
    root_mean_square = math.sqrt(statistics.fmean(ratio**2 for ratio in ratios))
    return float(stdtrit(max(1, len(ratios) - 1), 0.975)) * root_mean_square


def most_informative(
    models: Mapping[str, Any], places: list[list[float]], grid: list[list[float]], count: int
) -> list[int]:
    """Return indices of the grid: each has the largest uncertainty of all quantities, given those before it."""
    chosen: list[int] = []
    current = dict(models)
    at = list(places)
    while len(chosen) < min(count, len(grid)):
        predicted = {name: model.predict(grid, return_std=True) for name, (model, _) in current.items()}
        doubt = [
            sum(float(deviations[index]) ** 2 for _, deviations in predicted.values()) for index in range(len(grid))
        ]
        best = max((index for index in range(len(grid)) if index not in chosen), key=lambda index: doubt[index])
        chosen.append(best)
        at = [*at, grid[best]]
        assumed = {name: [*values, float(predicted[name][0][best])] for name, (_, values) in current.items()}
        current = {name: (fit(at, values, models[name][0]), values) for name, values in assumed.items()}
    return chosen
