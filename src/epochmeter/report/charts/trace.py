"""Charts of a traced run: its time by group of modules and phase, and the roofline of its device."""

from collections.abc import Mapping, Sequence

from epochmeter.report.analyses.trace import TraceView
from epochmeter.report.charts import vega
from epochmeter.report.charts.scatter import PLACED, placed_labels
from epochmeter.report.charts.vega import channel, layer
from epochmeter.report.formatting import percent
from epochmeter.report.render import phrase
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.record import Record
from epochmeter.shared.types import Document
from epochmeter.trace.owners import PHASES

COLORS = dict(zip(PHASES, (vega.BLUE, vega.ORANGE, vega.PURPLE, vega.VERMILION, vega.GRAY), strict=True))
GIGA = 1e9
ROOM = 3.0  # factor between the outermost points and the ends of an axis
DASHES = {"roof": [1, 0], "datasheet": [4, 4]}
Points = Sequence[Document]  # rows of data


def module_bars(view: TraceView) -> list[vega.Chart]:
    """Draw the time of the modules per step; nothing if it is unknown."""
    if not view["groups"]:
        return []
    steps = view["metrics"]["steps"]
    total_s = view["attribution"]["total_s"] / steps
    times_s = {
        name: {phase: time_s / steps for phase, time_s in phases.items()} for name, phases in view["groups"].items()
    }
    bars = [vega.Bar(name, own_s, total_s, {"module": name}) for name, own_s in times_s.items()]
    spec = vega.stacked_bars(phrase("time_per_step"), "s", bars, COLORS, "module", "part", "value")
    on_device = view["attribution"]["basis"] == "device"
    caption = {"kernel_time": on_device, "thread_time": not on_device, "module_groups": True}
    return [vega.Chart("trace_modules", phrase("modules"), spec, caption)]


def roofline(record: Record, view: TraceView) -> list[vega.Chart]:
    """Draw FLOP/s over arithmetic intensity, for the mean epoch and its operators; nothing if peaks are unknown."""
    recorded = (RunFolder(record.folder).summary or {}).get("metrics", {})
    metrics = {name: value for name, value in recorded.items() if value is not None}
    names = ("roofline/peak_flop_per_s", "roofline/peak_bytes_per_s", "roofline/flop_per_byte", "steady/hfu")
    if any(name not in metrics for name in names):
        return []
    peak, bandwidth, intensity, hfu = (metrics[name] for name in names)
    rates = {phrase("mean_epoch"): (intensity, hfu * peak), **_operators(record, view, peak)}
    points = [
        {
            "name": name,
            "x": flop_per_byte,
            "y": flop_per_s / GIGA,
            "color": vega.VERMILION if place == 0 else vega.BLUE,
            "rate": f"{flop_per_s / GIGA:.3g} {phrase('gflop_per_s')}",
            "of_roof": phrase("of_line", fraction=percent(flop_per_s / min(flop_per_byte * bandwidth, peak))),
        }
        for place, (name, (flop_per_byte, flop_per_s)) in enumerate(rates.items())
    ]
    places = [peak / bandwidth, *(flop_per_byte for flop_per_byte, _ in rates.values())]
    ends = [min(places) / ROOM, peak / bandwidth, max(places) * ROOM]
    lines = {"roof": [{"x": x, "y": min(x * bandwidth, peak) / GIGA, "name": phrase("measured_peaks")} for x in ends]}
    if sheet := metrics.get("roofline/datasheet_flop_per_s"):
        lines["datasheet"] = [{"x": x, "y": sheet / GIGA, "name": phrase("datasheet")} for x in ends[1:]]
    caption = {"roof": True, "datasheet": bool(sheet), "operator_times": len(points) > 1, "bytes": True}
    return [vega.Chart("roofline", phrase("roofline"), _roofline_spec(points, lines), caption)]


def _roofline_spec(points: Points, lines: Mapping[str, Points]) -> vega.Spec:
    heights = [row["y"] for rows in (points, *lines.values()) for row in rows]
    x = vega.Axis(phrase("intensity"), "log", (lines["roof"][0]["x"], lines["roof"][-1]["x"]))
    y = vega.Axis(phrase("gflop_per_s"), "log", (min(heights) / ROOM, ROOM * max(heights)))
    place = {"x": x.channel("x"), "y": y.channel("y")}
    shown = {**place, "color": channel("color:N", scale=None), **vega.on_hover("name", "rate", "of_roof")}
    text = {**place, "text": channel("text:N")}
    layers = [layer(name, "line", place, color=vega.GRAY, strokeDash=DASHES[name]) for name in lines]
    layers += [
        layer("points", "point", shown, filled=True, size=90),
        layer("labels", "text", text, **PLACED),
    ]
    names = [{"x": point["x"], "y": point["y"], "text": point["name"], "is_best": True} for point in points]
    data = {**lines, "points": points, "labels": placed_labels(names, points, x, y)}
    return vega.make_spec({"layer": layers, "height": vega.HEIGHT_PX}, data)


def _operators(record: Record, view: TraceView, peak: float) -> dict[str, tuple[float, float]]:
    """Return intensity and FLOP/s of the operators whose FLOPs were counted and whose time is in the trace."""
    training = RunFolder(record.folder).run.training
    devices = peak / (training["peaks"] or {})["flop_per_s"]  # the trace is of one
    return {
        name.removeprefix("aten::"): (counts["flops"] / counts["bytes"], devices * view["flop_per_s"][name])
        for name, counts in training.get("operators", {}).items()
        if name in view["flop_per_s"]
    }
