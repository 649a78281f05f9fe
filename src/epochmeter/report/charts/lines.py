"""Time and energy by epoch, power over time, and scaling efficiency."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import islice

from epochmeter.report.analyses.scaling import Scaling
from epochmeter.report.charts import vega
from epochmeter.report.charts.points import Palette, by_energy_scope, mean_sd, scopes, tooltip
from epochmeter.report.charts.vega import Chart, channel
from epochmeter.report.formatting import interval, percent, quantity
from epochmeter.report.render import phrase
from epochmeter.report.runs.configuration import Configuration, device_unit
from epochmeter.report.runs.costs import TIME
from epochmeter.report.runs.run import Run
from epochmeter.results.power_trace import TracePoint, downsample
from epochmeter.shared.record import Record
from epochmeter.shared.units import NANOSECOND

MAX_PANELS, MAX_COLUMNS, PANEL_PX = 6, 3, 130
MAX_LINES = 8
MAX_SAMPLES = 600  # power samples per run: more than a page can show


def epochs(configurations: Sequence[Configuration], palette: Palette) -> list[Chart]:
    """Draw the time, and the energy per energy scope, of each epoch of the fastest configurations."""
    times = [(time.mean, place) for place, entry in enumerate(configurations) if (time := mean_sd(entry, TIME))]
    fastest = [configurations[place] for _, place in sorted(times)]
    charts = [_epochs("epochs_time", "time", "epoch/e2e_s", "s", fastest, palette)]
    for suffix, group in by_energy_scope(fastest):
        name, scope = f"epochs_energy{suffix}", scopes(group)
        charts.append(_epochs(name, "energy", "epoch/energy_j", "J", group, palette, scope))
    return [chart for chart in charts if chart]


def power_over_time(best: Sequence[Configuration], palette: Palette) -> Chart | None:
    """Draw the sampled power of the first run of each configuration, one panel each; None if there are no samples."""
    curves = [(entry, samples) for entry in dict.fromkeys(best) if (samples := power_samples(entry.runs[0]))]
    if not curves:
        return None
    ends_s = [(samples[-1].at_ns - samples[0].at_ns) * NANOSECOND for _, samples in curves]
    x = vega.make_axis(phrase("time_of_samples"), ends_s, "s", zero=True)
    y = vega.make_axis(phrase("power"), [sample.watts for _, samples in curves for sample in samples], "W", zero=True)
    rows = []
    for entry, samples in curves:
        panel = phrase("run_of", title=entry.title, number=entry.runs[0].number)
        for sample in samples:
            at = x.value((sample.at_ns - samples[0].at_ns) * NANOSECOND)
            rows.append({"panel": panel, "x": at, "y": y.value(sample.watts), "color": palette.color(entry)})
    means_ns = [statistics.median(sample.mean_of_ns for sample in samples) for _, samples in curves]
    caption = {
        "all_phases": True,
        "mean_of": max(means_ns) and quantity(max(means_ns) * NANOSECOND, "s"),
        "power_scope": scopes(entry for entry, _ in curves),
    }
    return Chart("power", phrase("power_over_time"), _panels(rows, x.title, y, has_points=False), caption)


def power_samples(run: Run) -> list[TracePoint]:
    """Return a run's total power, as means of stretches if there are many samples; empty without two readable ones."""
    try:
        samples = list(downsample(Record(run.folder), MAX_SAMPLES)) if run.folder else []
    except (OSError, ValueError, IndexError):
        return []
    return samples if len(samples) > 1 else []


