"""Stacked bars of time and energy by part, and bars of time to a target; the configuration with the least is on top."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from types import MappingProxyType

from epochmeter.report.charts import vega
from epochmeter.report.charts.points import MeanSd, Palette, by_energy_scope, mean_sd, tooltip
from epochmeter.report.charts.vega import Bar, Caption, Chart
from epochmeter.report.formatting import metric_title
from epochmeter.report.render import phrase
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import ENERGY, TIME, TIME_TO_TARGET
from epochmeter.results.account import GROUPS, grouped
from epochmeter.results.metrics import find
from epochmeter.shared.phases import PHASES

MAX_BARS, MAX_FOLDED_BARS = 15, 60
PARTS = {"data_stall": vega.VERMILION, "copy": vega.ORANGE, "compute": vega.BLUE, "overhead": vega.GRAY}
"""Part of an epoch -> its color."""
PHASE_COLORS = (vega.SKY, vega.GREEN, vega.PURPLE, vega.BLUE, vega.ORANGE, vega.GRAY)
TIMES = {part: f"{part}_s" for part in PARTS}
JOULES = {part: f"{part.removeprefix('data_')}_energy_j" for part in PARTS}
DOMAIN_COLORS = (vega.BLUE, vega.ORANGE, vega.GREEN, vega.PURPLE, vega.SKY, vega.VERMILION, vega.BROWN)
CHECKS = r"(?:psys|(?:un)?core\d.*|.*_sampled)_j$"  # domains that only check others
DOMAIN = re.compile(rf"steady/energy_(?!per_(?:sample|gflop)_j$|uncertainty_j$|{CHECKS})(.+)_j")
RUN_TIME = "run/wall_s"
RUN_GROUP_COLORS = (
    *(vega.BLUE, vega.PURPLE, vega.SKY, vega.GREEN, vega.ORANGE, vega.BROWN, vega.GRAY),
    *(vega.VERMILION, vega.GRAY),
)
RUN_COLORS = dict(zip(GROUPS, RUN_GROUP_COLORS, strict=True))
"""Group of rows in the account of a run -> its color; the last one is of runs that go on."""
COMPUTE = "steady/compute_s"
REST = "rest"  # the part of a total that its domains do not cover
DOMAIN_TOLERANCE = 0.02  # relative difference between a total and its domains, which are read one after the other


def epoch_parts(configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw the parts of the time of a steady epoch."""
    caption = {"by_activity": True, "measured_separately": True}
    return _stacked("epoch_parts", TIME, configurations, _epoch_parts, caption)


def _epoch_parts(configuration: Configuration, _: float) -> dict[str, float]:
    """Return the parts of the mean epoch; the copies of a script are part of its compute."""
    has_copy = configuration.mean("steady/copy_s") is not None
    return _activities(configuration, {part: name for part, name in TIMES.items() if part != "copy" or has_copy})


