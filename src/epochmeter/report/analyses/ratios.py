"""Ratios between configurations of one sweep, with effects of rounds removed and variances moderated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.statistics import Estimate, fits, ratio_in_fits


class Ratios:
    """Ratios of a quantity between configurations.

    Effects of rounds and of a trend are removed, and variances are estimated from all configurations together.
    """

    def __init__(self, samples: Mapping[Configuration, Sequence[float]]) -> None:
        """Fit the values of all runs.

        Args:
            samples: Configuration -> the value of each run. A configuration without values, or with a value that is not
                positive, has no ratios.
        """
        measured = {key: values for key, values in samples.items() if values and min(values) > 0}
        logs = [[math.log(value) for value in values] for values in measured.values()]
        self._places = {key: place for place, key in enumerate(measured)}
        self._fits = fits(
            logs,
            [[run.round for run in key.runs] for key in measured],
            [[run.started for run in key.runs] for key in measured],
        )

    @classmethod
    def of_metric(cls, name: str, configurations: Iterable[Configuration]) -> Ratios:
        """Return the ratios of a metric, for the configurations whose runs all have it."""
        return cls({configuration: configuration.values(name) for configuration in configurations})

    def between(self, above: Configuration, below: Configuration) -> Estimate | None:
        """Return the ratio of geometric means; None if it is not known, and without an interval if either ran once."""
        if above not in self._places or below not in self._places:
            return None
        ratio = ratio_in_fits(self._fits, self._places[above], self._places[below])
        return Estimate(ratio.value) if 1 in (len(above.runs), len(below.runs)) else ratio
