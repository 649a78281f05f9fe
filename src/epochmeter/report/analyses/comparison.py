"""Two sweeps beside each other: before and after a change, board A and board B, each point with its counterpart.

Repeats are the unit of the intervals. Where a point ran once its epochs stand in for them, and that is said: they are
not independent, so that such an interval is narrower than that of repeats would be.

Of many points put side by side some seem to differ by chance. A verdict is held to all of a metric's together, after
Y. Benjamini, Y. Hochberg, Controlling the False Discovery Rate, J. R. Statist. Soc. B 57(1), 1995; the intervals are
each of its own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from epochmeter.report.analyses.matching import matching
from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import Configuration, no_energy, titles
from epochmeter.report.runs.costs import ENERGY, POWER, TIME, positive_values
from epochmeter.report.statistics import FALSE, Estimate, false_discovery_rates, mean, p_value, ratio
from epochmeter.report.words import Grid, finite, number, spread, times
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS

METRICS = {TIME: ("time", "s"), ENERGY: ("energy", "J"), POWER: ("power", "W")}
NARROW = 0.05
"""An interval that holds 1 and nothing that is off by this share or more shows that there is no difference."""
DIFFERS, SAME, INCONCLUSIVE = "differs", "no difference", "cannot tell"
RUNS, EPOCHS, MIXED, ONCE, POINTS = "runs", "epochs", "runs and epochs", "one run each", "points"
SEVERAL = 3
"""From so many points on something is said of all together."""
WIDE = 100.0
"""An interval whose ends are this many times apart says nothing, and is not told."""
LISTED = 60
"""Ratios that the table shows; the numbers for machines hold all."""


@dataclass(frozen=True)
class Difference:
    """A metric of a point after, as a multiple of that before."""

    title: str
    metric: str
    """Its full name: `steady/e2e_s`."""
    ratio: Estimate
    same: bool
    """Whether it is shown that there is no difference that matters."""
    by: str = RUNS
    """Of what the interval is: `runs`, `epochs` where a point ran once, `runs and epochs` where one of the two did,
    `points` over all; `one run each`: none."""
    before: float | None = None
    """In the mean, in the metric's unit; None over all points."""
    after: float | None = None
    counts: tuple[int, int] = (0, 0)
    """Of how many values before and after the interval is."""
    p_value: float | None = None
    """Of the two being the same; None where no runs are there to tell."""
    q_value: float | None = None
    """The least false discovery rate at which it differs, among all points of the metric."""

    @property
    def interval_of(self) -> str:
        """`3 and 5 runs`."""
        if self.by not in (RUNS, EPOCHS):
            return self.by
        return f"{self.counts[0]} and {self.counts[1]} {self.by}"

    @property
    def differs_alone(self) -> bool:
        """Whether its interval alone would show that it differs."""
        return self.by not in (EPOCHS, MIXED) and self.ratio.low is not None and not self.ratio.contains(1)

    @property
    def verdict(self) -> str:
        """`differs`, `no difference`, or `cannot tell`, as of one run by its epochs: the next run's are others."""
        if self.same and self.by not in (EPOCHS, MIXED):
            return SAME
        chance = self.q_value is not None and self.q_value > FALSE
        return DIFFERS if self.differs_alone and not chance else INCONCLUSIVE


def compare(before: Sequence[Configuration], after: Sequence[Configuration]) -> list[Difference]:
    """Time, energy and power of each point after beside that before, then of all together where there are several.

    A metric that either lacks is absent, as are energies that cover different things.
    """
    return _differences(matching(before, after).pairs)


def difference(title: str, metric: str, before: Configuration, after: Configuration) -> Difference | None:
    """One metric of two points; None where either lacks it, or their joules cannot be put side by side."""
    if metric in (ENERGY, POWER) and no_energy([before, after]):
        return None
    means = [positive_values(point, metric) for point in (before, after)]
    if not all(means):
        return None
    unit, (old, new) = _values_of(metric, before, after, means)
    found, old_mean, new_mean = ratio(new, old), *map(statistics.fmean, means)
    chance = p_value(*([math.log(value) for value in side] for side in (new, old))) if unit == RUNS else None
    return Difference(title, metric, found, _same(found), unit, old_mean, new_mean, (len(old), len(new)), chance)


