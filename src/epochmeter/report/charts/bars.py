"""Stacked bars of time and energy by part, and bars of time to a target; the fastest or most frugal is on top."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

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
    Spec,
    make_axis,
    make_spec,
)
from epochmeter.report.charts.points import (
    ChartPoint,
    MeanSd,
    Palette,
    by_energy_scope,
    join,
    name_suffix,
    scope_note,
    steady,
)
from epochmeter.report.formatting import percent, plural, quantity
from epochmeter.report.runs.configuration import Configuration

if TYPE_CHECKING:
    import altair as alt

MAX_BARS = 15
MAX_FOLDED_BARS = 60
BAR_PX, STEP_PX = 14, 40
PARTS = {"data stall": "data_stall_s", "copy": "copy_s", "compute": "compute_s", "overhead": "overhead_s"}
PHASES = {
    "data stall": "stall_energy_j",
    "copy": "copy_energy_j",
    "compute": "compute_energy_j",
    "overhead": "overhead_energy_j",
}
PART_COLORS = {"data stall": VERMILION, "copy": ORANGE, "compute": BLUE, "overhead": GRAY}
DOMAIN_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, BROWN)
DOMAIN = re.compile(r"steady/energy_(?!per_sample_j$|uncertainty_j$)(?!.*_sampled_j$)(.+)_j")
REST = "rest"
"""The part of a total that its domains do not cover."""
DOMAIN_TOLERANCE = 0.02
"""Relative difference between a total and its domains, which are read one after the other."""


class Parts(NamedTuple):
    """A configuration, and the parts of its time or energy."""

    point: ChartPoint
    parts: Mapping[str, float]
    total: MeanSd


def epoch_parts(points: Sequence[ChartPoint]) -> list[Chart]:
    """Draw the parts of the time of a steady epoch."""
    caption = "A steady epoch by the activity of the device. Each part is measured separately."
    parts = _ordered(points, "e2e_s", lambda point, total: _all_known(point.configuration, PARTS))
    return _stacked("epoch_parts", "Time per epoch by part", "Time per epoch", "s", points, parts, PART_COLORS, caption)


def energy_parts(points: Sequence[ChartPoint]) -> list[Chart]:
    """Draw the energy of a steady epoch by domain and by phase, one chart per energy scope."""
    charts = []
    groups = by_energy_scope(points)
    for index, group in enumerate(groups.values()):
        suffix = name_suffix(index, groups)
        domains = _ordered(group, "energy_j", lambda point, total: energy_domains(point.configuration, total.mean))
        phases = _ordered(group, "energy_j", lambda point, total: _all_known(point.configuration, PHASES))
        by_domain = join("A steady epoch by component.", scope_note(group))
        by_phase = join("A steady epoch by the activity of the device.", scope_note(group))
        label = "Energy per epoch"
        charts += _stacked(f"energy_domains{suffix}", f"{label} by component", label, "J", group, domains,
                           _domain_colors(domains), by_domain)  # fmt: skip
        charts += _stacked(f"energy_phases{suffix}", f"{label} by part", label, "J", group, phases, PART_COLORS,
                           by_phase)  # fmt: skip
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
    colors = dict(zip(palette.kinds, palette.colors, strict=True))
    caption = join("Energy to the target is unknown.", note, _fewer_note(len(times_s), "fastest"))
    return Chart(name, title, caption, _spec(axis.title, rows, [point.title for point, _ in shown], colors, ["time"]))


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
    values = {name: steady(configuration, metric) for name, metric in metrics.items()}
    return {name: value.mean for name, value in values.items() if value} if all(values.values()) else {}


def _ordered(
    points: Sequence[ChartPoint], metric: str, parts_of: Callable[[ChartPoint, MeanSd], dict[str, float]]
) -> list[Parts]:
    """Return the configurations that have parts, the smallest total first."""
    totals = [(point, total) for point in points if (total := steady(point.configuration, metric))]
    totals.sort(key=lambda pair: pair[1].mean)
    return [Parts(point, parts, total) for point, total in totals if (parts := parts_of(point, total))]


def _stacked(
    name: str, title: str, label: str, base: str, points: Sequence[ChartPoint], ordered: Sequence[Parts],
    colors: Mapping[str, str], caption: str,
) -> list[Chart]:  # fmt: skip
    """Draw the first bars, and the next ones in a chart that the page folds."""
    missing = len(points) - len(ordered)
    order = "fastest" if base == "s" else "most frugal"
    caption = join(
        caption,
        _fewer_note(len(ordered), order),
        f"The parts of {missing:,} of {plural(len(points), 'configuration')} are unknown." if missing else "",
    )
    charts = []
    groups = [ordered[:MAX_BARS], ordered[MAX_BARS : MAX_BARS + MAX_FOLDED_BARS]]
    for group, suffix, heading in zip(groups, ("", "_more"), ("", ": further configurations"), strict=True):
        if group:
            spec = _parts_spec(label, base, group, colors)
            charts.append(Chart(f"{name}{suffix}", f"{title}{heading}", caption, spec, is_folded=bool(suffix)))
            caption = f"The next {len(group):,}."
    return charts


def _parts_spec(label: str, base: str, group: Sequence[Parts], colors: Mapping[str, str]) -> Spec:
    axis = make_axis(label, [bar.total.mean for bar in group], base, zero=True)
    rows: list[Mapping[str, object]] = []
    for index, bar in enumerate(group):
        start = 0.0
        for part in colors:
            joules_or_seconds = bar.parts.get(part)
            if not joules_or_seconds:
                continue
            end = start + axis.value(joules_or_seconds)
            share = percent(joules_or_seconds / bar.total.mean) if bar.total.mean else ""
            text = f"{quantity(joules_or_seconds, base, bar.total.mean)} ({share})"
            tooltip = bar.point.tooltip(part=part, value=text, total=bar.total.text(base))
            rows.append({**tooltip, "bar": index, "start": start, "end": end})
            start = end
    used = {row["part"] for row in rows}
    shown = {part: color for part, color in colors.items() if part in used}
    return _spec(axis.title, rows, [bar.point.title for bar in group], shown, ["part", "value", "total"])


def _spec(
    title: str, rows: Sequence[Mapping[str, object]], bars: Sequence[str], colors: Mapping[str, str],
    fields: Sequence[str],
) -> Spec:  # fmt: skip
    """Bars with their names above them, which also fits a narrow page."""
    import altair as alt

    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    legend = alt.Legend(title=None) if len(colors) > 1 else None
    place = alt.Y("bar:O", axis=None)
    pieces = (
        alt.Chart(alt.NamedData("parts"))
        .mark_bar(size=BAR_PX)
        .encode(
            alt.X("start:Q", title=title, scale=alt.Scale(zero=True)),
            place,
            alt.Color("part:N", scale=scale, legend=legend),
            x2="end:Q",
            href="link:N",
            tooltip=[alt.Tooltip(f"{field}:N") for field in ("title", *fields, "runs")],
        )
    )
    names = alt.Chart(alt.NamedData("bars")).mark_text(
        align="left", baseline="bottom", dy=-BAR_PX / 2 - 2, limit=alt.expr("width"), aria=False
    )
    labels = names.encode(place, x=alt.datum(0), text="name:N")
    datasets = {"parts": rows, "bars": [{"bar": index, "name": name} for index, name in enumerate(bars)]}
    chart: alt.LayerChart = alt.layer(pieces, labels).properties(height=alt.Step(STEP_PX))
    return make_spec(chart, "bars", datasets)


def _domain_colors(ordered: Sequence[Parts]) -> dict[str, str]:
    names = sorted({part for bar in ordered for part in bar.parts} - {REST})
    return {name: DOMAIN_COLORS[index % len(DOMAIN_COLORS)] for index, name in enumerate(names)} | {REST: GRAY}


def _fewer_note(count: int, order: str) -> str:
    return f"The {MAX_BARS} {order} of {count:,} configurations." if count > MAX_BARS else ""
