"""Stacked bars of time and energy by part, and bars of time to a target; the fastest or most frugal is on top."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from epochmeter.report.charts.chart import (
    BLUE,
    BROWN,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    Rows,
    Spec,
    channel,
    layer,
    make_axis,
    make_spec,
    tooltips,
)
from epochmeter.report.charts.points import ChartPoint, MeanSd, Palette, by_energy_scope, join, mean_sd, scope_note
from epochmeter.report.formatting import percent, plural, quantity
from epochmeter.report.runs.configuration import Configuration

MAX_BARS, MAX_FOLDED_BARS = 15, 60
BAR_PX, STEP_PX = 14, 40
TIMES = {name: f"{name.replace(' ', '_')}_s" for name in ("data stall", "copy", "compute", "overhead")}
ENERGIES = {name: f"{name.split()[-1]}_energy_j" for name in TIMES}
PART_COLORS = dict(zip(TIMES, (VERMILION, ORANGE, BLUE, GRAY), strict=True))
DOMAIN_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, BROWN)
DOMAIN = re.compile(r"steady/energy_(?!per_sample_j$|uncertainty_j$)(?!.*_sampled_j$)(.+)_j")
REST = "rest"
"""The part of a total that its domains do not cover."""
DOMAIN_TOLERANCE = 0.02
"""Relative difference between a total and its domains, which are read one after the other."""
Bar = tuple[ChartPoint, MeanSd, Mapping[str, float]]
"""A configuration, the total of its time or energy, and its parts."""


def epoch_parts(points: Sequence[ChartPoint]) -> list[Chart]:
    """Draw the parts of the time of a steady epoch."""
    caption = "A steady epoch by the activity of the device. Each part is measured separately."
    bars = _bars(points, "steady/e2e_s", lambda configuration, total: _all_known(configuration, TIMES))
    return _stacked("epoch_parts", "Time per epoch", "part", "s", points, bars, PART_COLORS, caption)


def energy_parts(points: Sequence[ChartPoint]) -> list[Chart]:
    """Draw the energy of a steady epoch by domain and by phase, one chart per energy scope."""
    charts, label = [], "Energy per epoch"
    for suffix, group in by_energy_scope(points):
        bars = _bars(group, "steady/energy_j", energy_domains)
        names = sorted({part for _, _, parts in bars for part in parts} - {REST})
        colors = {name: DOMAIN_COLORS[place % len(DOMAIN_COLORS)] for place, name in enumerate(names)} | {REST: GRAY}
        caption = join("A steady epoch by component.", scope_note(group))
        charts += _stacked(f"energy_domains{suffix}", label, "component", "J", group, bars, colors, caption)
        bars = _bars(group, "steady/energy_j", lambda configuration, total: _all_known(configuration, ENERGIES))
        caption = join("A steady epoch by the activity of the device.", scope_note(group))
        charts += _stacked(f"energy_phases{suffix}", label, "part", "J", group, bars, PART_COLORS, caption)
    return charts


def time_bars(
    name: str, title: str, times_s: Sequence[tuple[ChartPoint, MeanSd]], palette: Palette, note: str
) -> Chart:
    """Draw time to a target where energy is unknown, the fastest on top."""
    shown = sorted(times_s, key=lambda pair: pair[1].mean)[:MAX_BARS]
    axis = make_axis("Time to the target", [time.mean for _, time in shown], "s", zero=True)
    rows = []
    for index, (point, time) in enumerate(shown):
        kind = palette.kind(point.configuration)
        value = axis.value(time.mean)
        rows.append({**point.tooltip(time=time.text("s")), "bar": index, "part": kind, "start": 0, "end": value})
    caption = join("Energy to the target is unknown.", note, _fewer_note(len(times_s), "fastest"))
    return Chart(name, title, caption, _spec(axis.title, rows, [point for point, _ in shown], palette.colors, "time"))


def energy_domains(configuration: Configuration, total_j: float) -> dict[str, float]:
    """Return the joules of the domains that make up a total, each counted once; empty if they do not add up to it.

    Domains within the only domain of the total, such as the rails of a board, are shown with the rest of that one.
    """
    names = {domain for run in configuration.runs for metric in run.metrics if (domain := _domain(metric))}
    joules = _all_known(configuration, {name: f"energy_{name}_j" for name in sorted(names)})
    totals = {frozenset(run.energy_domains) for run in configuration.runs}
    total = totals.pop() if len(totals) == 1 else frozenset()
    summed = {name: value for name, value in joules.items() if name in total}
    if len(summed) < len(total) or not math.isclose(math.fsum(summed.values()), total_j, rel_tol=DOMAIN_TOLERANCE):
        return {}
    within = {name: value for name, value in joules.items() if name not in total}
    if len(total) > 1 or not within:
        return summed
    rest = total_j - math.fsum(within.values())
    return {**within, REST: rest} if rest >= 0 else {}


@lru_cache(maxsize=1024)  # the same names in every run
def _domain(metric: str) -> str | None:
    match = DOMAIN.fullmatch(metric)
    return match[1] if match else None


def _all_known(configuration: Configuration, metrics: Mapping[str, str]) -> dict[str, float]:
    """Return the means of metrics by their names in the chart; empty unless all are known."""
    means = {name: configuration.mean(f"steady/{metric}") for name, metric in metrics.items()}
    finite = {name: mean for name, mean in means.items() if mean is not None and math.isfinite(mean)}
    return finite if len(finite) == len(metrics) else {}


def _bars(
    points: Sequence[ChartPoint], metric: str, parts_of: Callable[[Configuration, float], dict[str, float]]
) -> list[Bar]:
    """Return the configurations that have parts, the smallest total first."""
    totals = [(point, total) for point in points if (total := mean_sd(point.configuration, metric))]
    totals.sort(key=lambda pair: pair[1].mean)
    bars = ((point, total, parts_of(point.configuration, total.mean)) for point, total in totals)
    return [bar for bar in bars if bar[2]]


def _stacked(
    name: str, label: str, what: str, base: str, points: Sequence[ChartPoint], bars: Sequence[Bar],
    colors: Mapping[str, str], caption: str,
) -> list[Chart]:  # fmt: skip
    """Draw the first bars, and the next ones in a chart that the page folds."""
    missing = len(points) - len(bars)
    total = plural(len(points), "configuration")
    unknown = f"The parts of {missing:,} of {total} are unknown." if missing else ""
    fewer = _fewer_note(len(bars), "fastest" if base == "s" else "most frugal")
    first, more = bars[:MAX_BARS], bars[MAX_BARS : MAX_BARS + MAX_FOLDED_BARS]
    title, caption = f"{label} by {what}", join(caption, fewer, unknown)
    charts = [Chart(name, title, caption, _parts_spec(label, base, first, colors))] if first else []
    if more:
        title, caption = f"{title}: further configurations", f"The next {len(more):,}."
        spec = _parts_spec(label, base, more, colors)
        charts.append(Chart(f"{name}_more", title, caption, spec, is_folded=True))
    return charts


def _parts_spec(label: str, base: str, bars: Sequence[Bar], colors: Mapping[str, str]) -> Spec:
    axis = make_axis(label, [total.mean for _, total, _ in bars], base, zero=True)
    rows: list[dict[str, object]] = []
    for index, (point, total, parts) in enumerate(bars):
        start = 0.0
        for part in colors:
            if not (size := parts.get(part)):
                continue
            end = start + axis.value(size)
            text = f"{quantity(size, base, total.mean)} ({percent(size / total.mean)})"
            tooltip = point.tooltip(part=part, value=text, total=total.text(base))
            rows.append({**tooltip, "bar": index, "start": start, "end": end})
            start = end
    used = {row["part"] for row in rows}
    shown = {part: color for part, color in colors.items() if part in used}
    return _spec(axis.title, rows, [point for point, _, _ in bars], shown, "part", "value", "total")


def _spec(title: str, rows: Rows, points: Sequence[ChartPoint], colors: Mapping[str, str], *fields: str) -> Spec:
    """Bars with their names above them, which also fits a narrow page."""
    place = channel("bar:O", axis=None)
    scale = {"domain": list(colors), "range": list(colors.values())}
    encoding = {
        "x": channel("start:Q", title=title, scale={"zero": True}),
        "x2": {"field": "end"},
        "y": place,
        "color": channel("part:N", scale=scale, legend={"title": None} if len(colors) > 1 else None),
        "href": channel("link:N"),
        "tooltip": tooltips("title", *fields, "runs"),
    }
    pieces = layer("parts", "bar", encoding, size=BAR_PX)
    above = {"align": "left", "baseline": "bottom", "dy": -BAR_PX / 2 - 2, "limit": {"expr": "width"}}
    names = layer("bars", "text", {"x": {"datum": 0}, "y": place, "text": channel("name:N")}, **above, aria=False)
    datasets = {"parts": rows, "bars": [{"bar": index, "name": point.title} for index, point in enumerate(points)]}
    return make_spec({"layer": [pieces, names], "height": {"step": STEP_PX}}, datasets)


def _fewer_note(count: int, order: str) -> str:
    return f"The {MAX_BARS} {order} of {count:,} configurations." if count > MAX_BARS else ""
