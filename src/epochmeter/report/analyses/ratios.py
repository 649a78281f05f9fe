"""Ratios between configurations of one sweep, with effects of rounds removed and variances moderated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.statistics import Estimate, fits, ratio_in_fits


class Ratios:
    """Ratios of a quantity between configurations; variances are estimated from all of them together."""

    def __init__(self, samples: Mapping[Configuration, Sequence[float]]) -> None:
        """Fit the values of all runs; a configuration without values, or with one that is not positive, is left out."""
        measured = {key: values for key, values in samples.items() if values and min(values) > 0}
        logs = [[math.log(value) for value in values] for values in measured.values()]
        rounds, started = (
            [[getattr(run, name) for run in key.runs] for key in measured] for name in ("round", "started")
        )
        self._places = {key: place for place, key in enumerate(measured)}
        self._fits = fits(logs, rounds, started)

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
