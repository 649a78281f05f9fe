"""Time and energy of an epoch by two keys, such as batch size and power limit, with small multiples for a third."""

import math
from collections.abc import Sequence

from epochmeter.report.charts import points, vega
from epochmeter.report.charts.points import MeanSd, mean_sd, natural_order
from epochmeter.report.charts.vega import Chart, channel
from epochmeter.report.formatting import metric_title
from epochmeter.report.render import phrase
from epochmeter.report.runs.configuration import Configuration, on_several_hosts, varied
from epochmeter.report.runs.costs import PER_EPOCH, TO_TARGET, costs_to_target
from epochmeter.results.metrics import find
from epochmeter.results.quantities import number

PREFERRED_KEYS = ("batch", "power_limit", "workers")
TARGETS = ("target_accuracy", "target_loss")
MAX_VALUES = 24  # values of a key on an axis
MAX_PANELS, MAX_COLUMNS = 6, 2
MAX_TEXTS = 150  # cells up to which their values are written into them
ROW_PX = 34
Cells = dict[tuple[str, ...], tuple[MeanSd, Configuration]]
"""Values of the keys -> the best of the configurations that share them."""


def heatmaps(configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw time and energy, per epoch or up to their target; none if fewer than two keys have several values."""
    keys = varied(configurations)
    counts = {key: len({configuration.value(key) for configuration in configurations}) for key in keys}
    axes = [key for key in keys if counts[key] <= MAX_VALUES and _is_axis(key, configurations)]
    axes = sorted(axes, key=lambda key: (*PREFERRED_KEYS, key).index(key))[:2]
    others = [key for key in keys if key not in axes]
    if len(axes) < 2:
        return []
    if len(others) == 1 and counts[others[0]] <= MAX_PANELS:
        axes, others = [*axes, *others], []
    time, energy = TO_TARGET if costs_to_target(configurations) else PER_EPOCH
    charts = _heatmap("grid_time", metric_title(time), time, configurations, axes, others)
    for suffix, scope, group in points.by_energy_scope(configurations):
        shown = [*group, *(configuration for configuration in configurations if configuration.energy_scope is None)]
        charts += _heatmap(f"grid_energy{suffix}", metric_title(energy), energy, shown, axes, others, scope)
    return charts


def _is_axis(key: str, configurations: Sequence[Configuration]) -> bool:
    """Whether a key has several values, all of them but one numbers, or is a power limit."""
    is_word = [natural_order(value)[0] for value in {configuration.value(key) for configuration in configurations}]
    return key not in TARGETS and len(is_word) > 1 and (key == "power_limit" or sum(is_word) <= 1)


def _heatmap(
    name: str, label: str, metric: str, shown: Sequence[Configuration], keys: Sequence[str], others: Sequence[str],
    scope: str = "",
) -> list[Chart]:  # fmt: skip
    """Draw a metric by the keys: a time, or the energy of a scope; none if a key has no two values with it."""
    candidates = [configuration for configuration in shown if configuration.energy_scope or not scope]
    measured = [(value, configuration) for configuration in candidates if (value := mean_sd(configuration, metric))]
    cells: Cells = {}
    for value, configuration in sorted(measured, key=lambda pair: -pair[0].mean):  # the best last
        cells[tuple(configuration.value(key) for key in keys)] = value, configuration
    values = [sorted({place[side] for place in cells}, key=natural_order) for side in range(len(keys))]
    if min(map(len, values[:2])) < 2:
        return []
    words = [key.replace("_", " ") for key in (*keys, *others)]
    hosts = ["hosts"] if on_several_hosts(shown) else []
    caption = {
        "steady_epoch": metric.startswith("steady/"),
        "empty_cells": len(cells) < math.prod(map(len, values)),
        "best_over": ", ".join([*words[len(keys) :], *hosts]) if len(cells) < len(measured) else "",
        "without_energy": points.without_energy(shown, len(measured)) if scope else None,
        "scope": scope,
    }
    title = phrase("by_keys", label=label, first=words[0], second=words[1])
    return [Chart(name, title, _spec(label, find(metric).unit, cells, values, words), caption)]


def _spec(label: str, base: str, cells: Cells, values: Sequence[Sequence[str]], words: Sequence[str]) -> vega.Spec:
    means = [value.mean for value, _ in cells.values()]
    axis = vega.make_axis(label, means, base)
    rows = []
    for place, (value, configuration) in sorted(cells.items(), key=lambda cell: natural_order(cell[0][-1])):
        row = points.tooltip(configuration, value=value.text(base)) | {"column": place[0], "row": place[1]}
        row |= {"cell": axis.value(value.mean), "text": number(axis.value(value.mean), axis.value(min(means)))}
        rows.append(row | ({"panel": f"{words[2]} {place[2]}"} if len(place) > 2 else {}))
    position = {
        "x": channel("column:O", sort=values[0], title=words[0], axis={"labelAngle": 0, "labelOverlap": True}),
        "y": channel("row:O", sort=values[1][::-1], title=words[1]),
    }
    legend = {"title": axis.title, "gradientLength": 200}
    color = channel("cell:Q", scale={"scheme": "cividis", "type": axis.scale}, legend=legend)
    cell = {**position, "color": color, **vega.on_hover("title", "value", "runs")}
    layers = [vega.layer(None, "rect", cell, stroke="white", strokeWidth=1)]
    if len(rows) <= MAX_TEXTS:
        low, high = axis.domain
        middle = math.sqrt(low * high) if axis.scale == "log" else (low + high) / 2
        dark_on_light = {"condition": {"test": f"datum.cell > {middle}", "value": "#1c2430"}, "value": "white"}
        text = {**position, "text": channel("text:N"), "color": dark_on_light}
        layers.append(vega.layer(None, "text", text, fontSize=11.5, aria=False))
    view: vega.Spec = {"layer": layers, "height": {"step": ROW_PX}}
    if len(values) > 2:
        return vega.small_multiples(view, rows, MAX_COLUMNS)
    return vega.make_spec({**view, "data": {"name": "values"}}, {"values": rows})
