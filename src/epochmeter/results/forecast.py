"""Forecast of a run's total time and energy with a 95 % interval, from its first epoch on."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from epochmeter.config.schema import Job
from epochmeter.results.running_totals import RunningTotals, Series, extended
from epochmeter.results.summary import MAX_VARIATION, Window, is_averaged, step_durations, total_metrics
from epochmeter.shared.record import training_of
from epochmeter.shared.types import FloatArray

PRIOR_STD = MAX_VARIATION
"""Relative standard deviation of epochs until two steady ones are measured: the largest that causes no warning."""
PARTS = 10
"""Number of parts of an epoch's steps whose means are compared, since the times of successive steps are correlated."""
PROBABILITY = 0.95
MIN_REST, RESTS, REST_POWER = 0.01, 24, 0.2
"""Prior of the autocorrelation of epochs that are not independent: its rest to 1 is at least the first value. The
logarithm of the rest has a density in proportion to a power of the rest, and as many values as the second number."""
INDEPENDENT, FEW_EPOCHS = 0.5, 20
"""Prior probability that epochs are independent, and the number of epochs from which on it holds. With fewer epochs, it
is lower in proportion, as they hardly show an autocorrelation."""
PRECISION = 1e-5  # relative, of a half-width
UNCERTAINTIES = {"e2e_s": "e2e_uncertainty_s", "energy_j": "energy_uncertainty_j"}
"""Quantity -> name of its uncertainty."""


class Forecaster:
    """Forecasts the totals of a run from its windows so far.

    The remaining epochs, with their evaluations, continue the series of the steady ones of the last training, which may
    be autocorrelated.
    Before the first steady epoch, the last epoch without its warm-up takes their place. `last_steps` returns the steps
    of the last epoch, given their number, as rows of `steps.bin`.
    """

    def __init__(self, windows: Iterable[Window], warmup_epochs: int, last_steps: Callable[[int], FloatArray]) -> None:
        self._warmup_epochs, self._last_steps = max(1, warmup_epochs), last_steps
        self._totals = RunningTotals()  # of each epoch, with its evaluations
        self._series: dict[str, Series] = {}  # of the steady epochs of the last training, without the last epoch
        self._last: list[Window] = []  # the last epoch and its evaluations so far
        for window in windows:
            self.add(window)

    def add(self, window: Window) -> None:
        if window["window"] == "epoch":
            self._series = self._with_last()
            if self._last and training_of(window) != training_of(self._last[0]):
                self._series = {}
            self._last = []
            self._totals.begin()
        if window["window"] in ("epoch", "val") and self._totals.epochs:
            self._last.append(window)
            self._totals.last = total_metrics(self._last)

    def metrics(self, epochs: int) -> dict[str, float]:
        """Return the `forecast/` metrics for this many epochs; without energy if it is unknown for an epoch so far."""
        remaining = epochs - self._totals.epochs
        if not self._last or remaining < 1:
            return {}
        series, error = self._with_last(), 0.0
        if not series:
            if self._last[0].get("warmup"):
                return {}
            epoch = self._last[0]["metrics"]
            expected_s, error = expected_epoch(epoch, self._last_steps(int(epoch["epoch/steps"])))
            last = self._totals.last
            scale = 1 - (epoch["epoch/e2e_s"] - expected_s) / last["e2e_s"]
            series = {name: Series(1, scale * last[name]) for name in UNCERTAINTIES if name in last}
        metrics: dict[str, float] = {}
        for name, uncertainty in UNCERTAINTIES.items():
            if (so_far := self._totals.sum(name)) is not None:
                rest, half_width = predicted_sum(series[name], remaining, error)
                metrics |= {f"forecast/{name}": so_far + rest, f"forecast/{uncertainty}": half_width}
        return metrics

    def remaining_s(self, epochs: int) -> float | None:
        """Return the forecast time of the epochs after the last one; None if there is no forecast."""
        if self._totals.epochs >= epochs:
            return 0.0
        so_far_s, total_s = self._totals.sum("e2e_s"), self.metrics(epochs).get("forecast/e2e_s")
        return None if so_far_s is None or total_s is None else total_s - so_far_s

    def _with_last(self) -> dict[str, Series]:
        """Return the series of the steady epochs of the last training; empty without any."""
        if not self._last or not is_averaged(self._last[0], self._warmup_epochs):
            return self._series
        last = self._totals.last
        return {name: extended(self._series.get(name), last[name]) for name in UNCERTAINTIES if name in last}


def predicted_sum(series: Series, count: int, error: float = 0.0) -> tuple[float, float]:
    """Return the expected sum of the next `count` values of a series, and its 95 % interval (+/-).

    Args:
        error: Relative standard error of all of them, if the series is a single value.
    """
    mean = series.mean
    if series.count > 1:
        return count * mean, _half_width_of_sum(series, count)
    std = PRIOR_STD * mean * math.sqrt(count + count**2)
    return count * mean, statistics.NormalDist().inv_cdf((1 + PROBABILITY) / 2) * math.hypot(std, count * error * mean)


