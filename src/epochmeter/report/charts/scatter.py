"""Energy against time, of an epoch and to a target, with the Pareto front."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from epochmeter.report.charts.bars import time_bars
from epochmeter.report.charts.chart import HEIGHT_PX, MAX_SVG_MARKS, Axis, Chart, Spec, make_axis, make_spec
from epochmeter.report.charts.points import (
    ChartPoint,
    MeanSd,
    Palette,
    by_energy_scope,
    join,
    missing_note,
    name_suffix,
    over_runs,
    scope_note,
    sd_note,
    steady,
)
from epochmeter.report.runs.configuration import Configuration, quality_target
from epochmeter.report.runs.costs import ENERGY_TO_TARGET, TIME_TO_TARGET
from epochmeter.results.pareto import is_pareto_front

if TYPE_CHECKING:
    from epochmeter.report.analyses.best import Best

BEST_LABELS = {
    "fastest": "fastest",
    "least_energy": "least energy",
    "tradeoff": "best trade-off",
    "within_slowdown": "least energy within slowdown",
    "power_budget": "fastest within power budget",
    "deadline": "least energy by deadline",
}
MAX_LABELS = 8
"""Points of a front that get a label."""
NARROW_PX, LINE_PX, LETTER_PX = 480, 14, 6.4
"""Size of a narrow chart and of its labels, by which labels are kept apart."""


class TimeEnergy(NamedTuple):
    """Time and energy of a configuration."""

    point: ChartPoint
    time: MeanSd
    energy: MeanSd


def energy_by_time(
    points: Sequence[ChartPoint], palette: Palette, best: Sequence[Best] = (), pareto: Sequence[Configuration] = ()
) -> list[Chart]:
    """Draw energy against time of a steady epoch, one chart per energy scope.

    Args:
        points: the configurations.
        palette: their colors.
        best: the recommended configurations, which are labeled.
        pareto: the configurations of the Pareto front.
    """
    on_front = {id(configuration) for configuration in pareto}
    labels: dict[int, list[str]] = {}
    for choice in best:
        labels.setdefault(id(choice.configuration), []).append(BEST_LABELS[choice.name])
    groups = by_energy_scope(points)
    charts: list[Chart] = []
    for index, group in enumerate(groups.values()):
        measured = _measured(group, "steady/e2e_s", "steady/energy_j")
        if measured:
            note = missing_note(points, len(measured), "energy") if len(groups) == 1 else ""
            name = f"energy_by_time{name_suffix(index, groups)}"
            title = "Energy and time per epoch"
            charts.append(_scatter(name, title, "per epoch", measured, palette, on_front, labels, note))
    return charts


def to_target(points: Sequence[ChartPoint], palette: Palette) -> list[Chart]:
    """Draw energy against time to each target; time alone if there is no energy.

    The mean of a configuration that reached the target only in some runs is shown, but is not on the front.
    """
    groups: dict[tuple[str, str], list[ChartPoint]] = {}
    for point in points:
        if goal := quality_target(point.configuration.job):
            groups.setdefault((goal, point.configuration.value("dataset")), []).append(point)
    charts: list[Chart] = []
    for index, ((goal, dataset), group) in enumerate(groups.items()):
        suffix = f"_{index}" if len(groups) > 1 else ""
        charts += _to_target(f"target{suffix}", f"Time and energy to {goal}, {dataset}", group, palette)
    return charts


def _to_target(name: str, title: str, group: Sequence[ChartPoint], palette: Palette) -> list[Chart]:
    reached = [result for point in group if (result := _reached(point))]
    complete = {id(point.configuration) for point in group}
    partly = [point for point in reached if id(point.configuration) not in complete]
    missed = len(group) - len(reached)
    note = join(
        f"{missed:,} of {len(group):,} configurations never reached it." if missed else "",
        f"{len(partly):,} reached it in some runs only and are not on the front." if partly else "",
    )
    scopes = by_energy_scope(reached)
    charts: list[Chart] = []
    for index, points in enumerate(scopes.values()):
        measured = _measured(points, TIME_TO_TARGET, ENERGY_TO_TARGET)
        if measured:
            lacking = missing_note(reached, len(measured), "energy") if len(scopes) == 1 else ""
            front = _front(measured, complete)
            suffix = name_suffix(index, scopes)
            charts.append(
                _scatter(f"{name}{suffix}", title, "to the target", measured, palette, front, {}, join(note, lacking))
            )
    times_s = [(point, time) for point in reached if (time := over_runs(point.configuration, TIME_TO_TARGET))]
    return charts or ([time_bars(name, title, times_s, palette, note)] if times_s else [])


def _measured(points: Sequence[ChartPoint], time_metric: str, energy_metric: str) -> list[TimeEnergy]:
    """Return the configurations that have both metrics; those of steady epochs also for a single run."""
    costs = []
    for point in points:
        time, energy = (_value(point.configuration, metric) for metric in (time_metric, energy_metric))
        if time and energy:
            costs.append(TimeEnergy(point, time, energy))
    return costs


def _value(configuration: Configuration, metric: str) -> MeanSd | None:
    section, _, name = metric.partition("/")
    return steady(configuration, name) if section == "steady" else over_runs(configuration, metric)


def _scatter(
    name: str,
    title: str,
    of: str,
    measured: Sequence[TimeEnergy],
    palette: Palette,
    on_front: Collection[int],
    labels: Mapping[int, Sequence[str]],
    note: str,
) -> Chart:
    """Draw energy against time; `on_front` and `labels` are by the id of a configuration."""
    x = make_axis(f"Time {of}", _ends(cost.time for cost in measured), "s")
    y = make_axis(f"Energy {of}", _ends(cost.energy for cost in measured), "J", margin=0.16)
    rows = [_row(cost, x, y, palette) for cost in measured]
    front = [row for row, cost in zip(rows, measured, strict=True) if id(cost.point.configuration) in on_front]
    texts = []
    for row, cost in zip(rows, measured, strict=True):
        words = list(dict.fromkeys(labels.get(id(cost.point.configuration), ())))
        if words:
            text = "best in all" if len(labels) == 1 and len(words) > 2 else ", ".join(words)
            texts.append({"x": row["x"], "y": row["y"], "text": text})
        elif row in front and len(front) <= MAX_LABELS:
            texts.append({"x": row["x"], "y": row["y"], "text": row["title"]})
    caption = join(
        f"Each mark is a configuration{f'; colors show {palette.label}' if palette.key else ''}.",
        "Dotted: the Pareto front, where no other configuration is both faster and uses less energy."
        if len(front) > 1
        else "",
        sd_note([value for cost in measured for value in (cost.time, cost.energy)]),
        scope_note([cost.point for cost in measured]),
        note,
    )
    corners = [{"x": row["x"], "y": row["y"]} for row in front]
    return Chart(name, title, caption, _spec(x, y, rows, corners, _placed(texts, x, y), palette))


def _ends(values: Iterable[MeanSd]) -> list[float]:
    """Return the ends of the error bars, as far as they are above zero."""
    ends = [end for value in values for end in (value.mean - (value.sd or 0.0), value.mean + (value.sd or 0.0))]
    return [end for end in ends if end > 0] or [0.0]


def _spec(
    x: Axis,
    y: Axis,
    rows: Sequence[Mapping[str, object]],
    front: Sequence[Mapping[str, object]],
    labels: Sequence[Mapping[str, object]],
    palette: Palette,
) -> Spec:
    import altair as alt

    is_large = len(rows) > MAX_SVG_MARKS
    scales = [alt.Scale(type=axis.scale, domain=list(axis.domain), nice=False) for axis in (x, y)]
    across, x_low = (alt.X(f"{field}:Q", title=x.title, scale=scales[0]) for field in ("x", "x_low"))
    up, y_low = (alt.Y(f"{field}:Q", title=y.title, scale=scales[1]) for field in ("y", "y_low"))
    legend = alt.Legend(title=None) if len(palette.kinds) > 1 else None
    points = (
        alt.Chart(alt.NamedData("points"))
        .mark_point(filled=True, size=24 if is_large else 95, opacity=0.7 if is_large else 1, aria=not is_large)
        .encode(
            across,
            up,
            alt.Color("kind:N", scale=alt.Scale(domain=list(palette.kinds), range=palette.colors), legend=legend),
            alt.Shape("kind:N", scale=alt.Scale(domain=list(palette.kinds), range=palette.shapes), legend=legend),
            href="link:N",
            tooltip=[alt.Tooltip(f"{field}:N") for field in ("title", "time", "energy", "runs")],
        )
    )
    layers: list[alt.Chart] = []
    if len(front) > 1:
        line = alt.Chart(alt.NamedData("front")).mark_line(interpolate="step-after", strokeDash=[2, 4], style="front")
        layers.append(line.encode(across, up))
    if not is_large:
        bars = alt.Chart(alt.NamedData("points")).mark_rule(aria=False)
        layers.append(bars.transform_filter("isValid(datum.x_low)").encode(x_low, up, x2="x_high:Q"))
        layers.append(bars.transform_filter("isValid(datum.y_low)").encode(across, y_low, y2="y_high:Q"))
    layers.append(points)
    if labels:
        text = alt.Chart(alt.NamedData("labels")).mark_text(
            align=alt.expr("datum.align"), dy=alt.expr("datum.dy"), dx=alt.expr("datum.dx"), aria=False
        )
        rings = alt.Chart(alt.NamedData("labels")).mark_point(size=170, filled=False, style="front", aria=False)
        layers += [rings.encode(across, up), text.encode(across, up, text="text:N")]
    datasets = {"points": rows, "front": front, "labels": labels}
    chart = alt.layer(*layers).properties(height=HEIGHT_PX)
    return make_spec(chart, "scatter", datasets, is_large=is_large)


def _row(cost: TimeEnergy, x: Axis, y: Axis, palette: Palette) -> dict[str, object]:
    row = cost.point.tooltip(time=cost.time.text("s"), energy=cost.energy.text("J"))
    row |= {
        "x": x.value(cost.time.mean),
        "y": y.value(cost.energy.mean),
        "kind": palette.kind(cost.point.configuration),
    }
    for name, value, axis in (("x", cost.time, x), ("y", cost.energy, y)):
        if value.sd:
            row[f"{name}_low"] = axis.value(max(value.mean - value.sd, axis.domain[0] * axis.unit.size))
            row[f"{name}_high"] = axis.value(value.mean + value.sd)
    return row


def _placed(texts: Sequence[Mapping[str, object]], x: Axis, y: Axis) -> list[dict[str, object]]:
    """Place each label on the first line below its point where it covers no other label."""
    placed: list[dict[str, object]] = []
    boxes: list[tuple[float, float, float]] = []
    for text in sorted(texts, key=lambda text: float(str(text["x"]))):
        across, up = (axis.fraction(float(str(text[name]))) for name, axis in (("x", x), ("y", y)))
        width = LETTER_PX * len(str(text["text"]))
        is_left = across < 0.6
        start = across * NARROW_PX - (0 if is_left else width)
        top = (1 - up) * HEIGHT_PX
        lines = (top + LINE_PX * (line + 1.2) for line in range(len(texts)))
        below = next(
            place
            for place in lines
            if all(
                abs(place - other_top) >= LINE_PX or start > other_end or start + width < other_start
                for other_start, other_end, other_top in boxes
            )
        )
        boxes.append((start, start + width, below))
        side = {"align": "left" if is_left else "right", "dx": -4 if is_left else 4, "dy": below - top}
        placed.append({**text, **side})
    return placed


def _front(measured: Sequence[TimeEnergy], complete: Collection[int]) -> set[int]:
    """Return the ids of the configurations on the front, among those that always reached the target."""
    candidates = [cost for cost in measured if id(cost.point.configuration) in complete]
    flags = is_pareto_front((cost.energy.mean, cost.time.mean) for cost in candidates)
    return {id(cost.point.configuration) for cost, flag in zip(candidates, flags, strict=True) if flag}


def _reached(point: ChartPoint) -> ChartPoint | None:
    """Return a configuration with only its runs that reached the target; None if there are none."""
    runs = [run for run in point.configuration.runs if TIME_TO_TARGET in run.metrics]
    if not runs or len(runs) == len(point.configuration.runs):
        return point if runs else None
    title = f"{point.title}, reached by {len(runs)} of {len(point.configuration.runs)} runs"
    return ChartPoint(Configuration(runs), title)