def sentences(told: Sequence[Difference]) -> list[str]:
    """What the comparison says in short: over all points where there are several, else of the one."""
    together = [each for each in told if each.by == POINTS]
    said = [sentence(each) for each in together or told]
    apart = [each for each in told if each.by != POINTS]
    if together and (cleared := [each for each in apart if each.verdict == DIFFERS and each.metric == TIME]):
        most = max(cleared, key=lambda each: abs(math.log(each.ratio.value)))
        of = f", the largest of {len(cleared)}, and so likely less" if len(cleared) > 1 else ""
        said.append(f"The most differs {most.title}: {times(most.ratio)} the time{of}.")
    return [*said, *caveats(apart)]


def caveats(apart: Sequence[Difference]) -> list[str]:
    """What a reader has to keep in mind of points that were put side by side, each for itself."""
    said = []
    judged = max(sum(each.p_value is not None for each in apart if each.metric == name) for name in METRICS)
    if judged > 1:
        said.append(
            f"Each verdict is held to all {judged} jobs together, at a false discovery rate of {100 * FALSE:g} % "
            "(Benjamini and Hochberg), and each interval is of its own."
        )
    counts = {count for each in apart if each.by in (RUNS, EPOCHS, MIXED) for count in each.counts}
    if len(counts) > 1:
        span = f"{min(counts)} to {max(counts)}"
        said.append(f"Not all ran as often: the intervals are of {span} runs or epochs, and of fewer they are wider.")
    if any(each.by in (EPOCHS, MIXED) for each in apart):
        said.append(
            f"The interval of a job that ran once covers its epochs, not other runs: {RECOMMENDED_REPEATS} covers them."
        )
    if any(each.by == ONCE for each in apart):
        said.append(f"A single run with fewer than two known epochs gives no interval: {RECOMMENDED_REPEATS} does.")
    return said


def sentence(told: Difference) -> str:
    """`batch 16: 0.850 times (0.830 to 0.870) the time.`"""
    what = METRICS[told.metric][0]
    if told.verdict == DIFFERS:
        return f"{told.title}: {times(told.ratio)} the {what}."
    if told.verdict == SAME:
        return f"{told.title}: no difference in {what}: {times(told.ratio)}."
    wide = "" if _told(told.ratio) == told.ratio else ", and may be anything else"
    wide = ", which may be chance among several" if told.differs_alone else wide
    return f"{told.title}: cannot tell whether the {what} differs: {times(_told(told.ratio))}{wide}."


def page(
    before: Sequence[Configuration], after: Sequence[Configuration], names: tuple[str, str] = ("before", "after")
) -> Page:
    """All that two sweeps say beside each other; `names` are what they are called."""
    matched = matching(before, after)
    told = _differences(matched.pairs)
    lead = f"{names[1]} (after) beside {names[0]} (before)"
    if not matched.pairs:
        none = "no job of one is, on its host, a job of the other but for what differs as a whole"
        said = [f"{lead}: nothing to compare: {none}."]
    elif not told:
        said = [f"{lead}: nothing to compare: no time of a steady epoch is known of both."]
    else:
        said = [f"{lead}: {len(matched.pairs)} job{'s' if len(matched.pairs) > 1 else ''} in both.", *sentences(told)]
    if any(matched.unmatched):
        lost = "{} before and {} after".format(*matched.unmatched)
        said.append(f"Left out, without a counterpart in the other or with more than one: {lost}.")
    if why := no_energy([point for pair in matched.pairs for point in pair]):
        said.append(f"Not all energies are put side by side: {why.rstrip('.')}.")
    changes = [[key, old, new] for key, (old, new) in matched.changed.items()]
    grids = [grid(told)] if told else []
    grids += [Grid("What differs as a whole", ["what", "before", "after"], changes)] if changes else []
    values = {"before": names[0], "after": names[1], "changed": matched.changed, "unmatched": matched.unmatched,
              "differences": [{**asdict(each), "verdict": each.verdict} for each in told]}  # fmt: skip
    numbers = sorted({run for _, point in matched.pairs for run in point.numbers})
    return Page("comparison", "Comparison", [Section(said, grids)], finite(values), numbers)


