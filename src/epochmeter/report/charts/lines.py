"""Time and energy by epoch, power over time, and scaling efficiency."""

import statistics
from collections.abc import Sequence
from itertools import chain, islice

from epochmeter.report.analyses.scaling import Scaling
from epochmeter.report.charts import vega
from epochmeter.report.charts.points import Palette, by_energy_scope, tooltip
from epochmeter.report.charts.vega import Chart, channel
from epochmeter.report.formatting import interval, percent
from epochmeter.report.render import phrase
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import TIME
from epochmeter.report.runs.run import Run, grouped
from epochmeter.results.metrics import find
from epochmeter.results.power_trace import TracePoint, downsample
from epochmeter.results.quantities import quantity
from epochmeter.results.run_folder import READ_ERRORS
from epochmeter.shared.record import POWER
from epochmeter.shared.units import NANOSECOND

MAX_PANELS, MAX_COLUMNS, PANEL_PX = 6, 3, 130
MAX_LINES = 8
TOTAL = "total_w"  # column of the power of all domains
MAX_SAMPLES = 600  # power samples per run: more than a page can show


def epochs(configurations: Sequence[Configuration], palette: Palette) -> list[Chart]:
    """Draw the time, and the energy per energy scope, of each epoch of the fastest configurations."""
    fastest = sorted(
        filter(lambda configuration: configuration.mean(TIME), configurations),
        key=lambda configuration: configuration.mean(TIME) or 0.0,
    )
    charts = _epochs("epochs_time", "epoch/e2e_s", fastest, palette)
    for suffix, scope, group in by_energy_scope(fastest):
        charts += _epochs(f"epochs_energy{suffix}", "epoch/energy_j", group, palette, scope)
    return charts


def power_over_time(best: Sequence[Configuration], palette: Palette) -> list[Chart]:
    """Draw the sampled power of the first run of each configuration, one panel each; none if there are no samples."""
    curves = {configuration: samples for configuration in best if (samples := power_samples(configuration.runs[0]))}
    if not curves:
        return []
    ends_s = [(samples[-1].at_ns - samples[0].at_ns) * NANOSECOND for samples in curves.values()]
    x = vega.make_axis(phrase("time_of_samples"), ends_s, "s", zero=True)
    watts = [sample.means[TOTAL] for sample in chain(*curves.values())]
    y = vega.make_axis(phrase("power"), watts, "W", zero=True)
    rows = []
    for configuration, samples in curves.items():
        place = {
            "panel": phrase("run_of", title=configuration.title, number=configuration.numbers[0]),
            "color": palette.color(configuration),
        }
        for sample in samples:
            at_s = (sample.at_ns - samples[0].at_ns) * NANOSECOND
            rows.append({**place, "x": x.value(at_s), "y": y.value(sample.means[TOTAL])})
    mean_of_ns = max(statistics.median(sample.mean_of_ns for sample in samples) for samples in curves.values())
    caption = {
        "all_phases": True,
        "mean_of": mean_of_ns and quantity(mean_of_ns * NANOSECOND, "s"),
        "power_scope": "; ".join(
            sorted({configuration.energy_scope for configuration in curves if configuration.energy_scope})
        ),
    }
    return [Chart("power", phrase("power_over_time"), _panels(rows, x.title, y, has_points=False), caption)]


def power_samples(run: Run) -> list[TracePoint]:
    """Return a run's total power, as means of stretches if there are many samples; empty without two readable ones."""
    try:
        points = list(downsample(run.folder / POWER, MAX_SAMPLES)) if run.folder else []
    except READ_ERRORS:
        return []
    samples = [point for point in points if TOTAL in point.means]
    return samples if len(samples) > 1 else []


