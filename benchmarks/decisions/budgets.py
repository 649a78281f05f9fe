"""How close to its budget a training ends, by simulation: the forecast of the next epoch decides.

Epochs are an autoregressive series with noise, and in some cases with a trend, or with an epoch now and then that takes
twice as long. The first epoch is a warm-up, and each epoch has an evaluation. Energy is time with a power of its own
noise. Training ends as `train.py` ends it: after an epoch whose successor would exceed the budget.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from common.output import print_table, sized
from default_jobs import job_of
from metadata import run_info

from epochmeter.results.budget import BudgetTracker
from epochmeter.results.forecast import Forecaster

JOBS, MARGIN = sized(100, 3), 0.03
"""Number of jobs of each kind, and by how much of its budget a job may use more, or end an epoch too early."""
POWER_W, CORRELATION = 100.0, 0.5
COLUMNS = (
    "epochs", "budget of", "epochs in the budget", "within 3 % of the budget", "exact end", "exceeded",
    "largest excess, in epochs", "unused, median",
)  # fmt: skip


class Kind(NamedTuple):
    """Noise of the epochs, their trend over 100 epochs, and the fraction of epochs that take twice as long."""

    noise: float
    trend: float = 0.0
    doubled: float = 0.0


KINDS = {
    "1 % noise": Kind(0.01),
    "5 % noise": Kind(0.05),
    "10 % noise": Kind(0.10),
    "2 % noise, 20 % slower in 100 epochs": Kind(0.02, trend=0.2),
    "2 % noise, one of 20 doubled": Kind(0.02, doubled=0.05),
}
LENGTHS = {"10 to 34": (10, 34), "34 to 200": (34, 200)}


class Job(NamedTuple):
    """The seconds and joules of a job's epochs, each with those of its evaluation."""

    epochs: list[tuple[float, float]]
    evaluations: list[tuple[float, float]]

    def used(self, place: int) -> list[float]:
        """Return what is used up to the end of each evaluation: time (0) or energy (1)."""
        pairs = zip(self.epochs, self.evaluations, strict=True)
        return list(accumulate(epoch[place] + evaluation[place] for epoch, evaluation in pairs))


def simulate(chance: np.random.Generator, kind: Kind, count: int) -> Job:
    """Return a job of this many epochs, the first of which is a warm-up."""
    deviation, mean_s = 0.0, math.exp(chance.uniform(0, 6))
    epochs, evaluations = [], []
    for number in range(count):
        deviation = CORRELATION * deviation + math.sqrt(1 - CORRELATION**2) * kind.noise * chance.normal()
        time_s = mean_s * math.exp(deviation) * (1 + kind.trend * number / 100)
        time_s *= 2 if chance.random() < kind.doubled else 1
        time_s *= chance.uniform(1.1, 3) if number == 0 else 1
        powers_w = POWER_W * np.exp(kind.noise / 2 * chance.normal(size=2))
        evaluation_s = 0.1 * mean_s * math.exp(kind.noise * chance.normal())
        epochs.append((time_s, float(time_s * powers_w[0])))
        evaluations.append((evaluation_s, float(evaluation_s * powers_w[1])))
    return Job(epochs, evaluations)


def windows_of(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the windows of a job as its record has them."""
    for number, pair in enumerate(zip(job.epochs, job.evaluations, strict=True)):
        for kind, (time_s, energy_j) in zip(("epoch", "val"), pair, strict=True):
            values = {"e2e_s": time_s, "energy_j": energy_j, "energy_uncertainty_j": 0.0, "steps": 10}
            metrics = {f"{kind}/{name}": value for name, value in values.items()}
            term = {"energy_j": energy_j, "energy_uncertainty_j": 0.0}
            energy = {"opened_ns": 0, "closed_ns": round(time_s * 1e9), "joules": {}, "term": term}
            yield {"window": kind, "epoch": number, "metrics": metrics, "energy": energy}


def end_of(job: Job, **budget: float) -> int:
    """Return the number of epochs after which a job with a budget ends."""
    configured = job_of(budget=budget, warmup_epochs=1)
    tracker, forecaster = BudgetTracker(configured, run_info()), Forecaster((), 1, lambda count: array("f"))
    for window in windows_of(job):
        forecaster.add(window)
        tracker.add(window)
        if window["window"] == "val" and tracker.reached(forecaster):
            return tracker.epochs
    raise AssertionError("the budget is larger than the job")


def row(name: str, place: int, length: str) -> list[str]:
    """Return a row of the table: one kind of job, with budgets of time (0) or of energy (1)."""
    chance, key = np.random.default_rng(0), ("time_s", "energy_j")[place]
    near, exact, excesses, unused = 0, 0, [], []
    for _ in range(JOBS):
        expected = chance.uniform(*LENGTHS[length])
        job = simulate(chance, KINDS[name], round(2.5 * expected) + 10)
        used = job.used(place)
        budget = used[int(expected)] + (expected % 1) * (used[int(expected) + 1] - used[int(expected)])
        count = end_of(job, **{key: budget})
        at_end, following = used[count - 1], used[count]
        exact += at_end <= budget < following
        # A training ends between epochs: with one more, it would have used the rest of its budget, but for the margin.
        near += at_end <= (1 + MARGIN) * budget and following > (1 - MARGIN) * budget
        excesses.append(max(0.0, (at_end - budget) / (used[count - 1] - (used[count - 2] if count > 1 else 0.0))))
        unused.append(max(0.0, 1 - at_end / budget))
    cells = (f"{near} of {JOBS}", f"{exact} of {JOBS}", f"{sum(excess > 0 for excess in excesses)} of {JOBS}")
    return [name, ("time", "energy")[place], length, *cells, f"{max(excesses):.2f}", f"{100 * np.median(unused):.1f} %"]


def main() -> None:
    rows = [row(name, place, length) for name in KINDS for length in LENGTHS for place in (0, 1)]
    print_table("The end of a training with a budget", COLUMNS, rows)


if __name__ == "__main__":
    main()
