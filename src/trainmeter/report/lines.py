"""Values along an axis: epoch by epoch, power over time, and what more devices bring."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import groupby

from trainmeter.report.axes import Shown, axis, covers_told, fewer, sentence, steady
from trainmeter.report.figures import STYLES, Axis, Band, Level, Lines, Mark, Series
from trainmeter.report.points import Point, no_energy
from trainmeter.report.powers import Power
from trainmeter.report.scaling import Scaling, Unpaired
from trainmeter.report.words import number, percent, times

MOST = 8
"""Lines of one picture."""


def epochs(every: Sequence[Shown]) -> list[Lines]:
    """Time, and energy where it can be put side by side, of each epoch of the fastest jobs, warm-up included."""
    ordered = sorted((time.mean, index) for index, each in enumerate(every) if (time := steady(each.point, "e2e_s")))
    drawn = [every[index] for _, index in ordered if any(len(row.epochs) > 1 for row in every[index].point.rows)]
    few = fewer(len(drawn), MOST)
    drawn = drawn[:MOST]
    told = [_epochs("epochs_time", "Epoch by epoch: time", "Time", "epoch/e2e_s", "s", drawn, few)]
    if drawn and not no_energy([each.point for each in drawn]):
        said = sentence(few, covers_told(drawn))
        told.append(_epochs("epochs_energy", "Epoch by epoch: energy", "Energy", "epoch/energy_j", "J", drawn, said))
    return [each for each in told if each]


def power_over_time(powers: Sequence[Power], every: Sequence[Shown]) -> Lines | None:
    """The sampled power of runs from their first samples on; None where none was sampled."""
    if not powers:
        return None
    titles = {row.number: each.title for each in every for row in each.point.rows}
    x, second = axis("Time since the first sample", [power.times_s[-1] for power in powers], "s", straight=True)
    y, watt = axis("Power", [watts for power in powers for watts in power.powers_w], "W", straight=True)
    series = []
    for index, power in enumerate(powers):
        row = power.row
        called = f"{titles.get(row.number, '')} (run {row.number})".lstrip()
        marks = [
            Mark(at_s / second, watts / watt, (called, f"{number(watts)} W after {number(at_s)} s"), row.link)
            for at_s, watts in zip(power.times_s, power.powers_w, strict=True)
        ]
        series.append(Series(called, marks, index % len(STYLES), row.energy_covers))
    means = [f"{number(power.mean_of_s)} s" for power in powers if power.mean_of_s]
    thinned = f"Each value is the mean of up to {max(means, key=len)}." if means else ""
    covers = dict.fromkeys(str(power.row.energy_covers) for power in powers if power.row.energy_covers)
    of = f"Power is that of: {'; '.join(covers)}." if covers else ""
    caption = sentence("Idle before and after, warm-up and evaluation included.", thinned, of)
    return Lines("power", "Power over time", caption, x, y, series, points=False)


def efficiency(told: Sequence[Scaling | Unpaired]) -> Lines | None:
    """Scaling efficiency by the number of devices; None where no job was run on several and on one."""
    found = sorted((each for each in told if isinstance(each, Scaling)), key=lambda each: (_line(each), each.devices))
    if not found:
        return None
    series = []
    for index, (name, group) in enumerate(groupby(found, key=_line)):
        marks = []
        for each in group:
            share = each.efficiency.scaled(100)
            half = None if share.low is None or share.high is None else (share.high - share.low) / 2
            lines = (f"{name}, {each.devices} devices", f"efficiency {percent(each.efficiency)}",
                     f"speed-up {times(each.speedup)}", f"runs {', '.join(map(str, each.numbers))}")  # fmt: skip
            marks.append(Mark(each.devices, share.value, lines, y_half=half))
        series.append(Series(name, marks, index % len(STYLES)))
    shown_of = fewer(len(series), MOST, "first")
    caption = sentence("Speed-up by the number of devices; bars are 95 % intervals of repeats.", shown_of)
    return Lines("scaling", "Scaling efficiency", caption, Axis("Devices"), Axis("Scaling efficiency", "%"),
                 series[:MOST], level=Level(100, "ideal"))  # fmt: skip


def _epochs(name: str, title: str, label: str, metric: str, si: str, drawn: Sequence[Shown], said: str) -> Lines | None:
    means = [(each, values) for each in drawn if len(values := _by_epoch(each.point, metric)) > 1]
    if not means:
        return None
    y, size = axis(f"{label} of the epoch", [value for _, values in means for value in values.values()], si)
    series = []
    for index, (each, values) in enumerate(means):
        marks = [
            Mark(epoch, value / size, each.told(f"epoch {epoch}: {number(value)} {si}"), each.link)
            for epoch, value in values.items()
        ]
        series.append(Series(each.title, marks, index % len(STYLES), each.covers if si == "J" else None))
    warm = {each.point.job.get("warmup_epochs", 0) for each, _ in means}
    bands = [Band(-0.5, max(warm) - 0.5, "warm-up")] if max(warm) else []
    differ = "It differs from job to job." if len(warm) > 1 else ""
    caption = sentence("Means over repeats. The warm-up is in no steady mean." if bands else "", differ, said)
    return Lines(name, title, caption, Axis("Epoch"), y, series, bands)


def _by_epoch(point: Point, metric: str) -> dict[int, float]:
    """Means over the runs of what all of them know of an epoch."""
    values: dict[int, list[float]] = {}
    for row in point.rows:
        for epoch, metrics in enumerate(row.epochs):
            if math.isfinite(value := metrics.get(metric, math.nan)):
                values.setdefault(epoch, []).append(value)
    return {epoch: statistics.fmean(found) for epoch, found in sorted(values.items()) if len(found) == len(point.rows)}


def _line(told: Scaling) -> str:
    return f"{told.title}, {told.strategy}, {told.kind} scaling, batch {told.device_batch:g} each"
