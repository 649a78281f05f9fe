"""Values along an axis: epoch by epoch, power over time, and what more devices bring."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby

from epochmeter.report.analyses.scaling import Scaling, Unpaired
from epochmeter.report.axes import Shown, apart, axis, by_covers, covers_told, fewer, sentence, steady
from epochmeter.report.figures import STYLES, Axis, Band, Level, Lines, Mark, Reach, Series
from epochmeter.report.runs.configuration import Configuration, device_unit
from epochmeter.report.runs.power import Power
from epochmeter.report.words import number, percent, times

MOST = 8
"""Lines of one picture."""


def epochs(every: Sequence[Shown]) -> list[Lines]:
    """Time and energy of each epoch of the fastest jobs, warm-up included; of each thing that energy is that of."""
    ordered = sorted((time.mean, index) for index, each in enumerate(every) if (time := steady(each.point, "e2e_s")))
    fastest = [every[index] for _, index in ordered]
    told = [_epochs("epochs_time", "Epoch by epoch: time", "Time", "epoch/e2e_s", "s", fastest)]
    groups = by_covers(fastest)
    for place, group in enumerate(groups.values()):
        name, said = f"epochs_energy{apart(place, groups)}", covers_told(group)
        told.append(_epochs(name, "Epoch by epoch: energy", "Energy", "epoch/energy_j", "J", group, said))
    return [each for each in told if each]


def power_over_time(powers: Sequence[Power], every: Sequence[Shown]) -> Lines | None:
    """The sampled power of runs from their first samples on; None where none was sampled."""
    if not powers:
        return None
    titles = {row.number: each.title for each in every for row in each.point.runs}
    x, second = axis("Time since the first sample", [power.times_s[-1] for power in powers], "s", straight=True)
    y, watt = axis("Power", [watts for power in powers for watts in power.powers_w], "W", straight=True)
    series = []
    for index, power in enumerate(powers):
        row = power.row
        called = f"{titles[row.number]} (run {row.number})" if row.number in titles else f"run {row.number}"
        marks = [
            Mark(at_s / second, watts / watt, (called, f"{number(watts)} W after {number(at_s)} s"), row.link)
            for at_s, watts in zip(power.times_s, power.powers_w, strict=True)
        ]
        series.append(Series(called, marks, index % len(STYLES)))
    longest_s = max((power.mean_of_s for power in powers), default=0.0)
    thinned = f"Each value is the mean of up to {number(longest_s)} s." if longest_s else ""
    covers = dict.fromkeys(str(power.row.energy_covers) for power in powers if power.row.energy_covers)
    of = f"Power is that of: {'; '.join(covers)}." if covers else ""
    caption = sentence("Idle before and after, warm-up and evaluation included.", thinned, of)
    return Lines("power", "Power over time", caption, x, y, series, points=False)


def efficiency(told: Sequence[Scaling | Unpaired], every: Sequence[Shown] = ()) -> Lines | None:
    """Scaling efficiency by the number of devices; None where no job was run on several and on one.

    Its marks open the pages of the jobs among `every` that they are of.
    """
    found = sorted((each for each in told if isinstance(each, Scaling)), key=lambda each: (_line(each), each.devices))
    if not found:
        return None
    links = {run: each.link for each in every for run in each.point.numbers}
    series = [
        Series(name, [_share(name, each, links) for each in group], index % len(STYLES))
        for index, (name, group) in enumerate(groupby(found, key=_line))
    ]
    known = any(mark.y_reach for each in series[:MOST] for mark in each.marks)
    caption = sentence(
        "Speed-up by the number of devices.",
        "Bars are 95 % intervals of repeats." if known else "",
        f"Here are the first {MOST} of {len(series):,} lines." if len(series) > MOST else "",
    )
    return Lines("scaling", "Scaling efficiency", caption, Axis("Devices"), Axis("Scaling efficiency", "%"),
                 series[:MOST], level=Level(100, "ideal"))  # fmt: skip


def _share(name: str, told: Scaling, links: Mapping[int, str | None]) -> Mark:
    """An efficiency in percent; its interval is that of a ratio, and reaches further up than down."""
    share = told.efficiency.scaled(100)
    lines = (f"{name}, {told.devices} {device_unit(told.strategy)}", f"efficiency {percent(told.efficiency)}",
             f"speed-up {times(told.speedup)}", f"runs {', '.join(map(str, told.numbers))}")  # fmt: skip
    reach = None
    if share.low is not None and share.high is not None:
        reach = Reach(share.value - share.low, share.high - share.value)
    return Mark(told.devices, share.value, lines, links.get(told.numbers[0]), y_reach=reach)


def _epochs(
    name: str, title: str, label: str, metric: str, si: str, ordered: Sequence[Shown], said: str = ""
) -> Lines | None:
    """The first of these jobs that know of several epochs."""
    known = [(each, values) for each in ordered if len(values := _by_epoch(each.point, metric)) > 1]
    if not known:
        return None
    means = known[:MOST]
    y, size = axis(f"{label} of the epoch", [value for _, values in means for value in values.values()], si)
    series = []
    for index, (each, values) in enumerate(means):
        marks = [
            Mark(epoch, value / size, each.told(f"epoch {epoch}: {number(value)} {si}"), each.link)
            for epoch, value in values.items()
        ]
        series.append(Series(each.title, marks, index % len(STYLES)))
    warm = {each.point.job.get("warmup_epochs", 0) for each, _ in means}
    bands = [Band(-0.5, max(warm) - 0.5, "warm-up")] if max(warm) else []
    differ = "It differs from job to job." if len(warm) > 1 else ""
    means_of = "Means over repeats." if any(len(each.point.runs) > 1 for each, _ in means) else ""
    warm_up = "The warm-up is in no steady mean." if bands else ""
    caption = sentence(means_of, warm_up, differ, fewer(len(known), MOST), said)
    return Lines(name, title, caption, Axis("Epoch"), y, series, bands)


def _by_epoch(point: Configuration, metric: str) -> dict[int, float]:
    """Means over the runs of what all of them know of an epoch."""
    values: dict[int, list[float]] = {}
    for row in point.runs:
        for epoch, metrics in row.epochs.items():
            if math.isfinite(value := metrics.get(metric, math.nan)):
                values.setdefault(epoch, []).append(value)
    return {epoch: statistics.fmean(found) for epoch, found in sorted(values.items()) if len(found) == len(point.runs)}


def _line(told: Scaling) -> str:
    return f"{told.title}, {told.strategy}, {told.kind} scaling, batch {told.device_batch:g} each"
