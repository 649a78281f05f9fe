"""Pictures that can be pointed at, for a page: as plotly draws them.

Plotly reads a little HTML in every text, so that all of ours is escaped; what is clicked on opens a web page only.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from epochmeter.report.figures import STYLES, Axis, Bars, Chart, Heatmap, Lines, Mark, Reach, Scatter, Series, shortened

INK, MUTED, RULE = "#1c2430", "#5b6675", "#e3e7ec"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
NOTE = {"showarrow": False, "font": {"color": MUTED}}
MARKERS = {"triangle": "triangle-up", "cross": "x"}
MANY = 1000
"""From so many marks on they are drawn by the graphics card, without bars: those would hide the marks."""
HEIGHT_PX = 440
TOLD = "%{customdata[0]}<extra></extra>"
PATTERN = {"fillmode": "overlay", "fgcolor": "white", "size": 6, "solidity": 0.2}
NO_BAR = "-"
"""Plotly takes null for a bar of no length; of what is no number it draws none."""
SCHEMES = ("http://", "https://")


def script() -> str:
    """The source of plotly.js."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def drawn(chart: Chart) -> str:
    """A picture as the JSON that plotly.js takes: its `data` and its `layout`."""
    from plotly.graph_objects import Figure

    pens: dict[type, Any] = {Scatter: _scatter, Lines: _lines, Bars: _bars, Heatmap: _heatmap}
    data, layout = pens[type(chart)](chart)
    whole = {
        "template": "none",
        "font": {"family": FONT, "size": 13, "color": INK},
        "height": HEIGHT_PX,
        "margin": {"l": 16, "r": 16, "t": 16, "b": 16},
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "bgcolor": "white", "bordercolor": RULE, "font": {"color": INK, "size": 13}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        **layout,
    }
    return Figure({"data": data, "layout": whole}).to_json()


def escaped(text: str) -> str:
    """A text that plotly shows as it stands."""
    return html.escape(text, quote=False).replace("\n", " ")


def pointed(told: Sequence[str], link: str | None) -> list[str]:
    """What a mark tells, and the page that it opens; the empty text where there is none to open."""
    title, *lines = told or [""]
    safe = link if link and link.startswith(SCHEMES) else ""
    hint = ["<i>click: its page in MLflow</i>"] if safe else []
    return ["<br>".join([f"<b>{escaped(title)}</b>", *map(escaped, lines), *hint]), safe]


def _scatter(chart: Scatter) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    many = sum(len(series.marks) for series in chart.series) > MANY
    data = [_marks(series, many, mode="markers", showlegend=len(chart.series) > 1) for series in chart.series]
    for index, corners in enumerate(chart.fronts):
        xs, ys = map(list, zip(*corners, strict=True))
        line = {"color": INK, "width": 1.5, "dash": "dot", "shape": "hv"}
        front = {
            "type": "scattergl" if many else "scatter",
            "x": xs,
            "y": ys,
            "mode": "lines",
            "name": "Pareto front",
            "line": line,
        }
        told = {**front, "hoverinfo": "skip", "showlegend": not index, "legendrank": 2000}
        data.insert(len(data) if many else 0, told)  # on top of many marks, behind few
    callouts = [
        {
            "x": math.log10(each.x) if chart.x.log else each.x,
            "y": math.log10(each.y) if chart.y.log else each.y,
            "text": escaped(each.text),
            "ax": 0,
            "xanchor": side,
            "ay": (28 + 17 * level) * (1 if chart.words_below else -1),
            "bgcolor": "rgba(255, 255, 255, 0.6)",
            "arrowhead": 0,
            "arrowwidth": 1,
            "arrowcolor": MUTED,
            "standoff": 6,
        }
        for each, level, side in zip(chart.callouts, chart.levels, chart.sides, strict=True)
    ]
    marks = [mark for series in chart.series for mark in series.marks]
    x = _axis(chart.x, [mark.x for mark in marks])
    y = _axis(chart.y, chart.limits) | {"range": [math.log10(end) if chart.y.log else end for end in chart.limits]}
    return data, {"xaxis": x, "yaxis": y, "annotations": callouts}


def _lines(chart: Lines) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    mode = "lines+markers" if chart.points else "lines"
    data = [_marks(series, False, mode=mode, showlegend=True) for series in chart.series]
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for band in chart.bands:
        shapes.append({"type": "rect", "xref": "x", "yref": "paper", "x0": band.start, "x1": band.end, "y0": 0, "y1": 1,
                       "fillcolor": "#eef1f4", "line": {"width": 0}, "layer": "below"})  # fmt: skip
        notes.append({"x": band.start, "y": 0, "xref": "x", "yref": "paper", "text": escaped(band.text),
                      "xanchor": "left", "yanchor": "bottom", **NOTE})  # fmt: skip
    if chart.level:
        shapes.append({"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": chart.level.y,
                       "y1": chart.level.y, "line": {"color": MUTED, "dash": "dash", "width": 1}})  # fmt: skip
        notes.append({"x": 1, "y": chart.level.y, "xref": "paper", "yref": "y", "text": escaped(chart.level.text),
                      "xanchor": "right", "yanchor": "bottom", **NOTE})  # fmt: skip
    xs = {mark.x for series in chart.series for mark in series.marks}
    counted = len(xs) <= 20 and all(float(x).is_integer() for x in xs)
    x, y = _axis(chart.x), _axis(chart.y, [mark.y for series in chart.series for mark in series.marks])
    x |= {"tickvals": sorted(xs)} if counted else {}
    y |= {} if chart.y.log else {"rangemode": "tozero"}
    height = HEIGHT_PX + _legend_px([series.name for series in chart.series])
    return data, {"xaxis": x, "yaxis": y, "shapes": shapes, "annotations": notes, "height": height}


