"""Power over time of the runs that were chosen, from their records."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmeter.metrics import NANOSECOND
from trainmeter.record import Record
from trainmeter.report.points import Point
from trainmeter.report.rows import Row

MOST_RUNS = 6
MOST_PLACES = 600
"""Places of a line: more than a page has room to show."""


@dataclass(frozen=True)
class Power:
    """The sampled power of a run's total."""

    row: Row
    times_s: Sequence[float]
    """From its first sample on."""
    powers_w: Sequence[float]
    """Each the mean of the samples in a stretch of `mean_of_s` around its time."""
    mean_of_s: float
    """Zero where each is a sample."""


def chosen(rows: Sequence[Row], power_of: Sequence[int] = (), choices: Sequence[Point] = ()) -> list[Row]:
    """Of these runs those with these numbers, or else the first run of each point that was chosen for something."""
    if power_of:
        return [row for row in rows if row.number in power_of]
    return list({point.rows[0].number: point.rows[0] for point in choices}.values())


def powers(rows: Iterable[Row]) -> list[Power]:
    """Of the first few of these runs whose records hold any; what cannot be read is left out."""
    told: list[Power] = []
    for row in rows:
        if len(told) < MOST_RUNS and row.folder and (found := power(row)):
            told.append(found)
    return told


def untold(rows: Sequence[Row], told: Sequence[Power]) -> list[str]:
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


def power(row: Row) -> Power | None:
    """A run's power; None where its folder holds fewer than two samples, or what is no number."""
    try:
        samples = list(Record(row.folder).total_powers())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if len(samples) < 2:
        return None
    begin_ns = samples[0][0]
    times_s = [(at_ns - begin_ns) * NANOSECOND for at_ns, _ in samples]
    powers_w = [watts for _, watts in samples]
    if len(samples) <= MOST_PLACES:
        return Power(row, times_s, powers_w, 0.0)
    stretch_s = (times_s[-1] + times_s[-1] / len(samples)) / MOST_PLACES
    bins: dict[int, list[float]] = {}
    for at_s, watts in zip(times_s, powers_w, strict=True):
        bins.setdefault(int(at_s / stretch_s), []).append(watts)
    middles_s = [(index + 0.5) * stretch_s for index in bins]
    return Power(row, middles_s, [statistics.fmean(each) for each in bins.values()], stretch_s)
