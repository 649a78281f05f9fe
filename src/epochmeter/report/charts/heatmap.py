"""Time and energy of an epoch by two keys, such as batch size and power limit, with small multiples for a third."""

from __future__ import annotations

import math
from collections.abc import Sequence

from epochmeter.report.charts import vega
from epochmeter.report.charts.points import (
    MeanSd,
    by_energy_scope,
    mean_sd,
    natural_order,
    scopes,
    tooltip,
    without_energy,
)
from epochmeter.report.charts.vega import Chart, channel
from epochmeter.report.formatting import number
from epochmeter.report.render import phrase
from epochmeter.report.runs.configuration import Configuration, on_several_hosts, varied
from epochmeter.report.runs.costs import ENERGY, ENERGY_TO_TARGET, TIME, TIME_TO_TARGET, costs_to_target

PREFERRED_KEYS = ("batch", "power_limit", "workers")
TARGETS = ("target_accuracy", "target_loss")
MAX_VALUES = 24
"""Values of a key on an axis."""
MAX_PANELS, MAX_COLUMNS = 6, 2
MAX_TEXTS = 150
"""Cells up to which their values are written into them."""
ROW_PX = 34
Cells = dict[tuple[str, ...], tuple[MeanSd, Configuration]]
"""Values of the keys -> the best of the configurations that share them."""


def heatmaps(configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw time, and energy per energy scope; none if fewer than two keys have several values.

    They are those per epoch, or up to the target that the configurations are ranked by.
    """
    keys = varied(configurations)
    axes = [key for key in keys if _is_axis(key, configurations)]
    axes = sorted(axes, key=lambda key: (*PREFERRED_KEYS, key).index(key))[:2]
    if len(axes) < 2:
        return []
    others = [key for key in keys if key not in axes]
    if len(others) == 1 and len({configuration.value(others[0]) for configuration in configurations}) <= MAX_PANELS:
        axes, others = [*axes, *others], []
    of, time, energy = "per_epoch", TIME, ENERGY
    if costs_to_target(configurations):
        of, time, energy = "to_target", TIME_TO_TARGET, ENERGY_TO_TARGET
    charts = [_heatmap("grid_time", phrase(f"time_{of}"), "s", time, configurations, axes, others)]
    for suffix, group in by_energy_scope(configurations):
        shown = [*group, *(configuration for configuration in configurations if configuration.energy_scope is None)]
        charts.append(_heatmap(f"grid_energy{suffix}", phrase(f"energy_{of}"), "J", energy, shown, axes, others))
    return [chart for chart in charts if chart]


def _is_axis(key: str, configurations: Sequence[Configuration]) -> bool:
    values = {configuration.value(key) for configuration in configurations}
    numbers = sum(not natural_order(value)[0] for value in values)
    return (
        key not in TARGETS
        and 1 < len(values) <= MAX_VALUES
        and (key == "power_limit" or numbers >= len(values) - 1 > 0)
    )


def _heatmap(
    name: str, label: str, base: str, metric: str, shown: Sequence[Configuration], keys: Sequence[str],
    others: Sequence[str],
) -> Chart | None:  # fmt: skip
    candidates = [configuration for configuration in shown if base == "s" or configuration.energy_scope]
    measured = [(value, configuration) for configuration in candidates if (value := mean_sd(configuration, metric))]
    cells: Cells = {}
    for value, configuration in sorted(measured, key=lambda pair: -pair[0].mean):  # the best last
        cells[tuple(configuration.value(key) for key in keys)] = value, configuration
    if any(len({place[side] for place in cells}) < 2 for side in (0, 1)):
        return None
    words = [key.replace("_", " ") for key in (*keys, *others)]
    hosts = ["hosts"] if on_several_hosts(shown) else []
    possible = math.prod(len({place[side] for place in cells}) for side in range(len(keys)))
    caption = {
        "steady_epoch": metric.startswith("steady/"),
        "empty_cells": len(cells) < possible,
        "best_over": ", ".join([*words[len(keys) :], *hosts]) if len(cells) < len(measured) else "",
        "without_energy": without_energy(shown, len(measured)) if base == "J" else None,
        "scope": scopes(shown) if base == "J" else "",
    }
    title = phrase("by_keys", label=label, first=words[0], second=words[1])
    return Chart(name, title, _spec(label, base, cells, words), caption)


def _spec(label: str, base: str, cells: Cells, words: Sequence[str]) -> vega.Spec:
    axis = vega.make_axis(label, [value.mean for value, _ in cells.values()], base)
    smallest = min(value.mean for value, _ in cells.values())
    rows = []
    for values, (value, configuration) in cells.items():
        text = number(axis.value(value.mean), axis.value(smallest))
        row = {"column": values[0], "row": values[1], "cell": axis.value(value.mean), "text": text}
        panel = {"panel": f"{words[2]} {values[2]}"} if len(values) > 2 else {}
        rows.append({**tooltip(configuration, value=value.text(base)), **row, **panel})
    columns, lines = (sorted({values[side] for values in cells}, key=natural_order) for side in (0, 1))
    place = {
        "x": channel("column:O", sort=columns, title=words[0], axis={"labelAngle": 0, "labelOverlap": True}),
        "y": channel("row:O", sort=lines[::-1], title=words[1]),
    }
    legend = {"title": axis.title, "gradientLength": 200}
    cell = {
        "color": channel("cell:Q", scale={"scheme": "cividis", "type": axis.scale}, legend=legend),
        "href": channel("link:N"),
        "tooltip": vega.tooltips("title", "value", "runs"),
    }
    layers = [vega.layer(None, "rect", {**place, **cell}, stroke="white", strokeWidth=1)]
    if len(rows) <= MAX_TEXTS:
        low, high = axis.domain
        middle = math.sqrt(low * high) if axis.scale == "log" else (low + high) / 2
        dark_on_light = {"condition": {"test": f"datum.cell > {middle}", "value": "#1c2430"}, "value": "white"}
        text_of = {"text": channel("text:N"), "color": dark_on_light}
        layers.append(vega.layer(None, "text", {**place, **text_of}, fontSize=11.5, aria=False))
    view: vega.Spec = {"layer": layers, "height": {"step": ROW_PX}}
    panels = {str(row["panel"]) for row in rows if "panel" in row}
    if not panels:
        return vega.make_spec({**view, "data": {"name": "values"}}, {"values": rows})
    in_order = sorted(panels, key=lambda panel: natural_order(panel.rpartition(" ")[2]))
    return vega.small_multiples(view, rows, in_order, MAX_COLUMNS)
