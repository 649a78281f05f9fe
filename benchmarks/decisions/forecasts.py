"""How often the 95 % interval of the forecast of a run holds, by simulation.

    PYTHONPATH=src:tests:benchmarks python benchmarks/decisions/forecasts.py [--short] [simulations]

Epochs are a stationary autoregressive series, with normal, lognormal or heavy-tailed innovations (Student's t with 4
degrees of freedom). The sum of the remaining epochs is forecast from the epochs so far. Student's interval takes epochs
as independent.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
from common.output import ARGUMENTS, print_table, sized
from numpy.typing import NDArray
from scipy.special import stdtrit

from epochmeter.results.forecast import predicted_sum
from epochmeter.results.running_totals import series_of

LENGTHS = ((3, 7), (5, 15), (10, 20), (20, 30), (50, 50), (20, 80))
CORRELATIONS = (0.0, 0.5, 0.9)
NOISES = ("normal", "lognormal", "t")
MEAN, STD = 100.0, 1.0
BEFORE = 100  # values before a series begins, so that it is stationary


def series(chance: np.random.Generator, correlation: float, noise: str, count: int) -> NDArray[np.float64]:
    """Return successive epochs."""
    size = BEFORE + count
    if noise == "lognormal":
        innovations = np.exp(chance.normal(0, 0.5, size))
        innovations = (innovations - math.exp(0.125)) / math.sqrt(math.exp(0.5) - math.exp(0.25))
    else:
        innovations = chance.normal(0, 1, size) if noise == "normal" else chance.standard_t(4, size) / math.sqrt(2)
    values = np.zeros(size)
    for place in range(1, size):
        values[place] = correlation * values[place - 1] + math.sqrt(1 - correlation**2) * innovations[place]
    return MEAN + STD * values[BEFORE:]


def coverage(correlation: float, noise: str, measured: int, remaining: int, simulations: int) -> list[float]:
    """Return the fraction of sums within Student's interval and the forecast's, and the latter's relative width."""
    chance, independent, held, widths = np.random.default_rng(0), [], [], []
    for _ in range(simulations):
        values = series(chance, correlation, noise, measured + remaining)
        sample, truth = values[:measured].tolist(), float(values[measured:].sum())
        expected, half_width = predicted_sum(series_of(sample), remaining)
        students = float(stdtrit(measured - 1, 0.975)) * statistics.stdev(sample)
        students *= math.sqrt(remaining + remaining**2 / measured)
        independent.append(abs(expected - truth) <= students)
        held.append(abs(expected - truth) <= half_width)
        widths.append(half_width / students)
    return [statistics.fmean(independent), statistics.fmean(held), statistics.median(widths)]


def main(simulations: int) -> None:
    rows = []
    for noise in NOISES:
        for measured, remaining in LENGTHS:
            cells = []
            for correlation in CORRELATIONS:
                students, held, width = coverage(correlation, noise, measured, remaining, simulations)
                cells.append(f"{100 * students:.1f}, {100 * held:.1f}, {width:.2f}")
            rows.append([noise, str(measured), str(remaining), *cells])
    columns = ("noise", "epochs so far", "remaining", *(f"autocorrelation {value}" for value in CORRELATIONS))
    print_table("Forecast: Student's interval holds %, the forecast's %, its relative width", columns, rows)


if __name__ == "__main__":
    main(int(ARGUMENTS[0]) if ARGUMENTS else sized(2000, 20))