def grid(told: Sequence[Difference]) -> Grid:
    """All, or, of many, those that differ the most."""
    ordered = sorted(told, key=lambda each: (each.by != POINTS, -abs(math.log(each.ratio.value))))
    rows = []
    for each in ordered[:LISTED] if len(told) > LISTED else told:
        what, unit = METRICS[each.metric]
        beside = max(each.before or 0.0, each.after or 0.0)
        means = [number(value, beside) for value in (each.before, each.after)]
        rows.append([each.title, f"{what} {unit}", *means, spread(_told(each.ratio)), each.interval_of, each.verdict])
    columns = ["job", "of an epoch", "before", "after", "ratio (95 %)", "interval of", "verdict"]
    some = f", the {LISTED} that differ the most of {len(told)}" if len(told) > LISTED else ""
    return Grid(f"After, as multiples of before{some}", columns, rows)


def _differences(pairs: Sequence[tuple[Configuration, Configuration]]) -> list[Difference]:
    named = zip(titles([point for point, _ in pairs]), pairs, strict=True)
    told = [each for title, pair in named for metric in METRICS if (each := difference(title, metric, *pair))]
    return [*_together(told), *_held_to_all(told)]


def _held_to_all(told: Sequence[Difference]) -> list[Difference]:
    """Each with its rate among all that were judged by the same metric."""
    rates: dict[int, float] = {}
    for metric in METRICS:
        chances = {place: each.p_value for place, each in enumerate(told)
                   if each.metric == metric and each.p_value is not None}  # fmt: skip
        rates |= zip(chances, false_discovery_rates([*chances.values()]), strict=True)
    return [replace(each, q_value=rates.get(place)) for place, each in enumerate(told)]


def _values_of(
    metric: str, before: Configuration, after: Configuration, means: list[list[float]]
) -> tuple[str, list[list[float]]]:
    """What the interval is of, and the values of each point: its runs', or its epochs' where it ran once."""
    if all(len(values) > 1 for values in means):
        return RUNS, means
    both = zip((before, after), means, strict=True)
    found = [values if len(values) > 1 else _epochs(point, metric) for point, values in both]
    if any(len(values) < 2 for values in found):
        return ONCE, means
    return (EPOCHS if all(len(values) < 2 for values in means) else MIXED), found


def _epochs(point: Configuration, metric: str) -> list[float]:
    """The measured epochs of a point's one run; empty where any lacks the metric."""
    name = metric.replace("steady/", "epoch/")
    since = point.job.get("warmup_epochs", 0)
    values = [epoch.get(name, math.nan) for number, epoch in point.runs[0].epochs.items() if number >= since]
    return values if all(math.isfinite(value) and value > 0 for value in values) else []


def _same(found: Estimate) -> bool:
    return found.contains(1) and (found.low or 0) > 1 / (1 + NARROW) and (found.high or math.inf) < 1 + NARROW


def _told(found: Estimate) -> Estimate:
    """The ratio, without an interval that says nothing."""
    vague = found.low is not None and found.high is not None and found.high > WIDE * found.low
    return Estimate(found.value) if vague else found


def _together(told: Sequence[Difference]) -> Iterator[Difference]:
    """The geometric mean over points of each metric, where several have it: the point is the unit."""
    for metric in METRICS:
        logs = [math.log(each.ratio.value) for each in told if each.metric == metric]
        if len(logs) >= SEVERAL:
            over = mean(logs)
            bounds = [None if bound is None else math.exp(bound) for bound in (over.low, over.high)]
            found = Estimate(math.exp(over.value), *bounds)
            yield Difference(f"All {len(logs)} jobs", metric, found, _same(found), POINTS)
