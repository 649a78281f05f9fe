"""Changes of time and energy between two sweeps, or of times between two traces, with their intervals."""

from collections.abc import Sequence

from epochmeter.report.analyses.comparison import DIFFERS, Comparison, Difference
from epochmeter.report.analyses.trace_changes import TraceChanges
from epochmeter.report.charts import vega
from epochmeter.report.charts.vega import Chart, channel, layer
from epochmeter.report.formatting import ratio
from epochmeter.report.render import phrase
from epochmeter.report.runs.costs import ENERGY, TIME

MAX_ROWS, ROW_PX = 15, 34
MOST_BEYOND = 2.0  # factor to which an interval is drawn beyond all ratios; a longer one is cut


def changes(comparison: Comparison) -> list[Chart]:
    """Draw the ratio of each configuration, the largest differences first, in one chart per metric."""
    charts = []
    for name, metric in {"change_time": TIME, "change_energy": ENERGY}.items():
        differences = [
            difference for difference in (*comparison.overall, *comparison.by_size) if difference.metric == metric
        ]
        caption = {"ratios": True, "largest_of": len(differences) > MAX_ROWS and (MAX_ROWS, len(differences))}
        charts += [Chart(name, phrase(name), _spec(differences[:MAX_ROWS]), caption)] if differences else []
    return charts


def trace_changes(compared: TraceChanges) -> list[Chart]:
    """Draw the ratios of the times that differ between two traces, those that add or save the most first."""
    charts = []
    for name, table in compared.tables.items():
        found = [change.difference for change in table.found]
        caption = {"trace_ratios": True, "largest_of": len(found) > MAX_ROWS and (MAX_ROWS, len(found))}
        title = phrase("trace_changes", table=name)
        charts += [Chart(f"trace_{name}", title, _spec(found[:MAX_ROWS]), caption)] if found else []
    return charts


def _spec(entries: Sequence[Difference]) -> vega.Spec:
    values = [1.0, *(difference.ratio.value for difference in entries)]
    least, most = min(values) / MOST_BEYOND, MOST_BEYOND * max(values)
    rows: list[dict[str, object]] = []
    for place, difference in enumerate(entries):
        title = difference.title or phrase("all_configurations", count=difference.counts[0])
        color = (
            vega.GRAY if difference.verdict != DIFFERS else vega.VERMILION if difference.ratio.value > 1 else vega.GREEN
        )
        row = {
            "title": title,
            "ratio": ratio(difference.ratio),
            "verdict": difference.verdict,
            "row": place,
            "color": color,
        }
        if difference.ratio.low is not None and difference.ratio.high is not None:
            bounds = max(difference.ratio.low, least), min(difference.ratio.high, most)
            row |= dict(zip(("x_low", "x_high"), bounds, strict=True))
            values += bounds
        rows.append({**row, "x": difference.ratio.value})
    axis = vega.make_axis(phrase("as_multiple"), values, "")
    place_of = {"x": axis.channel("x"), "y": channel("row:O", axis=None)}
    text = {**place_of, "x": {"datum": axis.domain[0]}, "text": channel("title:N")}
    shown = {**place_of, "color": channel("color:N", scale=None), **vega.on_hover("title", "ratio", "verdict")}
    layers = [
        layer("same", "rule", {"x": axis.channel("x")}, strokeDash=[4, 4], style="reference"),
        vega.error_bars("points", place_of, "x"),
        layer("points", "point", shown, filled=True, size=80, opacity=1),
        layer("points", "text", text, align="left", baseline="bottom", dy=-6, limit={"expr": "width"}, aria=False),
    ]
    return vega.make_spec({"layer": layers, "height": {"step": ROW_PX}}, {"points": rows, "same": [{"x": 1.0}]})
