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
        powers_w: Power of each sample.
        mean_of_s: Median duration that a sample is the mean of; zero if it is instantaneous.
    """

    row: Run
    times_s: Sequence[float]
    powers_w: Sequence[float]
    mean_of_s: float


def powers(configurations: Sequence[Configuration]) -> list[Power]:
    """Return the power of the first run of each configuration, of the first ones that have any."""
    runs = {configuration.runs[0].number: configuration.runs[0] for configuration in configurations}
    sampled = (power(run) for run in runs.values() if run.folder)
    return list(islice(filter(None, sampled), MOST_RUNS))


def power(run: Run) -> Power | None:
    """Return a run's power; None without two readable samples."""
    try:
        samples = list(downsample(Record(run.folder), MAX_SAMPLES))
    except (OSError, ValueError, IndexError):
        return None
    if len(samples) < 2:
        return None
    times_s = [(sample.at_ns - samples[0].at_ns) * NANOSECOND for sample in samples]
    mean_of_s = statistics.median(sample.mean_of_ns for sample in samples) * NANOSECOND
    return Power(run, times_s, [sample.watts for sample in samples], mean_of_s)