def _bars(chart: Bars) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    places = list(range(len(chart.bars)))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "showlegend": True,
            "name": escaped(stack.name),
            "y": places,
            "x": [piece.value if piece else None for piece in stack.pieces],
            "customdata": [pointed(piece.told, piece.link) if piece else ["", ""] for piece in stack.pieces],
            "hovertemplate": TOLD,
            "marker": {
                "color": STYLES[stack.style].color,
                "line": {"color": "white", "width": 0.5},
                "pattern": {**PATTERN, "shape": STYLES[stack.style].hatch},
            },
        }
        for stack in chart.stacks
    ]
    y = {"tickvals": places, "ticktext": [escaped(shortened(bar)) for bar in chart.bars], "autorange": "reversed",
         "automargin": True, "ticklen": 6, "tickcolor": "white", "zeroline": False}  # fmt: skip
    height = 110 + 26 * len(places)
    layout = {"barmode": "stack", "bargap": 0.3, "height": height, "xaxis": _axis(chart.x), "yaxis": y}
    return data, layout | {"legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"}}


def _heatmap(chart: Heatmap) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    cells = [cell for row in chart.cells for cell in row if cell]
    scaled = math.log10 if chart.value.log else float
    bar: dict[str, Any] = {"title": {"text": escaped(chart.value.unit)}, "thickness": 12, "outlinewidth": 0}
    if chart.value.log:
        ticks = _decades(min(cell.value for cell in cells), max(cell.value for cell in cells))
        bar |= {"tickvals": [math.log10(tick) for tick in ticks], "ticktext": [f"{tick:g}" for tick in ticks]}
    places = list(range(len(chart.columns))), list(range(len(chart.rows)))
    data = {
        "type": "heatmap",
        "x": places[0],
        "y": places[1],
        "z": [[scaled(cell.value) if cell else None for cell in row] for row in chart.cells],
        "text": [[cell.text if cell else "" for cell in row] for row in chart.cells],
        "texttemplate": "%{text}" if len(cells) <= 150 else "",
        "customdata": [[pointed(cell.told, cell.link) if cell else ["", ""] for cell in row] for row in chart.cells],
        "hovertemplate": TOLD,
        "hoverongaps": False,
        "colorscale": "Cividis",
        "colorbar": bar,
        "xgap": 2,
        "ygap": 2,
    }
    axes = [
        _axis(axis) | {"tickvals": at, "ticktext": [escaped(shortened(name)) for name in names], "showgrid": False}
        for axis, at, names in zip((chart.x, chart.y), places, (chart.columns, chart.rows), strict=True)
    ]
    return [data], {"xaxis": axes[0], "yaxis": axes[1], "height": 130 + 44 * min(12, max(4, len(chart.rows)))}


def _marks(series: Series, many: bool, **more: Any) -> dict[str, Any]:
    style = STYLES[series.style]
    trace = {
        "type": "scattergl" if many else "scatter",
        "name": escaped(series.name),
        "x": [mark.x for mark in series.marks],
        "y": [mark.y for mark in series.marks],
        "customdata": [pointed(mark.told, mark.link) for mark in series.marks],
        "hovertemplate": TOLD,
        "marker": {
            "color": style.color,
            "symbol": MARKERS.get(style.marker, style.marker),
            "size": 5 if many else 10,
            "opacity": 0.7 if many else 1,
            "line": {"color": "white", "width": 0 if many else 1},
        },
        "line": {"color": style.color, "width": 1.5},
        **more,
    }
    if not many:
        trace |= {f"error_{side}": bars for side in "xy" if (bars := _bars_of(series.marks, f"{side}_reach"))}
    return trace


def _bars_of(marks: Sequence[Mark], side: str) -> dict[str, Any] | None:
    reaches: list[Reach | None] = [getattr(mark, side) for mark in marks]
    if not any(reaches):
        return None
    above, below = ([getattr(reach, end) if reach else NO_BAR for reach in reaches] for end in ("above", "below"))
    look = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 3}
    return {**look, "array": above, "arrayminus": below}


def _axis(axis: Axis, values: Sequence[float] = ()) -> dict[str, Any]:
    """An axis; the ticks of a logarithmic one are chosen by what is laid off along it."""
    look = {"gridcolor": RULE, "zeroline": False, "linecolor": MUTED, "ticks": "outside", "tickcolor": RULE,
            "automargin": True, "showgrid": True, "exponentformat": "none"}  # fmt: skip
    look["title"] = {"text": escaped(axis.title), "standoff": 10, "font": {"size": 13}}
    if not axis.log:
        return look
    ticks = _decades(min(values) / 10, 10 * max(values), (1, 2, 5) if max(values) < 1000 * min(values) else (1,))
    return {**look, "type": "log", "tickvals": ticks, "ticktext": [f"{tick:.15g}" for tick in ticks]}


def _legend_px(names: Sequence[str]) -> int:
    """How much higher a picture is for a legend of more than one line, in a window that is not wide."""
    across = max(1, int(100 / (max(map(len, names)) + 8)))
    return 18 * (math.ceil(len(names) / across) - 1)


def _decades(least: float, most: float, digits: Sequence[int] = (1, 2, 5)) -> list[float]:
    """Powers of ten between two values above zero, times these digits."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    every = [float(f"{digit}e{power}") for power, digit in product(powers, digits)]
    return [tick for tick in every if least <= tick <= most]
