"""What is drawn of the points of a report, top to bottom; a picture that would show nothing is absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmeter.report.axes import shown
from trainmeter.report.figures import Chart
from trainmeter.report.heatmaps import heatmaps
from trainmeter.report.lines import efficiency, epochs, power_over_time
from trainmeter.report.points import Point, loaded, varied
from trainmeter.report.powers import Power
from trainmeter.report.scaling import scalings
from trainmeter.report.scatters import energy_by_time, to_target
from trainmeter.report.stacks import energy_parts, epoch_parts

if TYPE_CHECKING:
    from trainmeter.report.choices import Choice


def charts(
    points: Sequence[Point], choices: Sequence[Choice] = (), pareto: Sequence[Point] = (), powers: Sequence[Power] = ()
) -> list[Chart]:
    """Every picture that these points have something to show in, in the order of the page.

    `pareto` are the points of the front of energy and time. Ready batches show where time and energy go without
    loading: among what is chosen from they have no place.
    """
    every, real = shown(points), loaded(points)
    told = [
        energy_by_time(shown(real), varied(real), choices, pareto),
        epoch_parts(every),
        *energy_parts(every),
        *heatmaps(shown(real), varied(real)),
        *epochs(every),
        power_over_time(powers, every),
        *to_target(every, varied(points)),
        efficiency(scalings([row for point in points for row in point.rows]), every),
    ]
    return [chart for chart in told if chart]
