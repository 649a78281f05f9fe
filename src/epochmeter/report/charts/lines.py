"""Time and energy by epoch, power over time, and scaling efficiency."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby, islice

from epochmeter.report.analyses.scaling import Scaling
from epochmeter.report.charts.chart import (
    COLORS,
    HEIGHT_PX,
    Chart,
    Rows,
    Spec,
    channel,
    even_columns,
    layer,
    make_axis,
    make_spec,
    tooltips,
)
from epochmeter.report.charts.points import ChartPoint, Palette, by_energy_scope, join, mean_sd, scope_note
from epochmeter.report.formatting import interval, percent, quantity
from epochmeter.report.runs.configuration import Configuration, device_unit
from epochmeter.report.runs.costs import TIME
from epochmeter.report.runs.power import Power

MAX_PANELS = 6
MAX_LINES = 8
PANEL_PX = 130
MAX_COLUMNS = 3
MAX_TICKS = 6


def epochs(points: Sequence[ChartPoint], palette: Palette) -> list[Chart]:
    """Draw the time, and the energy per energy scope, of each epoch of the fastest configurations."""
    times = [(time.mean, place) for place, point in enumerate(points) if (time := mean_sd(point.configuration, TIME))]
    fastest = [points[place] for _, place in sorted(times)]
    charts = [_epochs("epochs_time", "Time by epoch", "epoch/e2e_s", "s", fastest, palette)]
    for suffix, group in by_energy_scope(fastest):
        name, note = f"epochs_energy{suffix}", scope_note(group)
        charts.append(_epochs(name, "Energy by epoch", "epoch/energy_j", "J", group, palette, note))
    return [chart for chart in charts if chart]


def power_over_time(powers: Sequence[Power], points: Sequence[ChartPoint], palette: Palette) -> Chart | None:
    """Draw the sampled power of runs, one panel per run; None if there are no samples."""
    if not powers:
        return None
    by_run = {run.number: point for point in points for run in point.configuration.runs}
    x = make_axis("Time since the first sample", [power.times_s[-1] for power in powers], "s", zero=True)
    y = make_axis("Power", [watts for power in powers for watts in power.powers_w], "W", zero=True)
    rows = []
    for power in powers:
        point = by_run.get(power.row.number)
        panel = f"{point.title} (run {power.row.number})" if point else f"run {power.row.number}"
        color = palette.color(point.configuration) if point else COLORS[0]
        for time_s, watts in zip(power.times_s, power.powers_w, strict=True):
            rows.append({"panel": panel, "x": x.value(time_s), "y": y.value(watts), "color": color})
    longest_s = max(power.mean_of_s for power in powers)
    scopes = dict.fromkeys(str(power.row.energy_covers) for power in powers if power.row.energy_covers)
    caption = join(
        "Idle time before and after, warm-up and evaluation are included.",
        f"Each value is the mean of up to {quantity(longest_s, 's')}." if longest_s else "",
        f"Power of: {'; '.join(scopes)}." if scopes else "",
    )
    return Chart("power", "Power over time", caption, _panels(rows, x.title, y.title, has_points=False))


def efficiency(results: Sequence[Scaling], points: Sequence[ChartPoint] = ()) -> Chart | None:
    """Draw scaling efficiency by the number of devices; None if no configuration ran on one and on several."""
    if not results:
        return None
    by_run = {number: point for point in points for number in point.configuration.numbers}
    scalings = sorted(results, key=lambda result: (_line(result), result.devices))
    lines = [(name, list(group)) for name, group in groupby(scalings, key=_line)]
    rows = [_efficiency_row(name, result, by_run) for name, group in lines[:MAX_LINES] for result in group]
    place = {
        "x": channel("devices:O", title="Devices", axis={"labelAngle": 0}),
        "y": channel("percent:Q", title="Scaling efficiency (%)"),
        "color": channel("line:N", legend={"title": None, "columns": 1}, sort=None),
    }
    ends = {"y": {**place["y"], "field": "low"}, "y2": {"field": "high"}}
    shown = {"href": channel("link:N"), "tooltip": tooltips("title", "efficiency", "speedup", "runs")}
    ideal = layer("ideal", "rule", {"y": channel("percent:Q")}, strokeDash=[4, 4], style="reference")
    bars = layer("results", "rule", {**place, **ends}, aria=False)
    intervals = {**bars, "transform": [{"filter": "isValid(datum.low)"}]}
    marks = layer("results", "line", {**place, **shown}, point={"size": 70})
    caption = join(
        "Speed-up divided by the number of devices; dashed: ideal.",
        "Bars are 95 % intervals." if any("low" in row for row in rows) else "",
        f"The first {MAX_LINES} of {len(lines):,} lines." if len(lines) > MAX_LINES else "",
    )
    view = {"layer": [ideal, intervals, marks], "height": HEIGHT_PX}
    spec = make_spec(view, {"results": rows, "ideal": [{"percent": 100}]})
    return Chart("scaling", "Scaling efficiency", caption, spec)


def _efficiency_row(name: str, result: Scaling, by_run: Mapping[int, ChartPoint]) -> dict[str, object]:
    share = result.efficiency
    row: dict[str, object] = {
        "title": f"{name}, {result.devices} {device_unit(result.strategy)}",
        "line": name,
        "devices": result.devices,
        "percent": 100 * share.value,
        "efficiency": percent(share.value, 1),
        "speedup": interval(result.speedup, "times"),
        "runs": ", ".join(map(str, result.numbers)),
    }
    if share.low is not None and share.high is not None:
        row |= {"low": 100 * share.low, "high": 100 * share.high}
    point = by_run.get(result.numbers[0])
    return {**row, "link": point.configuration.link} if point and point.configuration.link else row


def _epochs(
    name: str, title: str, metric: str, base: str, points: Sequence[ChartPoint], palette: Palette, note: str = ""
) -> Chart | None:
    """Draw the first of these configurations that have several epochs, one panel each."""
    with_epochs = ((point, values) for point in points if len(values := _by_epoch(point.configuration, metric)) > 1)
    shown = list(islice(with_epochs, MAX_PANELS))
    if not shown:
        return None
    values_of = [value for _, values in shown for value in values.values()]
    axis = make_axis(title.partition(" ")[0], values_of, base, zero=True)
    rows = []
    for point, values in shown:
        warm_up = point.configuration.job.get("warmup_epochs", 0)
        color = palette.color(point.configuration)
        for epoch, value in values.items():
            tooltip = point.tooltip(epoch=str(epoch + 1), value=quantity(value, base))
            row = {"panel": point.title, "x": epoch + 1, "y": axis.value(value), "is_warm_up": epoch < warm_up}
            rows.append({**tooltip, **row, "color": color})
    caption = join(
        palette.caption,
        "Hollow points are warm-up epochs, which are in no mean." if any(row["is_warm_up"] for row in rows) else "",
        "Means over repeats." if any(len(point.configuration.runs) > 1 for point, _ in shown) else "",
        f"The {MAX_PANELS} fastest configurations." if len(points) > MAX_PANELS else "",
        note,
    )
    return Chart(name, title, caption, _panels(rows, "Epoch", axis.title, has_points=True))


def _panels(rows: Rows, x: str, y: str, *, has_points: bool) -> Spec:
    """Small multiples: one panel per value of `panel`, all with the same axes."""
    ticks = {"values": _epoch_ticks(rows), "format": "d"} if has_points else {}
    place = {
        "x": channel("x:Q", title=x, axis=ticks, scale={"zero": False, "nice": not has_points}),
        "y": channel("y:Q", title=y, axis={"tickCount": 4}),
        "color": channel("color:N", scale=None),
    }
    layers = [layer(None, "line", place, strokeWidth=1.4, aria=False)]
    if has_points:
        shown = {
            "fill": channel("color:N", scale=None),
            "fillOpacity": {"condition": {"test": "datum.is_warm_up", "value": 0}, "value": 1},
            "href": channel("link:N"),
            "tooltip": tooltips("title", "epoch", "value", "runs"),
        }
        layers.append(layer(None, "point", {**place, **shown}, size=55, filled=False))
    panels = list(dict.fromkeys(str(row["panel"]) for row in rows))
    columns = even_columns(len(panels), MAX_COLUMNS)
    faceted = {
        "facet": channel("panel:N", sort=panels),
        "columns": columns[0],
        "data": {"name": "values"},
        "spec": {"layer": layers, "height": PANEL_PX},
    }
    return make_spec(faceted, {"values": rows}, columns=columns)


def _epoch_ticks(rows: Rows) -> list[int]:
    """Return few integer ticks; with `tickMinStep=1`, Vega draws ticks at half epochs too."""
    epochs = sorted({int(str(row["x"])) for row in rows})
    step = math.ceil((epochs[-1] - epochs[0] + 1) / MAX_TICKS)
    return list(range(epochs[0], epochs[-1] + 1, step))


def _by_epoch(configuration: Configuration, metric: str) -> dict[int, float]:
    """Return the means over the runs of the epochs that all runs have."""
    values: dict[int, list[float]] = {}
    for run in configuration.runs:
        for epoch, metrics in run.epochs.items():
            if math.isfinite(value := metrics.get(metric, math.nan)):
                values.setdefault(epoch, []).append(value)
    complete = {epoch: means for epoch, means in sorted(values.items()) if len(means) == len(configuration.runs)}
    return {epoch: statistics.fmean(means) for epoch, means in complete.items()}


def _line(result: Scaling) -> str:
    return f"{result.title}, {result.strategy}, {result.kind} scaling, batch {result.device_batch:g} per device"