def efficiency(results: Sequence[Scaling], configurations: Sequence[Configuration]) -> Chart | None:
    """Draw scaling efficiency by the number of devices; None if no configuration ran on one and on several."""
    if not results:
        return None
    links = {number: entry.link for entry in configurations for number in entry.numbers if entry.link}
    lines: dict[str, list[Scaling]] = {}
    for result in sorted(results, key=lambda result: result.devices):
        values = {"title": result.title, "strategy": result.strategy, "kind": result.kind}
        lines.setdefault(phrase("scaling_line", **values, batch=result.device_batch), []).append(result)
    rows = []
    shown_lines = [(line, result) for line in sorted(lines)[:MAX_LINES] for result in lines[line]]
    for name, result in shown_lines:
        share, link = result.efficiency, links.get(result.numbers[0])
        row: dict[str, object] = {"title": f"{name}, {result.devices} {device_unit(result.strategy)}", "line": name}
        row |= {"devices": result.devices, "y": 100 * share.value, "efficiency": percent(share.value, 1)}
        row |= {"speedup": interval(result.speedup, "times"), "runs": ", ".join(map(str, result.numbers))}
        if share.low is not None and share.high is not None:
            row |= {"y_low": 100 * share.low, "y_high": 100 * share.high}
        rows.append(row | ({"link": link} if link else {}))
    place = {
        "x": channel("devices:O", title=phrase("devices"), axis={"labelAngle": 0}),
        "y": channel("y:Q", title=phrase("efficiency_percent")),
        "color": channel("line:N", legend={"title": None, "columns": 1, "labelLimit": 0}, sort=None),
    }
    shown = {"href": channel("link:N"), "tooltip": vega.tooltips("title", "efficiency", "speedup", "runs")}
    layers = [
        vega.layer("ideal", "rule", {"y": channel("y:Q")}, strokeDash=[4, 4], style="reference"),
        vega.error_bars("results", place, "y"),
        vega.layer("results", "line", {**place, **shown}, point={"size": 70}),
    ]
    caption = {
        "efficiency": True,
        "intervals": any("y_low" in row for row in rows),
        "first_lines": len(lines) > MAX_LINES and (MAX_LINES, len(lines)),
    }
    spec = vega.make_spec({"layer": layers, "height": vega.HEIGHT_PX}, {"results": rows, "ideal": [{"y": 100}]})
    return Chart("efficiency", phrase("scaling_efficiency"), spec, caption)


def _epochs(
    name: str, what: str, metric: str, base: str, fastest: Sequence[Configuration], palette: Palette, scope: str = ""
) -> Chart | None:
    """Draw the first of these configurations that have several epochs, one panel each."""
    with_epochs = ((entry, values) for entry in fastest if len(values := _by_epoch(entry, metric)) > 1)
    shown = list(islice(with_epochs, MAX_PANELS))
    if not shown:
        return None
    every = [value for _, values in shown for value in values.values()]
    axis = vega.make_axis(phrase(what), every, base, zero=True)
    rows = []
    for configuration, values in shown:
        warm_up = configuration.job.get("warmup_epochs", 0)
        place = {"panel": configuration.title, "color": palette.color(configuration)}
        for epoch, value in values.items():
            lines = tooltip(configuration, epoch=str(epoch + 1), value=quantity(value, base))
            rows.append({**lines, **place, "x": epoch + 1, "y": axis.value(value), "is_warm_up": epoch < warm_up})
    caption = {
        "colors": palette.key.replace("_", " "),
        "warm_up": any(row["is_warm_up"] for row in rows),
        "over_repeats": any(len(configuration.runs) > 1 for configuration, _ in shown),
        "fastest": len(fastest) > MAX_PANELS and MAX_PANELS,
        "scope": scope,
    }
    spec = _panels(rows, phrase("epoch"), axis, has_points=True)
    return Chart(name, phrase(f"epochs_{what}"), spec, caption)


def _panels(rows: vega.Rows, x: str, y: vega.Axis, *, has_points: bool) -> vega.Spec:
    """Return the specification of lines, one panel each, with points that are hollow in the warm-up."""
    epochs = channel(
        "x:O", title=x, axis={"labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 4, "ticks": False}
    )
    place = {
        "x": epochs if has_points else channel("x:Q", title=x, scale={"nice": False}),
        "y": channel("y:Q", title=y.title, axis={"tickCount": 4}, scale={"domain": y.domain}),
        "color": channel("color:N", scale=None),
    }
    layers = [vega.layer(None, "line", place, strokeWidth=1.4, aria=False)]
    if has_points:
        shown = {
            "fill": channel("color:N", scale=None),
            "fillOpacity": {"condition": {"test": "datum.is_warm_up", "value": 0}, "value": 1},
            "href": channel("link:N"),
            "tooltip": vega.tooltips("title", "epoch", "value", "runs"),
        }
        layers.append(vega.layer(None, "point", {**place, **shown}, size=55, filled=False))
    return vega.small_multiples({"layer": layers, "height": PANEL_PX}, rows, MAX_COLUMNS)


def _by_epoch(configuration: Configuration, metric: str) -> dict[int, float]:
    """Return the means over the runs of the epochs that all runs have."""
    values: dict[int, list[float]] = {}
    for run in configuration.runs:
        for epoch, metrics in run.epochs.items():
            if math.isfinite(value := metrics.get(metric, math.nan)):
                values.setdefault(epoch, []).append(value)
    count = len(configuration.runs)
    return {epoch: statistics.fmean(samples) for epoch, samples in sorted(values.items()) if len(samples) == count}
