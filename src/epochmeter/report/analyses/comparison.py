"""Compare two sweeps, such as before and after a change: each configuration with its counterpart.

Intervals come from repeats, with variances estimated from all configurations overall. Of many differences, some
appear by chance: verdicts control the false discovery rate per metric (Y. Benjamini, Y. Hochberg, Controlling the False
Discovery Rate, J. R. Statist. Soc. B 57(1), 1995), while intervals are not corrected.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

from epochmeter.report.analyses.matching import matching
from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import Configuration, no_energy, titles
from epochmeter.report.runs.costs import ENERGY, POWER, TIME, positive_values
from epochmeter.report.statistics import ALPHA, Estimate, false_discovery_rates, mean, pairwise_ratios
from epochmeter.report.words import Grid, finite, number, spread, times
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS

METRICS = {TIME: ("time", "s"), ENERGY: ("energy", "J"), POWER: ("power", "W")}
EQUIVALENCE = 0.05
"""Two values are equivalent if the interval of their ratio contains 1 and is within this relative difference."""
DIFFERS, SAME, INCONCLUSIVE = "differs", "no difference", "inconclusive"
RUNS, ONCE, CONFIGURATIONS = "runs", "one run each", "configurations"
MIN_OVERALL = 3
"""Number of configurations from which on there is also an overall comparison."""
MAX_WIDTH = 100.0
"""A wider interval, as the ratio of its ends, is not printed."""
MAX_ROWS = 60
"""Ratios in the table; the JSON file has all."""


@dataclass(frozen=True)
class Difference:
    """A metric of a configuration after, as a multiple of that before.

    Attributes:
        metric: Full name: `steady/e2e_s`.
        is_equivalent: Whether the interval excludes any difference that matters.
        basis: Source of the interval: `runs`, or `configurations` if over all of them; `one run each`: none.
        before: Mean before, in the metric's unit; None over all configurations.
        after: The same after.
        counts: Runs before and after.
        p_value: Of no difference; None without repeats.
        q_value: Smallest false discovery rate at which it differs, among all configurations of the metric.
    """

    title: str
    metric: str
    ratio: Estimate
    is_equivalent: bool
    basis: str = RUNS
    before: float | None = None
    after: float | None = None
    counts: tuple[int, int] = (0, 0)
    p_value: float | None = None
    q_value: float | None = None

    @property
    def interval_of(self) -> str:
        """`3 and 5 runs`."""
        return f"{self.counts[0]} and {self.counts[1]} runs" if self.basis == RUNS else self.basis

    @property
    def differs_alone(self) -> bool:
        """Whether its interval alone shows a difference."""
        return self.ratio.low is not None and not self.ratio.contains(1)

    @property
    def verdict(self) -> str:
        """`differs`, `no difference` or `inconclusive`."""
        if self.is_equivalent:
            return SAME
        by_chance = self.q_value is not None and self.q_value > ALPHA
        return DIFFERS if self.differs_alone and not by_chance else INCONCLUSIVE


def analyze(before: Sequence[Configuration], after: Sequence[Configuration]) -> list[Difference]:
    """Compare time, energy and power per epoch of each configuration, then of all overall if there are several.

    Metrics that either side lacks are absent, as are energies that cover different parts of the machine.
    """
    return _differences(matching(before, after).pairs)


def sentences(differences: Sequence[Difference]) -> list[str]:
    """Return the result in short: over all configurations if there are several, else of the only one."""
    overall = [difference for difference in differences if difference.basis == CONFIGURATIONS]
    texts = [sentence(difference) for difference in overall or differences]
    single = [difference for difference in differences if difference.basis != CONFIGURATIONS]
    if overall and (
        significant := [
            difference for difference in single if difference.verdict == DIFFERS and difference.metric == TIME
        ]
    ):
        most = max(significant, key=lambda difference: abs(math.log(difference.ratio.value)))
        of = f", the largest of {len(significant)} differences, so probably less" if len(significant) > 1 else ""
        texts.append(f"Largest difference: {most.title}: {times(most.ratio)} the time{of}.")
    return [*texts, *caveats(single)]


def caveats(differences: Sequence[Difference]) -> list[str]:
    """Return notes on configurations that are compared one by one."""
    texts = []
    tested = max(
        sum(difference.p_value is not None for difference in differences if difference.metric == name)
        for name in METRICS
    )
    if tested > 1:
        texts.append(
            f"Verdicts control the false discovery rate of {tested} configurations at {100 * ALPHA:g} % "
            "(Benjamini and Hochberg). Intervals are not corrected."
        )
    if any(difference.basis == ONCE for difference in differences):
        texts.append(f"No intervals, as no configuration has repeats. hint: {RECOMMENDED_REPEATS} gives them.")
    elif any(1 in difference.counts for difference in differences):
        texts.append("The intervals of configurations that ran once use the variance of the repeats of others.")
    return texts


def sentence(difference: Difference) -> str:
    """`batch 16: 0.850 times (0.830 to 0.870) the time.`"""
    what = METRICS[difference.metric][0]
    if difference.verdict == DIFFERS:
        return f"{difference.title}: {times(difference.ratio)} the {what}."
    if difference.verdict == SAME:
        return f"{difference.title}: no significant difference in {what}: {times(difference.ratio)}."
    wide = "" if _printable(difference.ratio) == difference.ratio else "; too few repeats for an interval"
    wide = ", which may be noise, given several comparisons" if difference.differs_alone else wide
    return f"{difference.title}: inconclusive in {what}: {times(_printable(difference.ratio))}{wide}."


def page(
    before: Sequence[Configuration], after: Sequence[Configuration], names: tuple[str, str] = ("before", "after")
) -> Page:
    """Return the page of the comparison; `names` are the names of the two sweeps."""
    matched = matching(before, after)
    differences = _differences(matched.pairs)
    lead = f"{names[1]} (after) compared with {names[0]} (before)"
    if not matched.pairs:
        none = "no configuration was run in both on the same host"
        texts = [f"{lead}: nothing to compare: {none}."]
    elif not differences:
        texts = [f"{lead}: nothing to compare: the time per epoch is not known in both."]
    else:
        texts = [
            f"{lead}: {len(matched.pairs)} configuration{'s' if len(matched.pairs) > 1 else ''} in both.",
            *sentences(differences),
        ]
    if any(matched.unmatched):
        counts = "{} before and {} after".format(*matched.unmatched)
        texts.append(f"Not compared, without exactly one counterpart: {counts}.")
    if why := no_energy([configuration for pair in matched.pairs for configuration in pair]):
        texts.append(f"Not all energies can be compared: {why.rstrip('.')}.")
    changes = [[key, old, new] for key, (old, new) in matched.changed.items()]
    grids = [grid(differences)] if differences else []
    grids += [Grid("Changed in all configurations", ["key", "before", "after"], changes)] if changes else []
    values = {"before": names[0], "after": names[1], "changed": matched.changed, "unmatched": matched.unmatched,
              "differences": [{**asdict(entry), "verdict": entry.verdict} for entry in differences]}  # fmt: skip
    numbers = sorted({run for _, configuration in matched.pairs for run in configuration.numbers})
    return Page("comparison", "Comparison", [Section(texts, grids)], finite(values), numbers)


def grid(differences: Sequence[Difference]) -> Grid:
    """Return the table of all differences, or the largest of many."""
    ordered = sorted(
        differences, key=lambda difference: (difference.basis != CONFIGURATIONS, -abs(math.log(difference.ratio.value)))
    )
    rows = []
    for difference in ordered[:MAX_ROWS] if len(differences) > MAX_ROWS else differences:
        what, unit = METRICS[difference.metric]
        reference = max(difference.before or 0.0, difference.after or 0.0)
        means = [number(value, reference) for value in (difference.before, difference.after)]
        rows.append(
            [
                difference.title,
                f"{what} {unit}",
                *means,
                spread(_printable(difference.ratio)),
                difference.interval_of,
                difference.verdict,
            ]
        )
    columns = ["configuration", "per epoch", "before", "after", "ratio (95 %)", "interval of", "verdict"]
    some = f", the {MAX_ROWS} largest of {len(differences)} differences" if len(differences) > MAX_ROWS else ""
    return Grid(f"After, as multiples of before{some}", columns, rows)


def _differences(pairs: Sequence[tuple[Configuration, Configuration]]) -> list[Difference]:
    names = titles([configuration for configuration, _ in pairs])
    by_metric = [_differences_of(metric, list(zip(names, pairs, strict=True))) for metric in METRICS]
    overall = [entry for differences in by_metric for entry in _overall(differences)]
    order = {name: index for index, name in enumerate(names)}
    return [*overall, *sorted(chain.from_iterable(by_metric), key=lambda difference: order[difference.title])]


def _differences_of(metric: str, named: Sequence[tuple[str, tuple[Configuration, Configuration]]]) -> list[Difference]:
    """Return one metric's differences; absent where either side lacks it, or the energies are not comparable."""
    values = {
        title: (positive_values(before, metric), positive_values(after, metric))
        for title, (before, after) in named
        if metric == TIME or not no_energy([before, after])
    }
    measured = {title: pair for title, pair in values.items() if all(pair)}
    ratios = pairwise_ratios([*measured.values()])
    rates = iter(false_discovery_rates([p_value for _, p_value in ratios if p_value is not None]))
    return [
        Difference(
            title,
            metric,
            ratio,
            _is_equivalent(ratio),
            ONCE if p_value is None else RUNS,
            statistics.fmean(old),
            statistics.fmean(new),
            (len(old), len(new)),
            p_value,
            None if p_value is None else next(rates),
        )
        for (title, (old, new)), (ratio, p_value) in zip(measured.items(), ratios, strict=True)
    ]


def _is_equivalent(ratio: Estimate) -> bool:
    wide = (ratio.low or 0) <= 1 / (1 + EQUIVALENCE) or (ratio.high or math.inf) >= 1 + EQUIVALENCE
    return ratio.contains(1) and not wide


def _printable(ratio: Estimate) -> Estimate:
    """Return the ratio without an interval that says nothing."""
    vague = ratio.low is not None and ratio.high is not None and ratio.high > MAX_WIDTH * ratio.low
    return Estimate(ratio.value) if vague else ratio


def _overall(differences: Sequence[Difference]) -> Iterator[Difference]:
    """Yield the geometric mean over configurations, if there are several: the configuration is the unit."""
    logs = [math.log(difference.ratio.value) for difference in differences]
    if len(logs) >= MIN_OVERALL:
        ratio = mean(logs).exp()
        title = f"All {len(logs)} configurations"
        yield Difference(title, differences[0].metric, ratio, _is_equivalent(ratio), CONFIGURATIONS)
