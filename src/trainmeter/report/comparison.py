"""Two sweeps beside each other: before and after a change, board A and board B, each point with its counterpart.

Repeats are the unit of the intervals. Where a point ran once its epochs stand in for them, and that is said: they are
not independent, so that such an interval is narrower than that of repeats would be.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainmeter.report.costs import ENERGY, POWER, TIME, measured
from trainmeter.report.estimates import Estimate, mean, ratio
from trainmeter.report.pages import Page, Section
from trainmeter.report.points import UNTOLD, Point, no_energy, titles
from trainmeter.report.words import Grid, finite, number, spread, times

METRICS = {TIME: ("time", "s"), ENERGY: ("energy", "J"), POWER: ("power", "W")}
NARROW = 0.05
"""An interval that holds 1 and nothing that is off by this share or more shows that there is no difference."""
DIFFERS, SAME, UNTELLABLE = "differs", "no difference", "cannot tell"
RUNS, EPOCHS, ONCE, POINTS = "runs", "epochs", "one run each", "points"
SEVERAL = 3
"""From so many points on something is said of all together."""
WIDE = 100.0
"""An interval whose ends are this many times apart says nothing, and is not told."""
FEW = 3
"""So many values of what changed are told."""
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
    """Of what the interval is: `runs`, `epochs` where a point ran once, `points` over all; `one run each`: none."""
    before: float | None = None
    """In the mean, in the metric's unit; None over all points."""
    after: float | None = None

    @property
    def verdict(self) -> str:
        """`differs`, `no difference`, or `cannot tell`, as of one run by its epochs: the next run's are others."""
        if self.by == EPOCHS:
            return UNTELLABLE
        if self.same:
            return SAME
        return UNTELLABLE if self.ratio.low is None or self.ratio.spans(1) else DIFFERS


@dataclass(frozen=True)
class Matching:
    """Points of two sweeps that are the same but for what differs between the sweeps as a whole."""

    pairs: Sequence[tuple[Point, Point]]
    changed: Mapping[str, tuple[str, str]]
    """What differs as a whole: `device` -> (`nano`, `agx`), or a fact of the host: `git commit`."""
    unmatched: tuple[int, int]
    """How many points before and after have no counterpart, or more than one."""


def matching(before: Sequence[Point], after: Sequence[Point]) -> Matching:
    """Matches points by their jobs, less the keys that share no value between the two sweeps."""
    old_jobs, new_jobs = ([_flat(point) for point in side] for side in (before, after))
    apart = _apart(old_jobs, new_jobs)
    old, new = _alone(before, old_jobs, apart), _alone(after, new_jobs, apart)
    pairs = [(point, new[job]) for job, point in old.items() if job in new]
    old_facts, new_facts = ([_facts(point) for point in side] for side in (before, after))
    facts = {key: _values(old_facts, new_facts, key) for key in _apart(old_facts, new_facts)}
    changed = {**_spoken(old_jobs, new_jobs, apart), **facts}
    return Matching(pairs, changed, (len(before) - len(pairs), len(after) - len(pairs)))


def compare(before: Sequence[Point], after: Sequence[Point]) -> list[Difference]:
    """Time, energy and power of each point after beside that before, then of all together where there are several.

    A metric that either lacks is absent, as are energies that cover different things.
    """
    return _differences(matching(before, after).pairs)


def difference(title: str, metric: str, before: Point, after: Point) -> Difference | None:
    """One metric of two points; None where either lacks it, or their joules cannot be put side by side."""
    if metric in (ENERGY, POWER) and no_energy([before, after]):
        return None
    means = [measured(point, metric) for point in (before, after)]
    if not all(means):
        return None
    unit, (old, new) = _values_of(metric, before, after, means)
    found = ratio(new, old)
    return Difference(title, metric, found, _same(found), unit, *map(statistics.fmean, means))


def sentences(told: Sequence[Difference]) -> list[str]:
    """What the comparison says in short: over all points where there are several, else of the one."""
    together = [each for each in told if each.by == POINTS]
    said = [sentence(each) for each in together or told]
    apart = [each for each in told if each.by != POINTS]
    if together and (cleared := [each for each in apart if each.verdict == DIFFERS and each.metric == TIME]):
        most = max(cleared, key=lambda each: abs(math.log(each.ratio.value)))
        said.append(f"The most differs {most.title}: {times(most.ratio)} the time.")
    if any(each.by == EPOCHS for each in apart):
        said.append(
            "Where a job ran once, its interval is of its epochs, and says nothing of another run: repeat=0,1,2 does."
        )
    if any(each.by == ONCE for each in apart):
        said.append("One run of one epoch gives no interval: repeat=0,1,2 does.")
    return said


