"""Forecast of a run's total time and energy with a 95 % interval, from its first epoch on."""

import math
import statistics
from array import array
from collections.abc import Callable, Iterable, Mapping

from epochmeter.config.schema import Job
from epochmeter.results.summary import MAX_VARIATION, Window, is_averaged, step_durations, total_metrics

PRIOR_STD = MAX_VARIATION
"""Relative standard deviation of epochs until two steady ones are measured: the largest that causes no warning."""
PARTS = 10
"""Number of parts of an epoch's steps whose means are compared, since the times of successive steps are correlated."""
UPPER = 0.975  # probability below the upper end of a 95 % interval
UNCERTAINTIES = {"e2e_s": "e2e_uncertainty_s", "energy_j": "energy_uncertainty_j"}
"""Quantity -> name of its uncertainty."""


class Forecaster:
    """Forecasts the totals of a run from its windows so far.

    The remaining epochs, with their evaluations, are draws from the normal distribution of the steady ones. Before the
    first steady epoch, the last epoch without its warm-up takes their place. `last_steps` returns the steps of the last
    epoch, given their number, as rows of `steps.bin`.
    """

    def __init__(self, windows: Iterable[Window], warmup_epochs: int, last_steps: Callable[[int], array]) -> None:
        self._warmup_epochs, self._last_steps = max(1, warmup_epochs), last_steps
        self._totals: list[tuple[dict[str, float], bool]] = []
        """Totals of each epoch, with its evaluations, and whether it is steady."""
        self._last: list[Window] = []  # the last epoch and its evaluations so far
        for window in windows:
            self.add(window)

    def add(self, window: Window) -> None:
        if window["window"] == "epoch":
            self._last = []
            self._totals.append(({}, False))
        if window["window"] in ("epoch", "val") and self._totals:
            self._last.append(window)
            self._totals[-1] = total_metrics(self._last), is_averaged(self._last[0], self._warmup_epochs)

    def metrics(self, epochs: int) -> dict[str, float]:
        """Return the `forecast/` metrics for this many epochs; without energy if it is unknown for an epoch so far."""
        remaining = epochs - len(self._totals)
        if not self._last or remaining < 1:
            return {}
        sample, error = [totals for totals, is_sample in self._totals if is_sample], 0.0
        if not sample:
            if self._last[0].get("warmup"):
                return {}
            epoch = self._last[0]["metrics"]
            expected_s, error = expected_epoch(epoch, self._last_steps(int(epoch["epoch/steps"])))
            last, _ = self._totals[-1]
            scale = 1 - (epoch["epoch/e2e_s"] - expected_s) / last["e2e_s"]
            sample = [{name: scale * total for name, total in last.items()}]
        metrics: dict[str, float] = {}
        for name, uncertainty in UNCERTAINTIES.items():
            if all(name in totals for totals, _ in self._totals):
                rest, half_width = predicted_sum([totals[name] for totals in sample], remaining, error)
                so_far = math.fsum(totals[name] for totals, _ in self._totals)
                metrics |= {f"forecast/{name}": so_far + rest, f"forecast/{uncertainty}": half_width}
        return metrics


def predicted_sum(sample: list[float], count: int, error: float = 0.0) -> tuple[float, float]:
    """Return the expected sum of `count` normal draws with a common relative `error`, and its 95 % interval (+/-)."""
    mean, measured = statistics.fmean(sample), len(sample)
    if measured > 1:
        from scipy.special import stdtrit  # takes time

        std, quantile = statistics.stdev(sample), float(stdtrit(measured - 1, UPPER))
    else:
        std, quantile = PRIOR_STD * mean, statistics.NormalDist().inv_cdf(UPPER)
    half_width = quantile * math.hypot(std * math.sqrt(count + count**2 / measured), count * error * mean)
    return count * mean, half_width


def expected_epoch(epoch: Mapping[str, float], steps: array) -> tuple[float, float]:
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
    return "the run ends at the step `throughput.stop`" if job.throughput.exit else ""
