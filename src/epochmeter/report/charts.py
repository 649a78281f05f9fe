"""What is drawn of the points of a report, top to bottom; a picture that would show nothing is absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochmeter.report.analyses.scaling import scalings
from epochmeter.report.axes import shown
from epochmeter.report.figures import Chart
from epochmeter.report.heatmaps import heatmaps
from epochmeter.report.lines import efficiency, epochs, power_over_time
from epochmeter.report.runs.configuration import Configuration, varied, without_synthetic
from epochmeter.report.runs.power import Power
from epochmeter.report.scatters import energy_by_time, to_target
from epochmeter.report.stacks import energy_parts, epoch_parts

if TYPE_CHECKING:
    from epochmeter.report.analyses.best import Best


def charts(
    points: Sequence[Configuration],
    choices: Sequence[Best] = (),
    pareto: Sequence[Configuration] = (),
    powers: Sequence[Power] = (),
) -> list[Chart]:
    """Every picture that these points have something to show in, in the order of the page.

    `pareto` are the points of the front of energy and time. Ready batches show where time and energy go without
    loading: among what is chosen from they have no place.
    """
    every, real = shown(points), without_synthetic(points)
    told = [
        energy_by_time(shown(real), varied(real), choices, pareto),
        epoch_parts(every),
        *energy_parts(every),
        *heatmaps(shown(real), varied(real)),
        *epochs(every),
        power_over_time(powers, every),
        *to_target(every, varied(points)),
        efficiency(scalings([row for point in points for row in point.runs]), every),
    ]
    return [chart for chart in told if chart]
