"""Gaussian processes of the logarithms of time and power (C. E. Rasmussen, C. K. I. Williams, 2006).

Models are weighted by the likelihood of held-out configurations. Intervals are calibrated by their errors, as those of
the models are too narrow with few data.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epochmeter.report.statistics import MIN_EFFECT

Array = NDArray[np.float64]
MAX_LEAVE_ONE_OUT = 30
"""Up to this number of configurations, cross-validation leaves out one at a time; otherwise it has `FOLDS` folds."""
FOLDS = 10
MAX_UNEXPLAINED = 0.5  # fraction of the variance; a model that leaves more unexplained is not used
SMOOTH = "smooth"  # name of the model without physics, whose standard deviations are too small with few runs
LEAST_OF_SMOOTH = 0.5  # its smallest interval, as a fraction of that of the errors whatever their standard deviations
PSEUDO_ERRORS = 8.0  # number of errors that the standard deviations of the other models count as
MIN_DEVIATION = 1e-3  # smallest standard deviation of a logarithm by which models are weighted
LENGTH_SCALES = (0.05, 20.0)  # bounds, for keys that are scaled from 0 to 1
CLOCKS = 4  # columns of a power mode: cores, CPU, GPU, memory


@dataclass(frozen=True, eq=False)
class Grid:
    """Configurations of one workload on one board, with time and power if they were run.

    Attributes:
        rows: One per configuration: batch size, power limit per device as a fraction of the highest (infinite without
            one), clocks of a power mode if they vary, and coordinates of all keys, from 0 to 1.
        other_columns: Columns of the keys except the batch size and the power limit.
        logs: Logarithms of the time in seconds and, if it was measured, of the power as a fraction of `full_w`.
        full_w: Power of all devices at their highest limit; with power modes, the highest of the runs.
        board: Name of the board, if power modes vary.
    """

    rows: Array
    other_columns: Sequence[int]
    logs: Array
    full_w: float = 1.0
    workload: str = ""
    board: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> "Grid":
        return replace(self, rows=self.rows[chosen], logs=self.logs[:, chosen])

    @property
    def batches(self) -> Array:
        return self.rows[:, 0]

    @property
    def limits(self) -> Array:
        return self.rows[:, 1]

    @property
    def clocks(self) -> Array:
        """Logarithms of the number of cores and of the clocks of CPU, GPU and memory, relative to the highest."""
        return self.rows[:, 2 : 2 + CLOCKS] if self.board else np.zeros((len(self), CLOCKS))

    @property
    def places(self) -> Array:
        return self.rows[:, 2 + CLOCKS if self.board else 2 :]

    @property
    def others(self) -> Array:
        return self.rows[:, [*self.other_columns]]


class Posterior(NamedTuple):
    """Predicted logarithms: means, one row per quantity, and the covariance of all of them, row by row."""

    means: Array
    covariance: Array

    @property
    def marginals(self) -> tuple[Array, Array]:
        """Means and standard deviations of logarithms: one row per quantity, and the energy after time and power."""
        quantities, size = self.means.shape
        covariances = np.einsum("anbn->abn", self.covariance.reshape(quantities, size, quantities, size))
        variances = np.einsum("aan->an", covariances)
        if quantities > 1:
            variances = np.vstack([variances, covariances.sum(axis=(0, 1))])
        return with_energy(self.means), np.sqrt(np.maximum(variances, 0.0))

    def first(self, quantities: int) -> "Posterior":
        """Return the first quantities only."""
        size = quantities * self.means.shape[1]
        return Posterior(self.means[:quantities], self.covariance[:size, :size])


Predictor = Callable[[Grid], Posterior]
Model = Callable[[Grid], Predictor]  # fits the runs of a grid, and returns the function that predicts others


def with_energy(logs: Array) -> Array:
    """Return the logarithms of time and power, and of the energy, their product, as the third row."""
    return np.vstack([logs, logs.sum(axis=0)]) if len(logs) > 1 else logs


@dataclass(frozen=True)
class Error:
    """Cross-validated error of predictions, relative to the measured values.

    Attributes:
        guess: Median error of the mean of the other configurations.
        width: Half-width of a 95 % interval, in standard deviations of the process.
        least_width: Smallest half-width of a logarithm. The model without physics takes some configurations for too
            certain, and so few errors do not show which.
        is_useful: Whether the error is negligible, or much smaller than that of the guess.
    """

    median: float
    most: float
    guess: float
    within: int
    configurations: int
    width: float
    least_width: float
    is_useful: bool

    def half_widths(self, deviations: Array) -> Array:
        """Return half-widths of 95 % intervals of logarithms, from their standard deviations."""
        return np.maximum(self.width * deviations, self.least_width)


def encode(settings: Sequence[Sequence[str]]) -> Array:
    """Return coordinates from 0 to 1, one row per configuration.

    A key of numbers has one coordinate, on a logarithmic scale unless some are negative. A key of names has one
    coordinate per value, or one in total for two values.
    """
    columns: list[Any] = []
    for column in zip(*settings, strict=True):
        try:
            numbers = np.asarray(column, dtype=np.float64)
        except ValueError:
            numbers = np.array([math.nan])
        if np.isfinite(numbers).all():
            scaled = numbers if numbers.min() < 0 else np.log(numbers) if numbers.min() > 0 else np.log1p(numbers)
            columns.append((scaled - scaled.min()) / (np.ptp(scaled) or 1.0))
        else:
            names = sorted(set(column))
            columns += [[name == other for name in column] for other in names[len(names) == 2 :]]
    return np.column_stack(columns).astype(np.float64)


def smooth(grid: Grid, starts: int = 3) -> Predictor:
    """Fit a process over the coordinates of all keys to each quantity."""
    from scipy.linalg import block_diag
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern([0.5] * grid.places.shape[1], LENGTH_SCALES, nu=2.5)
    kernel += WhiteKernel(1e-3, (1e-6, 0.5))
    process = partial(GaussianProcessRegressor, n_restarts_optimizer=starts - 1, normalize_y=True, random_state=0)
    with warnings.catch_warnings():
        # The length scale of a key without effect ends at its bound.
        warnings.simplefilter("ignore", ConvergenceWarning)
        processes = [process(kernel).fit(grid.places, logs) for logs in grid.logs]

    def predict(target: Grid) -> Posterior:
        pairs = [process.predict(target.places, return_cov=True) for process in processes]
        return Posterior(np.stack([means for means, _ in pairs]), block_diag(*(covariance for _, covariance in pairs)))

    return predict


def fit_weighted(models: Mapping[str, Model], weights: Mapping[str, float], grid: Grid) -> Predictor:
    """Fit several models; the mean and the covariance of their mixture are predicted."""
    pairs = [(model(grid), weights[name]) for name, model in models.items()]

    def predict(target: Grid) -> Posterior:
        parts = [(predictor(target), weight) for predictor, weight in pairs]
        means = np.sum([weight * posterior.means for posterior, weight in parts], axis=0)
        covariance = np.zeros((means.size, means.size))
        for posterior, weight in parts:
            shift = (posterior.means - means).ravel()
            covariance += weight * (posterior.covariance + np.outer(shift, shift))
        return Posterior(means, covariance)

    return predict


def cross_validate(models: Mapping[str, Model], grid: Grid) -> tuple[dict[str, float], list[Error]]:
    """Return the weight of each model, and the errors of time, power and energy of held-out configurations.

    The energy has errors of its own, as those of time and power may be correlated.
    """
    from sklearn.model_selection import KFold

    count = len(grid)
    folds = count if count <= MAX_LEAVE_ONE_OUT else FOLDS
    logs, fitted = with_energy(grid.logs), len(grid.logs)
    means, deviations = np.zeros((2, len(models), *logs.shape))
    guesses = np.zeros(logs.shape)
    fast = [partial(smooth, starts=1) if name == SMOOTH else model for name, model in models.items()]
    for others, held_out in KFold(folds, shuffle=True, random_state=0).split(grid.batches):
        for number, model in enumerate(fast):
            means[number][:, held_out], deviations[number][:, held_out] = model(grid[others])(grid[held_out]).marginals
        guesses[:, held_out] = (logs[:, others].mean(axis=1, keepdims=True) - logs)[:, held_out]
    sure = np.maximum(deviations, MIN_DEVIATION)
    scores = -np.sum((np.log(sure) + 0.5 * ((means - logs) / sure) ** 2)[:, :fitted], axis=(1, 2))
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    mean = np.tensordot(weights, means, 1)
    deviation = np.sqrt(np.tensordot(weights, deviations**2 + (means - mean) ** 2, 1))
    by_model = dict(zip(models, weights.tolist(), strict=True))
    of_smooth = by_model.get(SMOOTH, 0.0)
    return by_model, [_error(*row, of_smooth) for row in zip(mean - logs, guesses, deviation, strict=True)]


def _error(errors: Array, guesses: Array, deviations: Array, of_smooth: float) -> Error:
    """Return the error of a quantity; `of_smooth` is the weight of the model without physics."""
    width = calibrated_width(errors, deviations, PSEUDO_ERRORS * (1 - of_smooth))
    least_width = of_smooth * LEAST_OF_SMOOTH * calibrated_width(errors, np.ones_like(errors))
    relative, guessed = np.abs(np.expm1(errors)), np.abs(np.expm1(guesses))
    median, guess = float(np.median(relative)), float(np.median(guessed))
    within = int(np.sum(np.abs(errors) <= np.maximum(width * deviations, least_width)))
    is_useful = median <= MIN_EFFECT or bool(np.sum(errors**2) < MAX_UNEXPLAINED * np.sum(guesses**2))
    return Error(median, float(relative.max()), guess, within, len(errors), width, least_width, is_useful)


def calibrated_width(errors: Array, deviations: Array, pseudo_errors: float = 0.0) -> float:
    """Return the half-width of a 95 % interval in standard deviations.

    It is Student's quantile times the root mean square of the errors, or their 95 % quantile if that is larger. Each of
    the `pseudo_errors` is one standard deviation.
    """
    from scipy.special import stdtrit

    ratios = np.abs(errors[deviations > 0] / deviations[deviations > 0])
    if not ratios.size:
        return 0.0
    count = ratios.size + pseudo_errors
    scale = math.sqrt((np.sum(ratios**2) + pseudo_errors) / count)
    dof = count if pseudo_errors else max(1, count - 1)
    return max(float(stdtrit(dof, 0.975)) * scale, float(np.quantile(ratios, 0.95)))
