"""Ratios between configurations of one sweep, with effects of rounds removed and variances moderated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.statistics import Estimate, fits, ratio_in_fits

Ratios = Callable[[Configuration, Configuration], Estimate | None]
"""Ratio of the geometric means of two configurations: None if not known, and without an interval if either ran once."""


def ratios_of(samples: Mapping[Configuration, Sequence[float]]) -> Ratios:
    """Fit the values of all runs together, of the configurations whose values are known and positive."""
    measured = {key: values for key, values in samples.items() if values and min(values) > 0}
    logs = [[math.log(value) for value in values] for values in measured.values()]
    rounds, started = ([[getattr(run, name) for run in key.runs] for key in measured] for name in ("round", "started"))
    places, fitted = {key: place for place, key in enumerate(measured)}, fits(logs, rounds, started)

    def between(above: Configuration, below: Configuration) -> Estimate | None:
        if above not in places or below not in places:
            return None
        ratio = ratio_in_fits(fitted, places[above], places[below])
        return Estimate(ratio.value) if 1 in (len(above.runs), len(below.runs)) else ratio

    return between
