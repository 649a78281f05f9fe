"""One Vega-Lite specification per chart, for the page, PNG and SVG; a process of its own draws the images."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

from epochmeter.config.installation import code_cache
from epochmeter.machine.helper_process import start_helper
from epochmeter.report.formatting import percent
from epochmeter.results.quantities import Unit, quantity, readable_unit
from epochmeter.shared.atomic_files import write_atomically

Spec = dict[str, Any]  # a Vega-Lite specification, or a part of one
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.1.0.json"
TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
Rows = Sequence[Mapping[str, object]]
Caption = Mapping[str, object]  # sentence of `phrases.j2` -> its values; no sentence if they are empty
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#8C564B")
"""After M. Okabe and K. Ito, Color Universal Design, 2008, without the colors that vanish on white or on black."""
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GRAY, BROWN = COLORS
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "stroke")
HEIGHT_PX, WIDTH_PX, BAR_PX, BAR_STEP_PX = 360, 680, 14, 40  # the width is that of images
SCALE = 2.0  # pixels of a PNG image per pixel of the chart
LOG_RATIO = 10  # ratio of the largest value to the smallest from which an axis is logarithmic
FONT = "system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif"
PAGE_NEEDS = ("vl_convert", "itables")  # packages of the extra `report`


@dataclass(frozen=True)
class Chart:
    """A chart: its specification has no theme and no width; if it is folded, the page shows it only on request."""

    name: str
    title: str
    spec: Spec
    caption: Caption
    is_folded: bool = False


class Bar(NamedTuple):
    """A stacked bar: its parts in a base unit, the quantity that they are fractions of, and fields of its tooltip."""

    name: str
    parts: Mapping[str, float]
    total: float
    lines: Mapping[str, object]


class Axis(NamedTuple):
    """An axis: its title with the unit, and the smallest and the largest value in that unit."""

    title: str
    scale: Literal["linear", "log"]
    domain: tuple[float, float]
    unit: Unit = Unit("", 1, 0)

    def value(self, value: float) -> float:
        """Convert a value from the base unit."""
        return value / self.unit.size

    def fraction(self, value: float) -> float:
        """Return where on the axis a value in its unit is, from 0 to 1."""
        scale = math.log if self.scale == "log" else float
        low, high = map(scale, self.domain)
        return (scale(value) - low) / (high - low)

    def channel(self, name: str) -> Spec:
        """Return the encoding of a field whose values are in the unit of the axis."""
        scale = {"type": self.scale, "domain": self.domain, "nice": False}
        return channel(f"{name}:Q", title=self.title, scale=scale)


def make_axis(label: str, values: Sequence[float], base: str, *, zero: bool = False, margin: float = 0.08) -> Axis:
    """Return the axis for values in a base unit: logarithmic if they differ much, unless it starts at zero."""
    unit = readable_unit(max(map(abs, values)), base)
    title = f"{label} ({unit.name})" if unit.name else label
    low, high = 0.0 if zero else min(values) / unit.size, max(values) / unit.size
    if not zero and low > 0 and high > LOG_RATIO * low:
        room = (high / low) ** margin
        return Axis(title, "log", (low / room, high * room), unit)
    room = margin * ((high - low) or abs(high) or 1)
    start = 0.0 if 0 <= low < 2 * room else low - room
    return Axis(title, "linear", (start, high + room), unit)


def make_spec(view: Spec, datasets: Mapping[str, Rows], *, is_large: bool = False, columns: Sequence[int] = ()) -> Spec:
    """Return the specification of layers, or of small multiples with these possible numbers of columns, and data."""
    metadata = {"renderer": "canvas" if is_large else "svg", "columns": list(columns)}
    return {"$schema": SCHEMA, **view, "datasets": datasets, "usermeta": metadata}


def layer(data: str | None, mark: str, encoding: Spec, **properties: Any) -> Spec:
    """Return marks of one type for a named dataset; None: the dataset of the view."""
    view = {"mark": {"type": mark, **properties}, "encoding": encoding}
    return view if data is None else {"data": {"name": data}, **view}


def channel(field: str, **properties: Any) -> Spec:
    """Return the encoding of a field that is named with its type: `time:Q`."""
    name, _, letter = field.partition(":")
    return {"field": name, "type": TYPES[letter], **properties}


def on_hover(*fields: str) -> Spec:
    """Return the encodings of the tooltip with these fields, and of the link that a click opens, if a row has one."""
    link = {"condition": {"test": "isValid(datum.link)", **channel("link:N")}}
    return {"href": link, "tooltip": [channel(f"{field}:N") for field in fields]}


def error_bars(data: str, place: Spec, name: str) -> Spec:
    """Return rules along the axis `name` from the field `<name>_low` to `<name>_high`, of the rows that have them."""
    ends = {name: {**place[name], "field": f"{name}_low"}, f"{name}2": {"field": f"{name}_high"}}
    bars = layer(data, "rule", {**place, **ends}, aria=False)
    return {**bars, "transform": [{"filter": f"isValid(datum.{name}_low)"}]}


def small_multiples(view: Spec, rows: Rows, most: int) -> Spec:
    """Return the specification of one panel per value of `panel`, in at most `most` columns, with the same scales."""
    panels = [*dict.fromkeys(row["panel"] for row in rows)]
    columns = [*range(min(most, len(panels)), 0, -1)]
    faceted = {"facet": channel("panel:N", sort=panels), "columns": columns[0], "data": {"name": "values"}}
    resolve = {"axis": {"x": "independent"}}  # the last row may have a gap
    return make_spec({**faceted, "resolve": resolve, "spec": view}, {"values": rows}, columns=columns)


def stacked_bars(label: str, base: str, bars: Sequence[Bar], colors: Mapping[str, str], *fields: str) -> Spec:
    """Return the specification of stacked bars, with their names above them, which also fits a narrow page.

    The `colors` of the parts are in their order; `fields` of the tooltip are those of the bars, `part` and `value`.
    """
    axis = make_axis(label, [math.fsum(bar.parts.values()) for bar in bars], base, zero=True)
    rows: list[dict[str, object]] = []
    for place, bar in enumerate(bars):
        end = 0.0
        for part in filter(bar.parts.get, colors):
            value = bar.parts[part]
            start, end = end, end + axis.value(value)
            text = f"{quantity(value, base, math.fsum(bar.parts.values()))} ({percent(value / bar.total)})"
            rows.append({**bar.lines, "part": part, "value": text, "bar": place, "start": start, "end": end})
    shown = [part for part in colors if any(bar.parts.get(part) for bar in bars)]
    place_of = channel("bar:O", axis=None)
    scale = {"domain": shown, "range": [colors[part] for part in shown]}
    encoding = {
        "x": channel("start:Q", title=axis.title, scale={"zero": True}),
        "x2": {"field": "end"},
        "y": place_of,
        "color": channel("part:N", scale=scale, legend={"title": None} if len(shown) > 1 else None),
        **on_hover(*fields),
    }
    pieces = layer("parts", "bar", encoding, size=BAR_PX)
    above = {"align": "left", "baseline": "bottom", "dy": -BAR_PX / 2 - 2, "limit": {"expr": "width"}}
    labels = layer("bars", "text", {"x": {"datum": 0}, "y": place_of, "text": channel("name:N")}, **above, aria=False)
    datasets = {"parts": rows, "bars": [{"bar": place, "name": bar.name} for place, bar in enumerate(bars)]}
    return make_spec({"layer": [pieces, labels], "height": {"step": BAR_STEP_PX}}, datasets)


def theme(*, is_dark: bool = False) -> Spec:
    """Return the Vega-Lite config of the light or the dark theme."""
    dark, light = ("#e8ebef", "#a3adba", "#333b46", "#14181e"), ("#1c2430", "#5b6675", "#e3e7ec", "#ffffff")
    ink, muted, rule, paper = dark if is_dark else light
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12.5, "titleFontWeight": 500}
    return {
        "font": FONT,
        "background": "transparent" if is_dark else "white",
        "view": {"stroke": None},
        "axis": {**text, "gridColor": rule, "domainColor": muted, "tickColor": rule, "labelLimit": 260, "tickCount": 6},
        "legend": {**text, "orient": "bottom", "labelLimit": 320, "symbolSize": 90, "titleLimit": 320},
        "header": {**text, "title": None, "labelFontWeight": 600, "labelLimit": 320},
        "title": {"color": ink},
        "text": {"color": ink, "fontSize": 12},
        "rule": {"color": muted},
        "style": {"front": {"color": ink}, "reference": {"color": muted}, "halo": {"stroke": paper}},
        "range": {"category": list(COLORS)},
    }


def javascript() -> str:
    """Return the source of Vega, Vega-Lite and Vega-Embed, from a cache, as bundling it takes a second."""
    folder = code_cache()
    cached = folder / f"vega-{version('vl-convert-python')}.js" if folder else None
    with suppress(OSError):
        if cached:
            return cached.read_text(encoding="utf-8")
    import vl_convert

    source = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with suppress(OSError):
        if cached:
            write_atomically(cached, lambda file: file.write(source))
    return source


def missing_packages() -> list[str]:
    """Return the packages for the page and the charts that are not installed."""
    return [name for name in PAGE_NEEDS if find_spec(name) is None]


def to_svg(chart: Chart) -> str:
    """Draw a chart as SVG in the light theme, with its title and a fixed width."""
    import vl_convert

    title = {"text": chart.title, "anchor": "start", "fontSize": 14, "offset": 12}
    spec = {**chart.spec, "title": title, "padding": 12}
    if columns := spec["usermeta"]["columns"]:
        spec |= {"columns": columns[0], "spec": {**spec["spec"], "width": WIDTH_PX / columns[0] - 60}}
    else:
        spec["width"] = WIDTH_PX
    return vl_convert.vegalite_to_svg(spec, config=theme())


class Artist:
    """A process that draws charts while the report is built; it starts at once, as loading Vega takes half a second."""

    def __init__(self) -> None:
        _, self._pipe = start_helper(_draw)

    def draw(self, charts: Sequence[Chart]) -> None:
        with suppress(BrokenPipeError):  # `write` reports that the process has ended
            self._pipe.send(charts)

    def write(self, folder: Path) -> list[Path]:
        """Write the images of the charts, if any, into a new folder; return their paths; OSError if that fails."""
        try:
            images: dict[str, bytes] = self._pipe.recv()
        except EOFError as error:
            raise OSError("the charts could not be drawn") from error
        for name, content in images.items():
            folder.mkdir(exist_ok=True)
            (folder / name).unlink(missing_ok=True)
            with open(folder / name, "xb") as file:  # not through a link
                file.write(content)
        return [folder / name for name in images]


def _draw(pipe: Connection) -> None:
    """Draw the charts that are received, and send the images by file name."""
    from vl_convert import svg_to_png

    to_svg(Chart("", "", {"data": {"values": []}, "mark": "point", "usermeta": {"columns": []}}, {}))  # loads Vega
    with suppress(EOFError, ConnectionError):  # the report has ended
        svgs = {chart.name: to_svg(chart) for chart in pipe.recv()}
        images = {f"{name}.png": svg_to_png(svg, scale=SCALE) for name, svg in svgs.items()}
        pipe.send({**images, **{f"{name}.svg": svg.encode() for name, svg in svgs.items()}})