def _half_width_of_sum(series: Series, count: int) -> float:
    """Return the half-width of the 95 % interval of the sum of the next `count` values of a series, around their mean.

    The series is autoregressive of order one, with unknown mean, variance and autocorrelation. With each
    autocorrelation, the sum has Student's distribution around its generalized least-squares estimate. The
    autocorrelations are weighted by prior and marginal likelihood (A. Zellner, An Introduction to Bayesian Inference in
    Econometrics, 1971). An estimate of it would be too small with few values (F. H. C. Marriott, J. A. Pope, Biometrika
    41, 1954).
    """
    from scipy.special import stdtr, stdtrit  # takes time

    measured, dof = series.count, series.count - 1
    rest, prior = _autocorrelations(measured)
    correlation, center_of_all = 1 - rest, series.total / measured
    first, last = -center_of_all, series.last - center_of_all  # relative to the mean of all values
    mean = correlation * (first + last) / (measured * rest + 2 * correlation)
    squares = _squared_innovations(series, correlation, center_of_all + mean)
    if not squares.min() > 0:
        return 0.0
    information = (2 + (measured - 2) * rest) / (1 + correlation)  # of the mean, in inverse variances of a value
    log_likelihood = -dof / 2 * np.log(squares) - np.log(information) / 2
    weights = prior * np.exp(log_likelihood - log_likelihood.max())
    weights /= weights.sum()

    decay = correlation * (1 - correlation**count) / rest  # sum of the deviations that the last one causes
    squared_decay = correlation**2 * (1 - correlation ** (2 * count)) / (1 - correlation**2)
    of_innovations = (count - 2 * decay + squared_decay) / rest**2
    of_mean = (count - decay) ** 2 / information / (1 - correlation**2)
    scale = np.sqrt(squares / dof * (of_innovations + of_mean))
    center = count * mean + decay * (last - mean)

    def probability_within(half: float) -> float:
        return float(weights @ (stdtr(dof, (half - center) / scale) - stdtr(dof, (-half - center) / scale)))

    low, high = 0.0, float(np.max(np.abs(center) + stdtrit(dof, (1 + PROBABILITY) / 2) * scale))
    while high - low > PRECISION * high:
        half = (low + high) / 2
        low, high = (half, high) if probability_within(half) < PROBABILITY else (low, half)
    return high


def _squared_innovations(series: Series, correlation: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the sum of the squared innovations of a series, for each autocorrelation and mean (a difference).

    The first deviation counts by the variance of all values, of which an innovation's is a part.
    """
    count, total = series.count, series.total
    deviations = series.squares - 2 * mean * total + count * mean**2
    products = series.products - mean * (2 * total - series.last) + (count - 1) * mean**2  # the first one is 0
    first, last = mean**2, (series.last - mean) ** 2
    innovations = deviations - first + correlation**2 * (deviations - last) - 2 * correlation * products
    squares: np.ndarray = innovations + (1 - correlation**2) * first
    return squares


def _autocorrelations(measured: int) -> tuple[Any, Any]:
    """Return the possible autocorrelations of a series, as their rests to 1, and their prior probabilities."""
    rest = np.geomspace(1, MIN_REST, RESTS + 1)  # the first is that of independent values
    independent, prior = INDEPENDENT * min(1.0, measured / FEW_EPOCHS), rest**REST_POWER
    return rest, np.concatenate([[independent], (1 - independent) * prior[1:] / prior[1:].sum()])


def expected_epoch(epoch: Mapping[str, float], steps: FloatArray) -> tuple[float, float]:
    """Return the time of a later epoch from the second half of this one's `steps`, and its relative standard error.

    The first steps include compilation, the choice of algorithms and the growth of memory pools. Later epochs may find
    their files in the page cache, so the interval includes an epoch without the data stall.
    """
    e2e_s, stall_s = epoch["epoch/e2e_s"], epoch.get("epoch/data_stall_s", 0.0)
    durations = step_durations(steps)
    half = durations[len(durations) // 2 :]
    size = max(1, len(half) // PARTS)
    means = [statistics.fmean(half[begin : begin + size]) for begin in range(0, len(half) - size + 1, size)]
    if len(means) < 2:
        return e2e_s, stall_s / 2 / e2e_s
    error_s = len(durations) * statistics.stdev(means) / math.sqrt(len(means))
    expected_s = e2e_s - math.fsum(durations) + len(durations) * statistics.fmean(half)
    expected_s += epoch.get("epoch/loader_start_s", 0.0)  # part of the first step of each epoch
    return expected_s, math.hypot(error_s, stall_s / 2) / expected_s


def no_forecast_reason(job: Job, epochs: int | None) -> str:
    """Return why the totals of a run of several epochs cannot be forecast; empty if they can."""
    if epochs is None:
        return "the number of epochs is not known"
    if job.target_accuracy is not None or job.target_loss is not None:
        return "the run ends when it reaches its target"
    if job.budget.limits:
        return "the run may end at its budget"
    return "the run ends at the step `throughput.stop`" if job.throughput.exit else ""
