"""Time and energy of an epoch by two keys, such as batch size and power limit, with small multiples for a third."""

from __future__ import annotations

import math
from collections.abc import Sequence

from epochmeter.report.charts.chart import Chart, Spec, even_columns, make_axis, make_spec
from epochmeter.report.charts.points import (
    ChartPoint,
    MeanSd,
    by_energy_scope,
    join,
    missing_note,
    name_suffix,
    natural_order,
    scope_note,
    steady,
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


def heatmaps(points: Sequence[ChartPoint], varied: Sequence[str]) -> list[Chart]:
    """Draw time, and energy per energy scope; none if fewer than two keys have several values."""
    keys = [key for key in varied if _is_axis(key, points)]
    keys = sorted(keys, key=lambda key: (*PREFERRED_KEYS, key).index(key))[:2]
    if len(keys) < 2:
        return []
    others = [key for key in varied if key not in keys]
    is_panel = len(others) == 1 and len({point.configuration.value(others[0]) for point in points}) <= MAX_PANELS
    panel = others[0] if is_panel else ""
    charts = [_heatmap("grid_time", "Time per epoch", "e2e_s", "s", points, keys, panel, others)]
    groups = by_energy_scope(points)
    for index, (scope, group) in enumerate(groups.items()):
        without = [point for point in points if point.energy_scope is None]
        name = f"grid_energy{name_suffix(index, groups)}"
        shown = [*group, *without] if scope else group
        charts.append(_heatmap(name, "Energy per epoch", "energy_j", "J", shown, keys, panel, others))
    return [chart for chart in charts if chart]


def _is_axis(key: str, points: Sequence[ChartPoint]) -> bool:
    values = {point.configuration.value(key) for point in points}
    numbers = sum(not natural_order(value)[0] for value in values)
    return 1 < len(values) <= MAX_VALUES and (key == "power_limit" or numbers >= len(values) - 1 > 0)


def _heatmap(
    name: str, label: str, metric: str, base: str, points: Sequence[ChartPoint], keys: Sequence[str], panel: str,
    others: Sequence[str],
) -> Chart | None:  # fmt: skip
    """Draw a cell for each pair of values, with the best of the configurations that share it."""
    measured = [(point, value) for point in points
                if (point.energy_scope or base == "s") and (value := steady(point.configuration, metric))]  # fmt: skip
    cells: dict[tuple[str, ...], tuple[MeanSd, ChartPoint]] = {}
    axes = [*keys, panel] if panel else list(keys)
    for point, value in measured:
        place = tuple(point.configuration.value(key) for key in axes)
        if place not in cells or value.mean < cells[place][0].mean:
            cells[place] = value, point
    if any(len({place[side] for place in cells}) < 2 for side in (0, 1)):
        return None
    across, up = _word(keys[0]), _word(keys[1])
    hosts = ["hosts"] if on_several_hosts([point.configuration for point in points]) else []
    best_over = [] if len(cells) == len(measured) else [*(_word(key) for key in others if key != panel), *hosts]
    possible = math.prod(len({place[side] for place in cells}) for side in range(len(axes)))
    caption = join(
        "A steady epoch.",
        "Empty cells were not run or have no value." if len(cells) < possible else "",
        f"Each cell is the best over {', '.join(best_over)}." if best_over else "",
        missing_note(points, len(measured), "energy") if base == "J" else "",
        scope_note(points) if base == "J" else "",
    )
    spec = _spec(label, metric, base, cells, [across, up, _word(panel)])
    return Chart(name, f"{label} by {across} and {up}", caption, spec)


def _spec(
    label: str, metric: str, base: str, cells: dict[tuple[str, ...], tuple[MeanSd, ChartPoint]], words: Sequence[str]
) -> Spec:
    import altair as alt

    axis = make_axis(label, [value.mean for value, _ in cells.values()], base)
    smallest = min(value.mean for value, _ in cells.values())
    low, high = axis.domain
    middle = math.sqrt(low * high) if axis.scale == "log" else (low + high) / 2
    rows = []
    for place, (value, point) in cells.items():
        text = number(axis.value(value.mean), axis.value(smallest))
        row = point.tooltip(value=value.text(base))
        row |= {"column": place[0], "row": place[1], "cell": axis.value(value.mean), "text": text}
        rows.append({**row, "panel": f"{words[2]} {place[2]}"} if len(place) > 2 else row)
    columns = sorted({place[0] for place in cells}, key=natural_order)
    lines = sorted({place[1] for place in cells}, key=natural_order, reverse=True)
    base_chart = alt.Chart().encode(
        alt.X("column:O", sort=columns, title=words[0], axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        alt.Y("row:O", sort=lines, title=words[1]),
    )
    boxes = base_chart.mark_rect(stroke="white", strokeWidth=1).encode(
        alt.Color(
            "cell:Q",
            scale=alt.Scale(scheme="cividis", type=axis.scale),
            legend=alt.Legend(title=axis.title, gradientLength=200),
        ),
        href="link:N",
        tooltip=[alt.Tooltip(f"{field}:N") for field in ("title", "value", "runs")],
    )
    layers = [boxes]
    if len(rows) <= MAX_TEXTS:
        color = alt.when(alt.datum.cell > middle).then(alt.value("#1c2430")).otherwise(alt.value("white"))
        layers.append(base_chart.mark_text(fontSize=11.5, aria=False).encode(text="text:N", color=color))
    chart = alt.layer(*layers).properties(height=alt.Step(ROW_PX))
    data = alt.NamedData("cells")
    if "panel" in rows[0]:
        panels = sorted({str(row["panel"]) for row in rows}, key=_by_number)
        across = even_columns(len(panels), MAX_COLUMNS)
        faceted = chart.facet(facet=alt.Facet("panel:N", sort=panels), columns=across[0], data=data)
        return make_spec(faceted, "heatmap", {"cells": rows}, columns=across)
    return make_spec(chart.properties(data=data), "heatmap", {"cells": rows})


def _by_number(text: str) -> tuple[bool, float, str]:
    return natural_order(text.rpartition(" ")[2])


def _word(key: str) -> str:
    return key.replace("_", " ")