def efficiency(results: Sequence[Scaling], configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw scaling efficiency by the number of devices; none if no configuration ran on one and on several."""
    links = {
        number: {"link": configuration.link}
        for configuration in configurations
        for number in configuration.numbers
        if configuration.link
    }
    by_devices = sorted(results, key=lambda result: result.devices)
    lines = grouped(by_devices, lambda result: phrase("scaling_line", result=result))
    rows = []
    for name, result in [(line, result) for line in sorted(lines)[:MAX_LINES] for result in lines[line]]:
        percentage = result.efficiency.map(lambda fraction: 100 * fraction)
        texts = {
            "title": f"{name}, {result.devices} {result.unit}",
            "efficiency": percent(result.efficiency.value, 1),
            "speedup": interval(result.speedup, "times"),
            "runs": ", ".join(map(str, result.numbers)),
        }
        values = {"devices": result.devices, "y": percentage.value, "y_low": percentage.low, "y_high": percentage.high}
        rows.append({**texts, **values, "line": name, **links.get(result.numbers[0], {})})
    place = {
        "x": channel("devices:O", title=phrase("devices"), axis={"labelAngle": 0}),
        "y": channel("y:Q", title=phrase("efficiency_percent")),
        "color": channel("line:N", legend={"title": None, "columns": 1, "labelLimit": {"expr": "width-25"}}, sort=None),
    }
    shown = {**place, **vega.on_hover("title", "efficiency", "speedup", "runs")}
    layers = [
        vega.layer("ideal", "rule", {"y": channel("y:Q")}, strokeDash=[4, 4], style="reference"),
        vega.error_bars("results", place, "y"),
        vega.layer("results", "line", shown, point={"size": 70}),
    ]
    caption = {
        "efficiency": True,
        "intervals": any(row["y_low"] is not None for row in rows),
        "first_lines": len(lines) > MAX_LINES and (MAX_LINES, len(lines)),
    }
    spec = vega.make_spec({"layer": layers, "height": vega.HEIGHT_PX}, {"results": rows, "ideal": [{"y": 100}]})
    return [Chart("efficiency", phrase("scaling_efficiency"), spec, caption)] if rows else []


def _epochs(name: str, metric: str, fastest: Sequence[Configuration], palette: Palette, scope: str = "") -> list[Chart]:
    """Draw the first of these configurations that have several epochs, one panel each."""
    base = find(metric).unit
    kind = "energy" if base == "J" else "time"
    with_epochs = (
        (configuration, values) for configuration in fastest if len(values := _by_epoch(configuration, metric)) > 1
    )
    shown = dict(islice(with_epochs, MAX_PANELS))
    has_more = next(with_epochs, None) is not None
    if not shown:
        return []
    axis = vega.make_axis(phrase(kind), [*chain(*(values.values() for values in shown.values()))], base, zero=True)
    rows = []
    for configuration, values in shown.items():
        place = {"panel": configuration.title, "color": palette.color(configuration)}
        for epoch, value in values.items():
            lines = tooltip(configuration, epoch=str(epoch + 1), value=quantity(value, base))
            is_warm_up = epoch < configuration.job.get("warmup_epochs", 0)
            rows.append({**lines, **place, "x": epoch + 1, "y": axis.value(value), "is_warm_up": is_warm_up})
    caption = {
        "colors": palette.key.replace("_", " "),
        "warm_up": any(row["is_warm_up"] for row in rows),
        "over_repeats": any(len(configuration.runs) > 1 for configuration in shown),
        "fastest": has_more and MAX_PANELS,
        "scope": scope,
    }
    return [Chart(name, phrase(f"epochs_{kind}"), _panels(rows, phrase("epoch"), axis, has_points=True), caption)]


def _panels(rows: vega.Rows, x: str, y: vega.Axis, *, has_points: bool) -> vega.Spec:
    """Return the specification of lines, one panel each, with points that are hollow in the warm-up."""
    ticks = {"labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 4, "ticks": False}
    color = channel("color:N", scale=None)
    place = {
        "x": channel("x:O", title=x, axis=ticks) if has_points else channel("x:Q", title=x, scale={"nice": False}),
        "y": channel("y:Q", title=y.title, axis={"tickCount": 4}, scale={"domain": y.domain}),
        "color": color,
    }
    layers = [vega.layer(None, "line", place, strokeWidth=1.4, aria=False)]
    if has_points:
        opacity = {"condition": {"test": "datum.is_warm_up", "value": 0}, "value": 1}
        shown = {**place, "fill": color, "fillOpacity": opacity, **vega.on_hover("title", "epoch", "value", "runs")}
        layers.append(vega.layer(None, "point", shown, size=55, filled=False, opacity=1))
    return vega.small_multiples({"layer": layers, "height": PANEL_PX}, rows, MAX_COLUMNS)


def _by_epoch(configuration: Configuration, metric: str) -> dict[int, float]:
    """Return the means over the runs of the epochs that all runs have."""
    first, *others = [{epoch: metrics[metric] for epoch, metrics in run.epochs.items() if metric in metrics}
                      for run in configuration.runs]  # fmt: skip
    common = sorted(epoch for epoch in first if all(epoch in values for values in others))
    return {epoch: statistics.fmean(values[epoch] for values in (first, *others)) for epoch in common}
