"""Stacked bars of time and energy by part, and bars of time to a target; the configuration with the least is on top."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from epochmeter.report.charts import vega
from epochmeter.report.charts.points import MeanSd, Palette, by_energy_scope, mean_sd, scopes, tooltip
from epochmeter.report.charts.vega import Chart
from epochmeter.report.render import phrase
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import ENERGY, TIME

MAX_BARS, MAX_FOLDED_BARS = 15, 60
PARTS = {"data_stall": vega.VERMILION, "copy": vega.ORANGE, "compute": vega.BLUE, "overhead": vega.GRAY}
"""Part of an epoch -> its color."""
DOMAIN_COLORS = (vega.BLUE, vega.ORANGE, vega.GREEN, vega.PURPLE, vega.SKY, vega.VERMILION, vega.BROWN)
DOMAIN = re.compile(r"steady/energy_(?!per_sample_j$|uncertainty_j$)(?!.*_sampled_j$)(.+)_j")
REST = "rest"  # the part of a total that its domains do not cover
DOMAIN_TOLERANCE = 0.02  # relative difference between a total and its domains, which are read one after the other
Bar = tuple[Configuration, MeanSd, Mapping[str, float]]
"""A configuration, the total of its time or energy, and its parts."""


def epoch_parts(configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw the parts of the time of a steady epoch."""
    bars = _bars(configurations, TIME, lambda entry, total: _known(entry, {part: f"{part}_s" for part in PARTS}))
    caption = {"by_activity": True, "measured_separately": True}
    return _stacked("epoch_parts", "s", configurations, bars, PARTS, caption)


def energy_parts(configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw the energy of a steady epoch by domain and by phase, one chart per energy scope."""
    charts, metrics = [], {part: f"{part.removeprefix('data_')}_energy_j" for part in PARTS}
    for suffix, group in by_energy_scope(configurations):
        bars = _bars(group, ENERGY, energy_domains)
        names = sorted({part for _, _, parts in bars for part in parts} - {REST})
        colors = {name: DOMAIN_COLORS[place % len(DOMAIN_COLORS)] for place, name in enumerate(names)}
        caption = {"by_component": True, "scope": scopes(group)}
        charts += _stacked(f"energy_domains{suffix}", "J", group, bars, {**colors, REST: vega.GRAY}, caption)
        bars = _bars(group, ENERGY, lambda entry, total: _known(entry, metrics))
        charts += _stacked(
            f"energy_phases{suffix}", "J", group, bars, PARTS, {"by_activity": True, "scope": scopes(group)}
        )
    return charts


def time_bars(
    name: str, title: str, times_s: Sequence[tuple[Configuration, MeanSd]], palette: Palette, caption: vega.Caption
) -> Chart:
    """Draw time to a target where energy is unknown, the fastest on top."""
    shown = sorted(times_s, key=lambda pair: pair[1].mean)[:MAX_BARS]
    bars = [(entry, time, {palette.kind(entry): time.mean}) for entry, time in shown]
    spec = _spec(phrase("time_to_target"), "s", bars, palette.colors, "title", "total", "runs")
    return Chart(name, title, spec, {"energy_unknown": True, **caption, **_fewer("s", len(times_s))})


def energy_domains(configuration: Configuration, total_j: float) -> dict[str, float]:
    """Return the joules of the domains that make up a total, each counted once; empty if they do not add up to it.

    Domains within the only domain of the total, such as the rails of a board, are shown with the rest of that one.
    """
    names = {domain for run in configuration.runs for metric in run.metrics if (domain := _domain(metric))}
    joules = _known(configuration, {name: f"energy_{name}_j" for name in sorted(names)})
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


def _known(configuration: Configuration, metrics: Mapping[str, str]) -> dict[str, float]:
    """Return the means of metrics by part; empty unless all are known."""
    means = {name: configuration.mean(f"steady/{metric}") for name, metric in metrics.items()}
    finite = {name: mean for name, mean in means.items() if mean is not None and math.isfinite(mean)}
    return finite if len(finite) == len(metrics) else {}


def _bars(
    configurations: Sequence[Configuration], metric: str, parts_of: Callable[[Configuration, float], dict[str, float]]
) -> list[Bar]:
    """Return the configurations whose parts are known, the least total first."""
    totals = [(entry, total) for entry in configurations if (total := mean_sd(entry, metric))]
    totals.sort(key=lambda pair: pair[1].mean)
    return [(entry, total, parts) for entry, total in totals if (parts := parts_of(entry, total.mean))]


def _stacked(
    name: str, base: str, configurations: Sequence[Configuration], bars: Sequence[Bar], colors: Mapping[str, str],
    caption: vega.Caption,
) -> list[Chart]:  # fmt: skip
    """Draw the first bars, and the next ones in a chart that the page folds."""
    label = phrase("time_per_epoch" if base == "s" else "energy_per_epoch")
    title = phrase("by_component" if "by_component" in caption else "by_part", label=label)
    unknown = len(configurations) - len(bars)
    caption = {**caption, **_fewer(base, len(bars)), "unknown_parts": unknown and (unknown, len(configurations))}
    charts = []
    fields = ("title", "part", "value", "total", "runs")
    more, further = bars[MAX_BARS : MAX_BARS + MAX_FOLDED_BARS], phrase("further", title=title)
    if bars:
        charts.append(Chart(name, title, _spec(label, base, bars[:MAX_BARS], colors, *fields), caption))
    if more:
        spec = _spec(label, base, more, colors, *fields)
        charts.append(Chart(f"{name}_more", further, spec, {"next": len(more)}, is_folded=True))
    return charts


def _spec(label: str, base: str, bars: Sequence[Bar], colors: Mapping[str, str], *fields: str) -> vega.Spec:
    names = {part: phrase(part) if part in (*PARTS, REST) else part for part in colors}
    named = [
        vega.Bar(entry.title, {names[part]: parts[part] for part in colors if parts.get(part)}, total.mean,
                 tooltip(entry, total=total.text(base)))
        for entry, total, parts in bars
    ]  # fmt: skip
    return vega.stacked_bars(label, base, named, {names[part]: color for part, color in colors.items()}, *fields)


def _fewer(base: str, count: int) -> dict[str, object]:
    return {"fastest_of" if base == "s" else "least_energy_of": (MAX_BARS, count)} if count > MAX_BARS else {}
