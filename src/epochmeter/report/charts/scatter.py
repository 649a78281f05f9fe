"""Energy against time, of an epoch and to a target, with the Pareto front."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from epochmeter.report.charts.bars import time_bars
from epochmeter.report.charts.chart import (
    HEIGHT_PX,
    MAX_SVG_MARKS,
    Axis,
    Chart,
    Rows,
    Spec,
    channel,
    layer,
    make_axis,
    make_spec,
    tooltips,
)
from epochmeter.report.charts.points import (
    ChartPoint,
    MeanSd,
    Palette,
    by_energy_scope,
    join,
    mean_sd,
    missing_energy_note,
    scope_note,
)
from epochmeter.report.runs.configuration import Configuration, quality_target
from epochmeter.report.runs.costs import ENERGY, ENERGY_TO_TARGET, TIME, TIME_TO_TARGET
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
NARROW_PX, LINE_PX, LETTER_PX, LABEL_GAP_PX = 480, 14, 6.4, 12
"""Size of a narrow chart and of its labels, by which labels are kept apart."""
LABEL_PLACES = [(is_right, down) for down in (0, 1.2, -1.2, 2, -2) for is_right in (True, False)]
"""Places of a label in order of preference: right of its point or left of it, and lines below it."""


class Box(NamedTuple):
    """Place of a label in pixels, from the chart's top left corner."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.x_low < other.x_high
            and other.x_low < self.x_high
            and self.y_low < other.y_high
            and other.y_low < self.y_high
        )

    def covers(self, x: float, y: float) -> bool:
        return self.x_low <= x <= self.x_high and self.y_low <= y <= self.y_high


Measured = tuple[ChartPoint, MeanSd, MeanSd]
"""A configuration, its time and its energy."""


def energy_by_time(
    points: Sequence[ChartPoint], palette: Palette, best: Sequence[Best] = (), pareto: Sequence[Configuration] = ()
) -> list[Chart]:
    """Draw energy against time of a steady epoch, one chart per energy scope, with labels at the best."""
    labels: dict[int, list[str]] = {}
    for choice in best:
        labels.setdefault(id(choice.configuration), []).append(BEST_LABELS[choice.name])
    charts = []
    for suffix, measured in _by_scope(points, TIME, ENERGY):
        note = "" if suffix else missing_energy_note(points, len(measured))
        front = {id(configuration) for configuration in pareto}
        name, title = f"energy_by_time{suffix}", "Energy and time per epoch"
        charts.append(_scatter(name, title, "per epoch", measured, palette, front, labels, note))
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
    partly = sum(id(point.configuration) not in complete for point in reached)
    missed = len(group) - len(reached)
    note = join(
        f"{missed:,} of {len(group):,} configurations never reached it." if missed else "",
        f"{partly:,} reached it in some runs only and are not on the front." if partly else "",
    )
    charts = []
    for suffix, measured in _by_scope(reached, TIME_TO_TARGET, ENERGY_TO_TARGET):
        lacking = "" if suffix else missing_energy_note(reached, len(measured))
        candidates = [bar for bar in measured if id(bar[0].configuration) in complete]
        flags = is_pareto_front((energy.mean, time.mean) for _, time, energy in candidates)
        front = {id(point.configuration) for (point, *_), flag in zip(candidates, flags, strict=True) if flag}
        text = join(note, lacking)
        charts.append(_scatter(f"{name}{suffix}", title, "to the target", measured, palette, front, {}, text))
    times_s = [(point, time) for point in reached if (time := mean_sd(point.configuration, TIME_TO_TARGET))]
    return charts or ([time_bars(name, title, times_s, palette, note)] if times_s else [])


def _reached(point: ChartPoint) -> ChartPoint | None:
    """Return a configuration with only its runs that reached the target; None if there are none."""
    runs = [run for run in point.configuration.runs if TIME_TO_TARGET in run.metrics]
    if not runs or len(runs) == len(point.configuration.runs):
        return point if runs else None
    title = f"{point.title}, reached by {len(runs)} of {len(point.configuration.runs)} runs"
    return ChartPoint(Configuration(runs), title)


def _by_scope(points: Sequence[ChartPoint], time: str, energy: str) -> list[tuple[str, list[Measured]]]:
    """Return the configurations that have both metrics by energy scope, with the suffixes of the charts' names."""
    groups = []
    for suffix, group in by_energy_scope(points):
        pairs = ((point, mean_sd(point.configuration, time), mean_sd(point.configuration, energy)) for point in group)
        if measured := [(point, seconds, joules) for point, seconds, joules in pairs if seconds and joules]:
            groups.append((suffix, measured))
    return groups


def _scatter(
    name: str, title: str, of: str, measured: Sequence[Measured], palette: Palette, on_front: Collection[int],
    labels: Mapping[int, Sequence[str]], note: str,
) -> Chart:  # fmt: skip
    """Draw energy against time; `on_front` and `labels` are by the id of a configuration."""
    x = make_axis(f"Time {of}", _positive_ends(time for _, time, _ in measured), "s")
    y = make_axis(f"Energy {of}", _positive_ends(energy for *_, energy in measured), "J", margin=0.16)
    rows = [_row(*cost, x, y, palette) for cost in measured]
    places = [{"x": row["x"], "y": row["y"]} for row in rows]
    ids = [id(point.configuration) for point, *_ in measured]
    front = [place for place, key in zip(places, ids, strict=True) if key in on_front]
    texts = []
    for place, key, row in zip(places, ids, rows, strict=True):
        if words := list(dict.fromkeys(labels.get(key, ()))):
            is_only = len(labels) == 1 and len(words) > 2
            texts.append({**place, "text": "best in all" if is_only else "\n".join(words), "is_best": True})
        elif key in on_front and len(front) <= MAX_LABELS:
            texts.append({**place, "text": row["title"], "is_best": False})
    sd_over = dict.fromkeys(value.over for cost in measured for value in cost[1:] if value.sd is not None)
    caption = join(
        "Each mark is a configuration.",
        palette.caption,
        "Dotted: the Pareto front, where no other configuration is both faster and uses less energy."
        if len(front) > 1
        else "",
        f"Bars are one standard deviation over {' or '.join(sd_over)}." if sd_over else "",
        scope_note([point for point, *_ in measured]),
        note,
    )
    return Chart(name, title, caption, _spec(x, y, rows, front, _placed(texts, places, x, y), palette))


