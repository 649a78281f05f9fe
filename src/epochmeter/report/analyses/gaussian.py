"""Gaussian process regression of the logarithm of a quantity, with its cross-validated error.

C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006. Intervals are calibrated by errors of
held-out configurations, as the intervals of the process itself are too narrow with little data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochmeter.report.statistics import MIN_EFFECT, Estimate

Array = NDArray[np.float64]
MAX_LEAVE_ONE_OUT = 30
"""Up to this number of configurations, cross-validation leaves out one at a time; otherwise it has `FOLDS` folds."""
FOLDS = 10
MAX_UNEXPLAINED = 0.5
"""Fraction of the variance; a process that leaves more unexplained is not used."""
LENGTH_SCALES = (0.05, 20.0)
"""Bounds, for keys that are scaled from 0 to 1."""


@dataclass(frozen=True)
class Error:
    """Cross-validated error of predictions, relative to the measured values.

    Attributes:
        guess: Median error of the mean of the other configurations.
        width: Half-width of a 95 % interval, in standard deviations of the process.
        is_useful: Whether the error is negligible, or much smaller than that of the guess.
    """

    median: float
    most: float
    guess: float
    within: int
    configurations: int
    width: float
    is_useful: bool


def encode(settings: Sequence[Sequence[str]]) -> Array:
    """Return coordinates from 0 to 1, one row per configuration.

    A key whose values are numbers has one coordinate, on a logarithmic scale unless some are negative. Other keys have
    one per value, or one if there are two values.
    """
    columns: list[Any] = []
    for column in zip(*settings, strict=True):
        numbers = _numbers(column)
        if numbers is None:
            names = sorted(set(column))
            columns += [[name == other for name in column] for other in names[len(names) == 2 :]]
        else:
            columns.append((numbers - numbers.min()) / (np.ptp(numbers) or 1.0))
    return np.column_stack(columns).astype(np.float64)


def fit(places: Array, logs: Array, like: Any = None, starts: int = 3) -> Any:
    """Fit a process; with the length scales of another if `like` is given, else from several starting points."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from threadpoolctl import threadpool_limits

    free = ConstantKernel(1.0, (1e-2, 1e2)) * Matern([0.5] * places.shape[1], LENGTH_SCALES, nu=2.5)
    free += WhiteKernel(1e-3, (1e-6, 0.5))
    process = GaussianProcessRegressor(
        like.kernel_ if like else free,
        optimizer=None if like else "fmin_l_bfgs_b",
        n_restarts_optimizer=starts - 1,
        normalize_y=True,
        random_state=0,
    )
    with warnings.catch_warnings(), threadpool_limits(1):  # matrices are too small for threads
        # The length scale of a key without effect ends at its bound.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return process.fit(places, logs)


def predict_at(model: Any, places: Array, width: float) -> list[Estimate]:
    """Predict the quantity itself, with intervals of this many standard deviations of the logarithm to each side."""
    means, deviations = model.predict(places, return_std=True)
    pairs = zip(means.tolist(), (width * deviations).tolist(), strict=True)
    return [Estimate(mean, mean - half, mean + half).exp() for mean, half in pairs]


def cross_validate(places: Array, logs: Array) -> Error:
    """Return the errors of predictions for held-out configurations, by processes fitted to the others."""
    from sklearn.model_selection import KFold

    count = len(logs)
    folds = count if count <= MAX_LEAVE_ONE_OUT else FOLDS
    errors, guesses, deviations = np.zeros((3, count))
    for others, held_out in KFold(folds, shuffle=True, random_state=0).split(places):
        model = fit(places[others], logs[others], starts=1)
        means, deviations[held_out] = model.predict(places[held_out], return_std=True)
        errors[held_out] = means - logs[held_out]
        guesses[held_out] = logs[others].mean() - logs[held_out]
    width = _calibrated_width(errors, deviations)
    relative, guessed = (np.abs(np.expm1(values)) for values in (errors, guesses))
    median = float(np.median(relative))
    return Error(
        median=median,
        most=float(relative.max()),
        guess=float(np.median(guessed)),
        within=int(np.sum(np.abs(errors) <= width * deviations)),
        configurations=count,
        width=width,
        is_useful=median <= MIN_EFFECT or bool(np.sum(errors**2) < MAX_UNEXPLAINED * np.sum(guesses**2)),
    )


def most_informative(models: Mapping[str, Any], places: Array, grid: Array, count: int) -> list[int]:
    """Return indices of the grid: each has the largest uncertainty of all quantities, given those before it."""
    chosen: list[int] = []
    while len(chosen) < min(count, len(grid)):
        at = np.concatenate([places, grid[chosen]])
        doubt = np.zeros(len(grid))
        for model in models.values():
            # The values at chosen places are taken as predicted; deviations hardly depend on them.
            expected = model.predict(at)
            doubt += fit(at, expected, like=model).predict(grid, return_std=True)[1] ** 2
        doubt[chosen] = -1.0
        chosen.append(int(np.argmax(doubt)))
    return chosen


def _calibrated_width(errors: Array, deviations: Array) -> float:
    """Return the half-width of a 95 % interval in standard deviations, from the standardized errors.

    It is Student's quantile times their root mean square, so that few errors give wide intervals, or their own 95 %
    quantile if that is larger, as with outliers.
    """
    from scipy.special import stdtrit

    ratios = np.abs(errors[deviations > 0] / deviations[deviations > 0])
    if not ratios.size:
        return 0.0
    normal = float(stdtrit(max(1, ratios.size - 1), 0.975)) * math.sqrt(np.mean(ratios**2))
    return max(normal, float(np.quantile(ratios, 0.95)))


def _numbers(column: Sequence[str]) -> Array | None:
    """Return the values of a key on their scale; None if they are not all finite numbers."""
    try:
        values = np.asarray(column, dtype=np.float64)
    except ValueError:
        return None
    if not np.isfinite(values).all():
        return None
    return values if values.min() < 0 else np.log(values) if values.min() > 0 else np.log1p(values)