def sentence(told: Difference) -> str:
    """`batch 16: 0.850 times (0.830 to 0.870) the time.`"""
    what = METRICS[told.metric][0]
    if told.verdict == DIFFERS:
        return f"{told.title}: {times(told.ratio)} the {what}."
    if told.verdict == SAME:
        return f"{told.title}: no difference in {what}: {times(told.ratio)}."
    wide = "" if _told(told.ratio) == told.ratio else ", and may be anything else"
    return f"{told.title}: cannot tell whether the {what} differs: {times(_told(told.ratio))}{wide}."


def page(before: Sequence[Point], after: Sequence[Point], names: tuple[str, str] = ("before", "after")) -> Page:
    """All that two sweeps say beside each other; `names` are what they are called."""
    matched = matching(before, after)
    told = _differences(matched.pairs)
    lead = f"{names[1]} (after) beside {names[0]} (before)"
    if not matched.pairs:
        said = [f"{lead}: nothing to compare: no job of one is a job of the other but for what differs as a whole."]
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
        rows.append([each.title, f"{what} {unit}", *means, spread(_told(each.ratio)), each.by, each.verdict])
    columns = ["job", "of an epoch", "before", "after", "ratio (95 %)", "interval of", "verdict"]
    some = f", the {LISTED} that differ the most of {len(told)}" if len(told) > LISTED else ""
    return Grid(f"After, as multiples of before{some}", columns, rows)


def _differences(pairs: Sequence[tuple[Point, Point]]) -> list[Difference]:
    named = zip(titles([point for point, _ in pairs]), pairs, strict=True)
    told = [each for title, pair in named for metric in METRICS if (each := difference(title, metric, *pair))]
    return [*_together(told), *told]


def _values_of(metric: str, before: Point, after: Point, means: list[list[float]]) -> tuple[str, list[list[float]]]:
    """What the interval is of, and the values of each point: its runs', or its epochs' where it ran once."""
    if all(len(values) > 1 for values in means):
        return RUNS, means
    both = zip((before, after), means, strict=True)
    found = [values if len(values) > 1 else _epochs(point, metric) for point, values in both]
    return (EPOCHS, found) if all(len(values) > 1 for values in found) else (ONCE, means)


def _epochs(point: Point, metric: str) -> list[float]:
    """The measured epochs of a point's one run; empty where any lacks the metric."""
    name = metric.replace("steady/", "epoch/")
    values = [epoch.get(name, math.nan) for epoch in point.rows[0].epochs[point.job.get("warmup_epochs", 0) :]]
    return values if all(math.isfinite(value) and value > 0 for value in values) else []


def _same(found: Estimate) -> bool:
    return found.spans(1) and (found.low or 0) > 1 / (1 + NARROW) and (found.high or math.inf) < 1 + NARROW


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


def _flat(point: Point) -> dict[str, str]:
    """A job as dotted keys and texts, without what makes no point of its own."""
    return dict(_leaves({key: value for key, value in point.job.items() if key not in UNTOLD}))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(below, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _facts(point: Point) -> dict[str, str]:
    row = point.rows[0]
    return {**row.differences, **({"host": row.host} if row.host else {})}


def _apart(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys of which the two sides share no value; where one has no points there are none."""
    if not (before and after):
        return []
    keys = dict.fromkeys(key for each in (*before, *after) for key in each)
    return [key for key in keys if not {each.get(key) for each in before} & {each.get(key) for each in after}]


def _alone(points: Sequence[Point], jobs: Sequence[Mapping[str, str]], apart: Sequence[str]) -> dict[str, Point]:
    """Job less some keys -> the point, where it is the only one."""
    less = set(apart)
    kept = [json.dumps({key: value for key, value in job.items() if key not in less}, sort_keys=True) for job in jobs]
    groups: dict[str, list[Point]] = {}
    for job, point in zip(kept, points, strict=True):
        groups.setdefault(job, []).append(point)
    return {job: group[0] for job, group in groups.items() if len(group) == 1}


def _spoken(
    before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]], apart: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """What changed in a few words: a group of keys by its name, where that changed too."""
    named = {key.partition(".")[0] for key in apart if key.endswith(".name")}
    keys = [key for key in apart if key.partition(".")[0] not in named]
    return {key.removesuffix(".name"): _values(before, after, key)
            for key in (*(f"{top}.name" for top in sorted(named)), *keys)}  # fmt: skip


def _values(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]], key: str) -> tuple[str, str]:
    """What a key is on each side."""
    found = [list(dict.fromkeys(each.get(key, "absent") for each in side)) for side in (before, after)]
    told = [" / ".join([*values[:FEW], *(["..."] if len(values) > FEW else [])]) for values in found]
    return told[0], told[1]
