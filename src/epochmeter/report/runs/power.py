"""Power over time of runs, from their records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.run import Run
from epochmeter.results.power_trace import downsample
from epochmeter.shared.record import Record
from epochmeter.shared.units import NANOSECOND

MOST_RUNS = 6
MAX_SAMPLES = 600
"""Samples per run: more than a page can show."""


class Power(NamedTuple):
    """The sampled total power of a run.

    Attributes:
        times_s: Times of the samples, from the first one on.
        mean_of_s: Median duration that a sample is the mean of; zero if it is instantaneous.
    """

    run: Run
    times_s: Sequence[float]
    powers_w: Sequence[float]
    mean_of_s: float


def choose_runs(runs: Sequence[Run], power_of: Sequence[int], best: Sequence[Configuration]) -> list[Run]:
    """Return the runs with these numbers, or by default the first run of each of the best configurations.

    Raises:
        ValueError: There is no run with one of the numbers.
    """
    if not power_of:
        return list({configuration.runs[0].number: configuration.runs[0] for configuration in best}.values())
    numbers = sorted({run.number for run in runs})
    if missing := sorted(set(power_of) - set(numbers)):
        there = ", ".join(map(str, numbers[:20]))
        raise ValueError(f"report.power_of={missing[0]}: the report has no such run. It has: {there}.")
    return [run for run in runs if run.number in power_of]


def powers(runs: Sequence[Run]) -> list[Power]:
    """Return the power of the first runs that have any."""
    return list(islice(filter(None, map(_power, runs)), MOST_RUNS))


def _power(run: Run) -> Power | None:
    """Return a run's power; None without two readable samples."""
    try:
        samples = list(downsample(Record(run.folder), MAX_SAMPLES)) if run.folder else []
    except (OSError, ValueError, IndexError):
        return None
    if len(samples) < 2:
        return None
    times_s = [(sample.at_ns - samples[0].at_ns) * NANOSECOND for sample in samples]
    mean_of_s = statistics.median(sample.mean_of_ns for sample in samples) * NANOSECOND
    return Power(run, times_s, [sample.watts for sample in samples], mean_of_s)