def run_parts(configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw where the time of whole runs went."""
    return _stacked("run_parts", RUN_TIME, configurations, _run_groups, {"whole_run": True}, RUN_COLORS)


def _run_groups(configuration: Configuration, _: float) -> dict[str, float]:
    metrics = {name for run in configuration.runs for name in run.metrics if name.startswith("run/")}
    means = {name: mean for name in metrics if (mean := configuration.mean(name)) is not None}
    return grouped(means)


def compute_phases(configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw the phases of the compute of a steady epoch."""
    metrics = {phase.removesuffix("_s"): phase for phase in PHASES}
    colors = dict(zip(map(part_title, metrics), PHASE_COLORS, strict=True))
    return _stacked(
        "compute_phases", COMPUTE, configurations,
        lambda configuration, _: _activities(configuration, metrics), {"by_phase": True}, colors,
    )  # fmt: skip


def energy_parts(configurations: Sequence[Configuration]) -> list[Chart]:
    """Draw the energy of a steady epoch by domain, unless there is only one, and by phase; a chart per energy scope."""
    charts = []
    for suffix, scope, group in by_energy_scope(configurations):
        caption: Caption = {"by_component": True, "scope": scope}
        components = _stacked(f"energy_domains{suffix}", ENERGY, group, energy_domains, caption)
        caption = {"by_activity": True, "scope": scope}
        name = f"energy_phases{suffix}"
        activities = _stacked(name, ENERGY, group, lambda configuration, _: _activities(configuration, JOULES), caption)
        shown = {row["part"] for chart in components for row in chart.spec["datasets"]["parts"]}
        charts += activities if activities and len(shown) < 2 else components + activities
    return charts


def time_bars(
    name: str, title: str, times_s: Sequence[tuple[Configuration, MeanSd]], palette: Palette, caption: Caption
) -> Chart:
    """Draw time to a target where energy is unknown, the fastest on top."""
    bars = [
        Bar(
            configuration.title,
            {palette.kind(configuration): time_s.mean},
            time_s.mean,
            tooltip(configuration, total=time_s.text("s")),
        )
        for configuration, time_s in sorted(times_s, key=lambda pair: pair[1].mean)
    ]
    label, fields = metric_title(TIME_TO_TARGET), ("title", "total", "runs")
    spec = vega.stacked_bars(label, "s", bars[:MAX_BARS], palette.colors, *fields)
    return Chart(name, title, spec, {"energy_unknown": True, **caption, **_fewer("s", len(bars))})


def energy_domains(configuration: Configuration, total_j: float) -> dict[str, float]:
    """Return the joules of the domains that make up a total, each counted once; empty if they do not add up to it.

    Domains within the only domain of the total, such as the rails of a board, are shown with the rest of that one.
    """
    metrics = {name for run in configuration.runs for name in run.metrics if name.startswith("steady/energy_")}
    names = sorted(match[1] for metric in metrics if (match := DOMAIN.fullmatch(metric)))
    joules = _known(configuration, {name: f"energy_{name}_j" for name in names})
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


def part_title(part: str) -> str:
    """Return the name of a part of an epoch: `data stall`."""
    return find(f"epoch/{part}_s").short


def _activities(configuration: Configuration, metrics: Mapping[str, str]) -> dict[str, float]:
    return _known(configuration, {part_title(part): metric for part, metric in metrics.items()})


def _known(configuration: Configuration, metrics: Mapping[str, str]) -> dict[str, float]:
    """Return the means of metrics by part; empty unless all are known."""
    means = {name: configuration.mean(f"steady/{metric}") for name, metric in metrics.items()}
    measured = {name: mean for name, mean in means.items() if mean is not None}
    return measured if len(measured) == len(metrics) else {}


def _stacked(
    name: str, metric: str, configurations: Sequence[Configuration],
    parts_of: Callable[[Configuration, float], dict[str, float]], caption: Caption,
    own_colors: Mapping[str, str] = MappingProxyType({}),
) -> list[Chart]:  # fmt: skip
    """Draw configurations with known parts as bars: the smallest, and further ones in a chart that the page folds."""
    base, label = find(metric).unit, metric_title(metric)
    totals = [(configuration, total) for configuration in configurations if (total := mean_sd(configuration, metric))]
    bars = [
        Bar(configuration.title, parts, total.mean, tooltip(configuration, total=total.text(base)))
        for configuration, total in sorted(totals, key=lambda pair: pair[1].mean)
        if (parts := parts_of(configuration, total.mean))
    ]
    activities = {part_title(part): color for part, color in PARTS.items()}
    domains = sorted({part for bar in bars for part in bar.parts} - {*activities, *own_colors, REST})
    colors = {**own_colors, **activities, **dict(zip(domains, cycle(DOMAIN_COLORS), strict=False)), REST: vega.GRAY}
    title = phrase("by_component" if "by_component" in caption else "by_part", label=label)
    unknown = len(configurations) - len(bars)
    caption = {**caption, **_fewer(base, len(bars)), "unknown_parts": unknown and (unknown, len(configurations))}
    more = bars[MAX_BARS : MAX_BARS + MAX_FOLDED_BARS]
    charts = []
    for ending, heading, shown, notes in (
        ("", title, bars[:MAX_BARS], caption),
        ("_more", phrase("further", title=title), more, {"next": len(more)}),
    ):
        if shown:
            spec = vega.stacked_bars(label, base, shown, colors, "title", "part", "value", "total", "runs")
            charts.append(Chart(name + ending, heading, spec, notes, is_folded=bool(ending)))
    return charts


def _fewer(base: str, count: int) -> dict[str, object]:
    return {"fastest_of" if base == "s" else "least_energy_of": (MAX_BARS, count)} if count > MAX_BARS else {}
