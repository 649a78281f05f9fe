"""Power over time of the runs that were chosen, from their records."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.run import Run
from epochmeter.results.power_trace import downsample
from epochmeter.shared.record import Record
from epochmeter.shared.units import NANOSECOND

MOST_RUNS = 6
MOST_PLACES = 600
"""Places of a line: more than a page has room to show."""


@dataclass(frozen=True)
class Power:
    """The sampled power of a run's total."""

    row: Run
    times_s: Sequence[float]
    """From its first sample on."""
    powers_w: Sequence[float]
    mean_of_s: float
    """Over how long each is a mean, in the median; zero where each is a sample."""


def chosen(rows: Sequence[Run], power_of: Sequence[int] = (), choices: Sequence[Configuration] = ()) -> list[Run]:
    """Of these runs those with these numbers, or else the first run of each point that was chosen for something."""
    if power_of:
        return [row for row in rows if row.number in power_of]
    return list({point.runs[0].number: point.runs[0] for point in choices}.values())


def powers(rows: Iterable[Run]) -> list[Power]:
    """Of the first few of these runs whose records hold any; what cannot be read is left out."""
    told: list[Power] = []
    for row in rows:
        if len(told) < MOST_RUNS and row.folder and (found := power(row)):
            told.append(found)
    return told


def missing_power_note(rows: Sequence[Run], told: Sequence[Power]) -> list[str]:
    """Which of the runs that were asked for have no line, and why."""
    numbers = {power.row.number for power in told}
    left = [str(row.number) for row in rows if row.number not in numbers]
    if not left:
        return []
    why = (
        f"no more than {MOST_RUNS} are drawn"
        if len(told) == MOST_RUNS
        else "no power that was sampled lies in a record here"
    )
    return [f"Power over time is not drawn of run{'s' if len(left) > 1 else ''} {', '.join(left)}: {why}."]


def power(row: Run) -> Power | None:
    """A run's power; None where its folder holds fewer than two samples, or what is no number."""
    try:
        samples = list(downsample(Record(row.folder), MOST_PLACES))
    except (OSError, ValueError, IndexError):
        return None
    if len(samples) < 2:
        return None
    times_s = [(sample.at_ns - samples[0].at_ns) * NANOSECOND for sample in samples]
    mean_of_s = statistics.median(sample.mean_of_ns for sample in samples) * NANOSECOND
    return Power(row, times_s, [sample.watts for sample in samples], mean_of_s)
