"""All charts of a report, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochmeter.report.analyses import scaling
from epochmeter.report.charts.bars import energy_parts, epoch_parts
from epochmeter.report.charts.chart import Chart
from epochmeter.report.charts.heatmap import heatmaps
from epochmeter.report.charts.lines import efficiency, epochs, power_over_time
from epochmeter.report.charts.points import Palette, chart_points
from epochmeter.report.charts.scatter import energy_by_time, to_target
from epochmeter.report.runs.configuration import Configuration, varied, without_synthetic
from epochmeter.report.runs.power import Power

if TYPE_CHECKING:
    from epochmeter.report.analyses.best import Best


def all_charts(
    configurations: Sequence[Configuration],
    best: Sequence[Best] = (),
    pareto: Sequence[Configuration] = (),
    powers: Sequence[Power] = (),
) -> list[Chart]:
    """Draw every chart for which the runs have data, with labels at the best and a line through the Pareto front.

    Configurations on synthetic batches are drawn in the charts of parts, but are never the best.
    """
    palette = Palette.of(configurations)
    points = chart_points(configurations)
    compared = scaling.analyze([run for configuration in configurations for run in configuration.runs])
    real = without_synthetic(configurations)
    real_points = chart_points(real)
    charts = [
        *to_target(points, palette),
        *(energy_by_time(real_points, palette, best, pareto) if len(real) > 1 else []),  # one point compares nothing
        *epoch_parts(points),
        *energy_parts(points),
        *heatmaps(real_points, varied(real)),
        *epochs(points, palette),
        power_over_time(powers, points, palette),
        efficiency(compared.compared if compared else [], points),
    ]
    return [chart for chart in charts if chart]
