"""Pictures that stand still, for papers and for where no page is open: PNG and SVG, as matplotlib draws them.

No text is read as mathematics: a `$` is a `$`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmeter.report.figures import STYLES, Axis, Bars, Chart, Heatmap, Lines, Mark, Reach, Scatter, Series, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, RULE = "#1c2430", "#5b6675", "#e3e7ec"
LOOK: dict[Any, Any] = {
    "text.parse_math": False,
    "font.size": 9,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "hatch.color": "white",
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "epochmeter",
}
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^", "cross": "X", "star": "*", "pentagon": "p",
           "hexagon": "h"}  # fmt: skip
WIDTH_IN, HEIGHT_IN, BAR_IN = 7.0, 4.2, 0.24
DOTS_PER_INCH = 150
ENDS = {"left": 0.0, "center": 0.5, "right": 1.0}
"""Where on a callout's word its line ends."""
MANY = 1000
"""From so many marks on they are small, without bars, and dots within the SVG."""
LINE_IN, LETTERS = 0.19, 96
"""Of a legend: the height of a line, and how many letters have room in one."""


def draw(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Leaves a PNG and an SVG of each picture in a folder, which is made where there is none."""
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(LOOK):
        return [path for chart in charts for path in _saved(chart, folder)]


def _saved(chart: Chart, folder: Path) -> list[Path]:
    from matplotlib.figure import Figure

    pens: dict[type, Any] = {Scatter: _scatter, Lines: _lines, Bars: _bars, Heatmap: _heatmap}
    height_in = 1.1 + BAR_IN * len(chart.bars) if isinstance(chart, Bars) else HEIGHT_IN
    figure = Figure(figsize=(WIDTH_IN, max(2.0, height_in)), layout="constrained")
    axes = figure.add_subplot()
    pens[type(chart)](chart, axes)
    axes.set_title(chart.title, pad=10)
    paths = [folder / f"{chart.name}.{kind}" for kind in ("png", "svg")]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once for both
    figure.savefig(paths[0], dpi=DOTS_PER_INCH)
    figure.savefig(paths[1], dpi=DOTS_PER_INCH, metadata={"Date": None})
    return paths


def _scatter(chart: Scatter, axes: Axes) -> None:
    _lay(axes, chart.x, chart.y)
    many = sum(len(series.marks) for series in chart.series) > MANY
    for series in chart.series:
        _marks(axes, series, many, line="none")
    for index, corners in enumerate(chart.fronts):
        xs, ys = zip(*corners, strict=True)
        told = {} if index else {"label": "Pareto front"}
        axes.step(xs, ys, where="post", color=INK, linestyle=":", linewidth=1.2, zorder=3 if many else 1, **told)  # type: ignore[arg-type]
    for (text, x, y), level, side in zip(chart.callouts, chart.levels, chart.sides, strict=True):
        off = (-22 - 11 * level) * (1 if chart.words_below else -1)
        axes.annotate(text, (x, y), (0, off), textcoords="offset points", ha=side, zorder=1.5,
                      arrowprops={"arrowstyle": "-", "color": MUTED, "shrinkB": 4, "relpos": (ENDS[side], 0.5)},
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8})  # fmt: skip
    axes.margins(x=0.08)
    axes.set_ylim(*chart.limits)
    if len(chart.series) > 1 or chart.fronts:
        _legend(axes)


def _lines(chart: Lines, axes: Axes) -> None:
    _lay(axes, chart.x, chart.y)
    for band in chart.bands:
        axes.axvspan(band.start, band.end, color="#eef1f4", linewidth=0, zorder=0)
        axes.text(band.start, 0.01, f" {band.text}", transform=axes.get_xaxis_transform(), va="bottom", color=MUTED)
    for series in chart.series:
        _marks(axes, series, not chart.points, line="-")
    if chart.level:
        axes.axhline(chart.level.y, color=MUTED, linestyle="--", linewidth=0.9)
        axes.text(1, chart.level.y, chart.level.text, transform=axes.get_yaxis_transform(), ha="right", va="bottom",
                  color=MUTED)  # fmt: skip
    xs = sorted({mark.x for series in chart.series for mark in series.marks})
    if len(xs) <= 20 and all(float(x).is_integer() for x in xs):
        axes.set_xticks(xs)
    if not chart.y.log:
        axes.set_ylim(bottom=0)
    _legend(axes)


def _bars(chart: Bars, axes: Axes) -> None:
    _lay(axes, chart.x, Axis(""))
    places = range(len(chart.bars))
    left = [0.0 for _ in places]
    for stack in chart.stacks:
        style, lengths = STYLES[stack.style], [piece.value if piece else 0.0 for piece in stack.pieces]
        axes.barh(places, lengths, left=left, height=0.7, label=stack.name, color=style.color, edgecolor="white",
                  linewidth=0.4, hatch=2 * style.hatch)  # fmt: skip
        left = [start + length for start, length in zip(left, lengths, strict=True)]
    axes.set_yticks(places, list(map(shortened, chart.bars)))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    _legend(axes)


def _heatmap(chart: Heatmap, axes: Axes) -> None:
    from matplotlib.colors import LogNorm

    values = [[cell.value if cell else math.nan for cell in row] for row in chart.cells]
    edges = [[index - 0.5 for index in range(len(names) + 1)] for names in (chart.columns, chart.rows)]
    mesh = axes.pcolormesh(*edges, values, cmap="cividis", norm=LogNorm() if chart.value.log else None,
                           edgecolor="white", linewidth=1.5)  # fmt: skip
    axes.set_xticks(range(len(chart.columns)), chart.columns)
    axes.set_yticks(range(len(chart.rows)), chart.rows)
    axes.set_xlabel(chart.x.title)
    axes.set_ylabel(chart.y.title)
    axes.grid(visible=False)
    bar = axes.figure.colorbar(mesh, ax=axes, label=chart.value.title)
    bar.outline.set_visible(False)  # type: ignore[operator]
    if chart.value.log:
        _plain_decades(bar.ax.yaxis)
    cells = [(cell, x, y) for y, row in enumerate(chart.cells) for x, cell in enumerate(row) if cell]
    for cell, x, y in cells if len(cells) <= 150 else []:
        bright = float(mesh.norm(cell.value)) > 0.55  # type: ignore[arg-type]
        axes.text(x, y, cell.text, ha="center", va="center", color=INK if bright else "white", fontsize=8)


def _marks(axes: Axes, series: Series, many: bool, line: str) -> None:
    style = STYLES[series.style]
    xs, ys = [mark.x for mark in series.marks], [mark.y for mark in series.marks]
    look: dict[str, Any] = {"color": style.color, "linestyle": line, "linewidth": 1.2, "label": shortened(series.name)}
    marker = {"marker": MARKERS[style.marker], "markeredgecolor": "white", "markeredgewidth": 0.6,
              "markersize": 10 if style.marker == "star" else 6}  # fmt: skip
    if many and line == "none":
        axes.plot(xs, ys, **look, marker=marker["marker"], markersize=2.5, alpha=0.6, rasterized=True)
    elif many:
        axes.plot(xs, ys, **look)
    else:
        look |= marker | {f"{side}err": _bars_of(series.marks, f"{side}_reach") for side in "xy"}
        axes.errorbar(xs, ys, **look, elinewidth=0.9, capsize=2)


def _bars_of(marks: Sequence[Mark], side: str) -> list[list[float]] | None:
    """How far bars go below and above; matplotlib draws none of what is no number."""
    reaches: list[Reach | None] = [getattr(mark, side) for mark in marks]
    if not any(reaches):
        return None
    return [[getattr(reach, end) if reach else math.nan for reach in reaches] for end in ("below", "above")]


def _lay(axes: Axes, x: Axis, y: Axis) -> None:
    axes.set_xlabel(x.title)
    axes.set_ylabel(y.title)
    if x.log:
        axes.set_xscale("log")
        _plain_decades(axes.xaxis)
    if y.log:
        axes.set_yscale("log")
        _plain_decades(axes.yaxis)


def _plain_decades(axis: Any) -> None:
    """1, 2 and 5 times the powers of ten, as numbers: matplotlib's own are mathematics, which no text here is."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _legend(axes: Axes) -> None:
    figure, names = axes.get_figure(root=True), axes.get_legend_handles_labels()[1]
    assert figure is not None, "axes are made by a figure"
    across = max(1, min(4, LETTERS // (max(map(len, names)) + 7)))
    figure.legend(loc="outside lower left", ncols=across)
    figure.set_figheight(figure.get_figheight() + LINE_IN * (math.ceil(len(names) / across) - 1))
