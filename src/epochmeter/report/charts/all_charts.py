"""All charts of a report, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochmeter.report.analyses import scaling
from epochmeter.report.charts.bars import energy_parts, epoch_parts
from epochmeter.report.charts.heatmap import heatmaps
from epochmeter.report.charts.lines import efficiency, epochs, power_over_time
from epochmeter.report.charts.points import Palette
from epochmeter.report.charts.scatter import energy_by_time, to_target
from epochmeter.report.charts.vega import Chart
from epochmeter.report.runs.configuration import group_repeats, without_synthetic
from epochmeter.report.runs.power import Power
from epochmeter.report.runs.run import Run

if TYPE_CHECKING:
    from epochmeter.report.analyses.best import Best


def all_charts(runs: Sequence[Run], best: Sequence[Best] = (), powers: Sequence[Power] = ()) -> list[Chart]:
    """Draw every chart for which the runs have data, with labels at the best.

    Configurations on synthetic batches are drawn in the charts of parts, but are never the best.
    """
    configurations, real = group_repeats(runs), group_repeats(without_synthetic(runs))
    palette = Palette.of(configurations)
    scaled = scaling.analyze(runs)
    charts = [
        *to_target(configurations, palette),
        *(energy_by_time(real, palette, best) if len(real) > 1 else []),  # one point compares nothing
        *epoch_parts(configurations),
        *energy_parts(configurations),
        *heatmaps(real),
        *epochs(configurations, palette),
        power_over_time(powers, configurations, palette),
        efficiency(scaled.compared if scaled else [], configurations),
    ]
    return [chart for chart in charts if chart]
