"""Check a change against bounds, for continuous integration: no slower than 1.03 times, no more energy than 1.05 times.

A bound is violated if the ratio is significantly above it. It holds if the ratio is significantly below it: a missing
difference is no proof (equivalence tests; D. J. Schuirmann, A comparison of the two one-sided tests procedure, 1987).
Otherwise the runs are too few to decide. Violations of several checks are corrected by Holm's method (S. Holm, A simple
sequentially rejective multiple test procedure, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from epochmeter.report.runs.configuration import Configuration, NoEnergy, no_energy
from epochmeter.report.runs.costs import ENERGY, TIME, positive_values
from epochmeter.report.statistics import ALPHA, Estimate, Fit, fits, ratio_in_fits, repeats_to_decide, student

Verdict = Literal["violated", "undecided", "passed"]
METRICS = {"time": TIME, "energy": ENERGY}
EXIT_CODES: Mapping[Verdict, int] = {"passed": 0, "violated": 2, "undecided": 3}


@dataclass(frozen=True)
class Check:
    """One bound on one configuration.

    Attributes:
        metric: `time` or `energy`, per epoch.
        ratio: After as a multiple of before, with its 95 % interval; None if it is not known.
        no_energy: Why there is no ratio of energies; None also if a run lacks a value.
        repeats: Runs of each side that would probably decide; None if decided, not known, or too many.
    """

    title: str
    metric: str
    bound: float
    verdict: Verdict
    ratio: Estimate | None = None
    no_energy: NoEnergy | None = None
    repeats: int | None = None


def check_bounds(
    pairs: Sequence[tuple[Configuration, Configuration]], bounds: Mapping[str, float], *, interleaved: bool = False
) -> list[Check]:
    """Check each configuration against each bound.

    Each bound that holds is a claim of its own and needs no correction.

    Args:
        pairs: Each configuration before, with its counterpart after.
        bounds: Metric (`time`, `energy`) -> largest ratio.
        interleaved: Whether both sides ran in the same rounds of one sweep, so that drift cancels.

    Raises:
        ValueError: Nothing can be compared, so that a gate must not pass.
    """
    if not pairs:
        raise ValueError("gate: no configuration to compare\n  hint: give two sweeps with common configurations")
    tests = [test for metric, bound in bounds.items() for test in _tests(metric, bound, pairs, interleaved)]
    violations = _holm([above for _, above, _ in tests])
    checks = []
    for (check, _, within), violation in zip(tests, violations, strict=True):
        if violation <= ALPHA:
            check = replace(check, verdict="violated", repeats=None)
        elif within <= ALPHA:
            check = replace(check, verdict="passed", repeats=None)
        checks.append(check)
    return checks


def exit_code(checks: Sequence[Check]) -> int:
    """Return 2 if a bound is violated, 3 if one is undecided, 0 if all hold."""
    verdicts = {check.verdict for check in checks}
    return next((EXIT_CODES[verdict] for verdict in ("violated", "undecided") if verdict in verdicts), 0)


def _tests(
    metric: str, bound: float, pairs: Sequence[tuple[Configuration, Configuration]], interleaved: bool
) -> Iterator[tuple[Check, float, float]]:
    """Test one metric of all pairs; the variances of all configurations are estimated together.

    Yields:
        A check without its verdict, and two p-values. The first is small if the bound is violated, the second if the
        bound holds.
    """
    reasons = [no_energy(pair) if metric == "energy" else None for pair in pairs]
    are_known = [
        not reason and all(positive_values(side, METRICS[metric]) for side in pair)
        for pair, reason in zip(pairs, reasons, strict=True)
    ]
    measured = [pair for pair, has_ratio in zip(pairs, are_known, strict=True) if has_ratio]
    sides = list(dict.fromkeys(side for pair in measured for side in pair))  # one sweep has one baseline for all
    logs = [[math.log(value) for value in positive_values(side, METRICS[metric])] for side in sides]
    rounds = [[run.round for run in side.runs] for side in sides] if interleaved else []
    fitted = fits(logs, rounds, [[run.started for run in side.runs] for side in sides]) if sides else []
    for (before, after), reason, has_ratio in zip(pairs, reasons, are_known, strict=True):
        check = Check(after.title, metric, bound, "undecided", no_energy=reason)
        if not has_ratio:
            yield check, 1.0, 1.0
            continue
        ends = sides.index(after), sides.index(before)
        above, within, repeats = zip(*(_test(one, *ends, math.log(bound)) for one in fitted), strict=True)
        most = None if None in repeats else max(repeats)
        yield replace(check, ratio=ratio_in_fits(fitted, *ends), repeats=most), max(above), max(within)


def _test(fitted: Fit, after: int, before: int, bound: float) -> tuple[float, float, int | None]:
    """Test a difference of mean logarithms; return the two p-values and the repeats that would decide."""
    from scipy.special import stdtr

    difference, error = fitted.difference(after, before)
    margin = difference - bound
    if not fitted.dof:
        return 1.0, 1.0, None
    if not error.variance:
        return float(margin <= 0), float(margin > 0), None
    above, within = (float(stdtr(error.dof, sign * margin / math.sqrt(error.variance))) for sign in (-1, 1))
    of_one_pair = fitted.single.variance[after] + fitted.single.variance[before]
    repeats = repeats_to_decide(abs(margin), of_one_pair, lambda dof: student(dof, 1 - ALPHA))
    return above, within, repeats


def _holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected by Holm's method."""
    import numpy as np

    count, adjusted = len(p_values), np.ones(len(p_values))
    ascending = np.argsort(p_values)
    adjusted[ascending] = np.maximum.accumulate(np.take(p_values, ascending) * np.arange(count, 0, -1))
    return np.minimum(adjusted, 1.0).tolist()