def _positive_ends(values: Iterable[MeanSd]) -> list[float]:
    return [end for value in values for end in value.ends if end > 0] or [0.0]


def _spec(x: Axis, y: Axis, rows: Rows, front: Rows, labels: Rows, palette: Palette) -> Spec:
    is_large = len(rows) > MAX_SVG_MARKS
    axes = {"x": x, "y": y}
    scales = {name: {"type": axis.scale, "domain": axis.domain, "nice": False} for name, axis in axes.items()}
    place = {name: channel(f"{name}:Q", title=axis.title, scale=scales[name]) for name, axis in axes.items()}
    legend = {"title": None} if len(palette.kinds) > 1 else None
    encoding = {
        **place,
        "color": channel("kind:N", scale={"domain": palette.kinds, "range": [*palette.colors.values()]}, legend=legend),
        "shape": channel("kind:N", scale={"domain": palette.kinds, "range": palette.shapes}, legend=legend),
        "href": channel("link:N"),
        "tooltip": tooltips("title", "time", "energy", "runs"),
    }
    layers = []
    if len(front) > 1:
        layers.append(layer("front", "line", place, interpolate="step-after", strokeDash=[2, 4], style="front"))
    for name in () if is_large else ("x", "y"):
        ends = {name: {**place[name], "field": f"{name}_low"}, f"{name}2": {"field": f"{name}_high"}}
        bars = layer("points", "rule", {**place, **ends}, aria=False)
        layers.append({**bars, "transform": [{"filter": f"isValid(datum.{name}_low)"}]})
    size, opacity = (24, 0.7) if is_large else (95, 1)
    layers.append(layer("points", "point", encoding, filled=True, size=size, opacity=opacity, aria=not is_large))
    if labels:
        placed = {name: {"expr": f"datum.{name}"} for name in ("align", "dx", "dy")}
        layers.append(layer("labels", "point", place, size=170, filled=False, style="front", aria=False))
        layers.append(layer("labels", "text", {**place, "text": channel("text:N")}, **placed, aria=False))
    datasets = {"points": rows, "front": front, "labels": labels}
    return make_spec({"layer": layers, "height": HEIGHT_PX}, datasets, is_large=is_large)


def _row(point: ChartPoint, time: MeanSd, energy: MeanSd, x: Axis, y: Axis, palette: Palette) -> dict[str, object]:
    row = point.tooltip(time=time.text("s"), energy=energy.text("J"))
    row["kind"] = palette.kind(point.configuration)
    for name, value, axis in (("x", time, x), ("y", energy, y)):
        row[name] = axis.value(value.mean)
        if value.sd:
            low, high = map(axis.value, value.ends)
            row |= {f"{name}_low": max(low, axis.domain[0]), f"{name}_high": high}
    return row


def _placed(texts: Rows, points: Rows, x: Axis, y: Axis) -> list[dict[str, object]]:
    """Place each label next to its point, inside the chart and clear of other labels and points.

    The labels of the best configurations come first and may cover points. Others are dropped where there is no room.
    """

    def pixels(row: Mapping[str, object]) -> tuple[float, float]:
        across, up = (axis.fraction(float(str(row[name]))) for name, axis in (("x", x), ("y", y)))
        return across * NARROW_PX, (1 - up) * HEIGHT_PX

    places = [pixels(row) for row in points]
    placed: list[dict[str, object]] = []
    boxes: list[Box] = []
    for text in sorted(texts, key=lambda text: not text["is_best"]):
        at_x, at_y = pixels(text)
        lines = str(text["text"]).split("\n")
        width = LETTER_PX * max(map(len, lines))
        candidates = []
        for is_right, down in LABEL_PLACES:
            x_low = at_x + (LABEL_GAP_PX if is_right else -LABEL_GAP_PX - width)
            y_low = at_y + (down - len(lines) / 2) * LINE_PX
            box = Box(x_low, x_low + width, y_low, y_low + len(lines) * LINE_PX)
            is_inside = box.x_low >= 0 and box.x_high <= NARROW_PX and box.y_low >= 0 and box.y_high <= HEIGHT_PX
            if is_inside and not any(map(box.overlaps, boxes)):
                candidates.append((sum(box.covers(*place) for place in places), is_right, box))
        if not candidates:
            continue
        covered, is_right, box = min(candidates, key=itemgetter(0))
        if covered and not text["is_best"]:
            continue
        boxes.append(box)
        side = {"align": "left", "dx": LABEL_GAP_PX} if is_right else {"align": "right", "dx": -LABEL_GAP_PX}
        placed.append({**text, "text": lines, **side, "dy": box.y_low + LINE_PX / 2 - at_y})
    return placed
