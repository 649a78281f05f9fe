"""Ratios between configurations of one sweep, with effects of rounds removed and variances moderated."""

import math
from collections.abc import Callable, Mapping, Sequence

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.statistics import Estimate, fits, ratio_in_fits

Pairs = Sequence[tuple[Configuration, Configuration]]
"""Each configuration before, with its counterpart after."""
VISIBLE = 0.005
"""Relative difference that shows in numbers of three digits."""


class Ratios:
    """Ratios of the geometric means of configurations, of which the positive values of all runs are fitted together.

    Attributes:
        places: Configuration -> its place in the `fits` of the logarithms.
    """

    def __init__(self, samples: Mapping[Configuration, Sequence[float]], *, in_rounds: bool = True) -> None:
        measured = {key: values for key, values in samples.items() if values and min(values) > 0}
        logs = [[math.log(value) for value in values] for values in measured.values()]
        rounds, started = (
            [[getattr(run, name) for run in key.runs] for key in measured] for name in ("round", "started")
        )
        self.places = {key: place for place, key in enumerate(measured)}
        self.fits = fits(logs, rounds if in_rounds else (), started)

    def between(self, above: Configuration, below: Configuration) -> Estimate | None:
        """Return a ratio: None if not known, and without an interval if either ran once."""
        if above not in self.places or below not in self.places:
            return None
        ratio = ratio_in_fits(self.fits, self.places[above], self.places[below])
        return Estimate(ratio.value) if 1 in (len(above.runs), len(below.runs)) else ratio

    def repeats(
        self, above: Configuration, below: Configuration, critical_value: Callable[[float], float], bound: float = 1.0
    ) -> int | None:
        """Return the runs per configuration that probably show a ratio other than `bound`; None: unknown, too many.

        The number is larger than that of the existing runs, which do not show the difference.
        """
        ends = self.places[above], self.places[below]
        counts = [fit.repeats(*ends, critical_value, math.log(bound)) for fit in self.fits]
        more = 1 + min(len(above.runs), len(below.runs))
        return None if None in counts else max(more, *filter(None, counts))


def is_adjusted(ratio: Estimate | None, above: float | None, below: float | None) -> bool:
    """Return whether a ratio visibly differs from the quotient of its means, as it excludes effects of rounds."""
    if ratio is None or above is None or below is None:
        return False
    return abs(ratio.value * below / above - 1) > VISIBLE
