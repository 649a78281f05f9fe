"""Check a change against bounds, for continuous integration: no slower than 1.03 times, no more energy than 1.05 times.

A bound is violated if the ratio is significantly above it. It holds if the ratio is significantly below it: a missing
difference is no proof (equivalence tests; D. J. Schuirmann, A comparison of the two one-sided tests procedure, 1987).
Otherwise the runs are too few to decide. Violations of several checks are corrected by Holm's method (S. Holm, A simple
sequentially rejective multiple test procedure, 1979).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from epochmeter.report.analyses.ratios import Pairs, Ratios
from epochmeter.report.runs.configuration import NoEnergy, no_energy
from epochmeter.report.runs.costs import ENERGY, TIME, positive_values
from epochmeter.report.statistics import ALPHA, Estimate, ratio_in_fits
from epochmeter.results.intervals import student
from epochmeter.shared.problem import input_error

METRICS = {"time": TIME, "energy": ENERGY, "run": "run/wall_s"}


@dataclass(frozen=True)
class Check:
    """One bound on the time or energy per epoch of one configuration, or on the time of its whole run.

    Attributes:
        ratio: After as a multiple of before; None if it is not known, with the reason if energies lack.
        repeats: Runs of each side that would probably decide; None if decided, not known, or too many.
    """

    title: str
    metric: str
    bound: float
    verdict: Literal["violated", "undecided", "passed"] = "undecided"
    ratio: Estimate | None = None
    no_energy: NoEnergy | None = None
    repeats: int | None = None


def check_bounds(pairs: Pairs, bounds: Mapping[str, float], *, interleaved: bool = False) -> list[Check]:
    """Check each configuration against each bound (metric -> largest ratio). A bound that holds needs no correction.

    Args:
        interleaved: Whether both sides ran in the same rounds of one sweep, so that drift cancels.

    Raises:
        ValueError: Nothing can be compared, so that a gate must not pass.
    """
    if not pairs:
        raise input_error("gate: no configuration to compare", "give two sweeps with common configurations")
    tests = [test for metric, bound in bounds.items() for test in _tests(metric, bound, pairs, interleaved)]
    above = np.array([above for _, above, _ in tests])
    order = np.argsort(above)
    above[order] = np.maximum.accumulate(above[order] * np.arange(len(tests), 0, -1))  # Holm's method
    checks = []
    for (check, _, within), violation in zip(tests, above, strict=True):
        if violation <= ALPHA:
            check = replace(check, verdict="violated", repeats=None)
        elif within <= ALPHA:
            check = replace(check, verdict="passed", repeats=None)
        checks.append(check)
    return checks


def exit_code(checks: Sequence[Check]) -> int:
    """Return 2 if a bound is violated, 3 if one is undecided, 0 if all hold."""
    verdicts = {check.verdict for check in checks}
    return 2 if "violated" in verdicts else 3 if "undecided" in verdicts else 0


def _tests(metric: str, bound: float, pairs: Pairs, interleaved: bool) -> Iterator[tuple[Check, float, float]]:
    """Test one metric of all pairs; the variances of all configurations are estimated together.

    Yields:
        An undecided check, a p-value that is small if the bound is violated, and one that is small if it holds.
    """
    gaps = [no_energy(pair, ENERGY) if metric == "energy" else None for pair in pairs]
    values = {side: positive_values(side, METRICS[metric]) for pair in pairs for side in pair}
    measured = [pair for pair, gap in zip(pairs, gaps, strict=True) if not gap and all(values[side] for side in pair)]
    ratios = Ratios({side: values[side] for pair in measured for side in pair}, in_rounds=interleaved)
    for (before, after), gap in zip(pairs, gaps, strict=True):
        check = Check(after.title, metric, bound, no_energy=gap)
        if after not in ratios.places:
            yield check, 1.0, 1.0
            continue
        ends, limit = (ratios.places[after], ratios.places[before]), math.log(bound)
        above = [fit.difference(*ends).p_value(limit) if fit.dof else 1.0 for fit in ratios.fits]
        within = 1 - min(above) if ratios.fits[0].dof else 1.0
        repeats = ratios.repeats(after, before, lambda dof: student(dof, 1 - ALPHA), bound)
        yield replace(check, ratio=ratio_in_fits(ratios.fits, *ends), repeats=repeats), max(above), within
