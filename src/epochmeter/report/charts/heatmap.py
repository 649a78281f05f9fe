"""Time and energy of an epoch by two keys, such as batch size and power limit, with small multiples for a third."""

from __future__ import annotations

import math
from collections.abc import Sequence

from epochmeter.report.charts.chart import Chart, Spec, channel, even_columns, layer, make_axis, make_spec, tooltips
from epochmeter.report.charts.points import (
    ChartPoint,
    MeanSd,
    by_energy_scope,
    join,
    mean_sd,
    missing_energy_note,
    natural_order,
    scope_note,
)
from epochmeter.report.formatting import number
from epochmeter.report.runs.configuration import on_several_hosts

PREFERRED_KEYS = ("batch", "power_limit", "workers")
MAX_VALUES = 24
"""Values of a key on an axis."""
MAX_PANELS, MAX_COLUMNS = 6, 2
MAX_TEXTS = 150
"""Cells up to which their values are written into them."""
ROW_PX = 34
Cells = dict[tuple[str, ...], tuple[MeanSd, ChartPoint]]
"""Values of the keys -> the best of the configurations that share them."""


def heatmaps(points: Sequence[ChartPoint], varied: Sequence[str]) -> list[Chart]:
    """Draw time, and energy per energy scope; none if fewer than two keys have several values."""
    axes = sorted((key for key in varied if _is_axis(key, points)), key=lambda key: (*PREFERRED_KEYS, key).index(key))
    keys = axes[:2]
    if len(keys) < 2:
        return []
    others = [key for key in varied if key not in keys]
    if len(others) == 1 and len({point.configuration.value(others[0]) for point in points}) <= MAX_PANELS:
        keys, others = [*keys, *others], []
    charts = [_heatmap("grid_time", "Time per epoch", "s", points, keys, others)]
    for suffix, group in by_energy_scope(points):
        shown = [*group, *(point for point in points if point.configuration.energy_scope is None)]
        charts.append(_heatmap(f"grid_energy{suffix}", "Energy per epoch", "J", shown, keys, others))
    return [chart for chart in charts if chart]


def _is_axis(key: str, points: Sequence[ChartPoint]) -> bool:
    values = {point.configuration.value(key) for point in points}
    numbers = sum(not natural_order(value)[0] for value in values)
    return 1 < len(values) <= MAX_VALUES and (key == "power_limit" or numbers >= len(values) - 1 > 0)


def _heatmap(
    name: str, label: str, base: str, points: Sequence[ChartPoint], keys: Sequence[str], others: Sequence[str]
) -> Chart | None:
    metric = {"s": "steady/e2e_s", "J": "steady/energy_j"}[base]
    candidates = [point for point in points if base == "s" or point.configuration.energy_scope]
    measured = [(value, point) for point in candidates if (value := mean_sd(point.configuration, metric))]
    cells: Cells = {}
    for value, point in sorted(measured, key=lambda pair: -pair[0].mean):  # the best last
        cells[tuple(point.configuration.value(key) for key in keys)] = value, point
    if any(len({place[side] for place in cells}) < 2 for side in (0, 1)):
        return None
    words = [key.replace("_", " ") for key in (*keys, *others)]
    hosts = ["hosts"] if on_several_hosts([point.configuration for point in points]) else []
    best_over = [*words[len(keys) :], *hosts] if len(cells) < len(measured) else []
    possible = math.prod(len({place[side] for place in cells}) for side in range(len(keys)))
    caption = join(
        "A steady epoch.",
        "Empty cells were not run or have no value." if len(cells) < possible else "",
        f"Each cell is the best over {', '.join(best_over)}." if best_over else "",
        join(missing_energy_note(points, len(measured)), scope_note(points)) if base == "J" else "",
    )
    return Chart(name, f"{label} by {words[0]} and {words[1]}", caption, _spec(label, base, cells, words))


def _spec(label: str, base: str, cells: Cells, words: Sequence[str]) -> Spec:
    axis = make_axis(label, [value.mean for value, _ in cells.values()], base)
    smallest = min(value.mean for value, _ in cells.values())
    rows = []
    for values, (value, point) in cells.items():
        text = number(axis.value(value.mean), axis.value(smallest))
        row = {"column": values[0], "row": values[1], "cell": axis.value(value.mean), "text": text}
        panel = {"panel": f"{words[2]} {values[2]}"} if len(values) > 2 else {}
        rows.append({**point.tooltip(value=value.text(base)), **row, **panel})
    columns, lines = (sorted({values[side] for values in cells}, key=natural_order) for side in (0, 1))
    place = {
        "x": channel("column:O", sort=columns, title=words[0], axis={"labelAngle": 0, "labelOverlap": True}),
        "y": channel("row:O", sort=lines[::-1], title=words[1]),
    }
    legend = {"title": axis.title, "gradientLength": 200}
    cell = {
        "color": channel("cell:Q", scale={"scheme": "cividis", "type": axis.scale}, legend=legend),
        "href": channel("link:N"),
        "tooltip": tooltips("title", "value", "runs"),
    }
    layers = [layer(None, "rect", {**place, **cell}, stroke="white", strokeWidth=1)]
    if len(rows) <= MAX_TEXTS:
        low, high = axis.domain
        middle = math.sqrt(low * high) if axis.scale == "log" else (low + high) / 2
        dark_on_light = {"condition": {"test": f"datum.cell > {middle}", "value": "#1c2430"}, "value": "white"}
        text_of = {"text": channel("text:N"), "color": dark_on_light}
        layers.append(layer(None, "text", {**place, **text_of}, fontSize=11.5, aria=False))
    view: Spec = {"layer": layers, "height": {"step": ROW_PX}}
    data = {"name": "cells"}
    if "panel" not in rows[0]:
        return make_spec({**view, "data": data}, {"cells": rows})
    panels = sorted({str(row["panel"]) for row in rows}, key=lambda panel: natural_order(panel.rpartition(" ")[2]))
    across = even_columns(len(panels), MAX_COLUMNS)
    faceted = {"facet": channel("panel:N", sort=panels), "columns": across[0], "data": data, "spec": view}
    return make_spec(faceted, {"cells": rows}, columns=across)
