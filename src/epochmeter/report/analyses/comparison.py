"""Compare two sweeps, such as before and after a change: each configuration with its counterpart.

Counterparts are equal and on the same host, apart from keys that changed in all configurations. Verdicts control the
false discovery rate per metric; intervals are not corrected.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from epochmeter.config.schema import DEVICE_SETTINGS
from epochmeter.config.validation import flatten, format_value
from epochmeter.report.analyses.ratios import Pairs
from epochmeter.report.runs.configuration import Configuration, NoEnergy, no_energy
from epochmeter.report.runs.costs import ENERGY, POWER, TIME, positive_values
from epochmeter.report.runs.run import NON_CONFIG_KEYS
from epochmeter.report.statistics import ALPHA, Estimate, false_discovery_rates, geometric_mean, mean, pairwise_ratios

METRICS, EQUIVALENCE = (TIME, ENERGY, POWER), 0.05
"""Two values are equivalent if the interval of their ratio contains 1 and is within this relative difference."""
DIFFERS, NO_DIFFERENCE, MIN_OVERALL = "differs", "no difference", 3
"""Number of configurations from which on there is also an overall comparison."""

Leaves = Mapping[str, str]
"""A configuration or a platform as dotted keys and texts."""
Changes = Mapping[str, tuple[Sequence[str], Sequence[str]]]
"""Key that changed in all configurations (`device`, or of the platform: `git commit`) -> values before and after."""


@dataclass(frozen=True)
class Difference:
    """A metric of a configuration (without a title: of all of them) after, as a multiple of that before.

    Attributes:
        basis: Source of the interval: `runs`, or `configurations`; `one each`: no interval, as both ran once.
        before: Geometric mean before, in the metric's unit; None over all configurations. `ratio` is that of `after`
            to it.
        counts: Runs before and after; over all configurations, their number.
        p_value: Of no difference; None without repeats. `q_value` is the false discovery rate at which it differs.
    """

    title: str
    metric: str
    ratio: Estimate
    basis: str = "runs"
    before: float | None = None
    after: float | None = None
    counts: tuple[int, int] = (0, 0)
    p_value: float | None = None
    q_value: float | None = None

    @property
    def differs_alone(self) -> bool:
        return self.ratio.low is not None and not self.ratio.contains(1)

    @property
    def verdict(self) -> str:
        """`differs`, `no difference` (the interval excludes any that matters) or `inconclusive`."""
        low, high = self.ratio.low or 0.0, self.ratio.high or math.inf
        if 1 / (1 + EQUIVALENCE) < low <= 1 <= high < 1 + EQUIVALENCE:
            return NO_DIFFERENCE
        by_chance = self.q_value is not None and self.q_value > ALPHA
        return DIFFERS if self.differs_alone and not by_chance else "inconclusive"


@dataclass(frozen=True)
class Comparison:
    """Two sweeps compared; `unmatched` are the numbers of configurations without exactly one counterpart."""

    names: tuple[str, str]
    pairs: Pairs
    changed: Changes
    unmatched: tuple[int, int]
    overall: Sequence[Difference]
    differences: Sequence[Difference]
    no_energy: NoEnergy | None

    @property
    def significant_times(self) -> list[Difference]:
        return [
            difference for difference in self.by_size if difference.metric == TIME and difference.verdict == DIFFERS
        ]

    @property
    def tested(self) -> int:
        """Number of configurations among which the false discovery rate is controlled."""
        return max(
            Counter(difference.metric for difference in self.differences if difference.p_value is not None).values(),
            default=0,
        )

    @property
    def by_size(self) -> list[Difference]:
        return sorted(self.differences, key=lambda difference: -round(abs(math.log(difference.ratio.value)), 9))

    @property
    def values(self) -> dict[str, object]:
        differences = [
            {**asdict(difference), "verdict": difference.verdict} for difference in (*self.overall, *self.differences)
        ]
        return {"before": self.names[0], "after": self.names[1], "changed": self.changed,
                "unmatched": self.unmatched, "differences": differences}  # fmt: skip


def analyze(
    before: Sequence[Configuration], after: Sequence[Configuration], names: tuple[str, str] = ("before", "after")
) -> Comparison:
    """Compare time, energy and power per epoch of each configuration, then of all overall if there are several.

    Metrics that either side lacks are absent, as are energies that cover different parts of the machine.
    """
    pairs, changed = _matching(before, after)
    by_metric, overall = [_differences(metric, pairs) for metric in METRICS], list[Difference]()
    for metric, by_title in zip(METRICS, by_metric, strict=True):
        if len(by_title) >= MIN_OVERALL:
            # The configuration is the unit.
            ratio = mean([math.log(difference.ratio.value) for difference in by_title.values()]).map(math.exp)
            overall.append(Difference("", metric, ratio, "configurations", counts=(len(by_title), len(by_title))))
    differences = [by_title[old.title] for old, _ in pairs for by_title in by_metric if old.title in by_title]
    unmatched = len(before) - len(pairs), len(after) - len(pairs)
    gap = no_energy(chain.from_iterable(pairs), ENERGY) if any(no_energy(pair, ENERGY) for pair in pairs) else None
    return Comparison(names, pairs, changed, unmatched, overall, differences, gap)


def _matching(before: Sequence[Configuration], after: Sequence[Configuration]) -> tuple[Pairs, Changes]:
    """Match configurations by all keys of which the two sweeps share any value; return the other keys too."""
    old_jobs, new_jobs = ([leaves_of(_applied(point), point.host) for point in side] for side in (before, after))
    old_platforms, new_platforms = ([point.runs[0].platform for point in side] for side in (before, after))
    changed = changed_keys(old_jobs, new_jobs)
    old, new = _unique(before, old_jobs, changed), _unique(after, new_jobs, changed)
    pairs = [(point, new[job]) for job, point in old.items() if job in new]
    return pairs, {**without_parts(changed), **changed_keys(old_platforms, new_platforms)}


def _applied(point: Configuration) -> Mapping[str, Any]:
    """Return a configuration as it was measured: a rehearsal applies no device settings."""
    is_rehearsal = any(run.rehearsal for run in point.runs)
    return {key: None if is_rehearsal and key in DEVICE_SETTINGS else value for key, value in point.job.items()}


def _differences(metric: str, pairs: Pairs) -> dict[str, Difference]:
    """Return one metric's differences; absent where either side lacks it, or the energies are not comparable."""
    measured = {}
    for before, after in pairs:
        values = positive_values(before, metric), positive_values(after, metric)
        if all(values) and (metric == TIME or not no_energy([before, after])):
            measured[before.title] = values
    ratios = pairwise_ratios([*measured.values()])
    rates = iter(false_discovery_rates([p_value for _, p_value in ratios if p_value is not None]))
    differences = {}
    for (title, (old, new)), (ratio, p_value) in zip(measured.items(), ratios, strict=True):
        basis, q_value = ("one each", None) if p_value is None else ("runs", next(rates))
        means, counts = (geometric_mean(old), geometric_mean(new)), (len(old), len(new))
        differences[title] = Difference(title, metric, ratio, basis, *means, counts, p_value, q_value)
    return differences


def leaves_of(job: Mapping[str, Any], host: str | None = None) -> Leaves:
    """Return the configuration of a run, and its host, as dotted keys and texts."""
    kept = {key: value for key, value in job.items() if key not in NON_CONFIG_KEYS}
    leaves = flatten({"host": host, **kept} if host else kept)
    return {key: format_value(value) for key, value in leaves}


def without_parts(changed: Changes) -> Changes:
    """Return changes of a configuration; a group of keys whose name changed is one change."""
    groups = {key.partition(".")[0] for key in changed if key.endswith(".name")}
    return {
        key.removesuffix(".name"): values
        for key, values in changed.items()
        if key.partition(".")[0] not in groups or key.endswith(".name")
    }


def changed_keys(before: Sequence[Leaves], after: Sequence[Leaves]) -> Changes:
    """Return the keys of which the two sides share no value, with their values; none if a side is empty."""
    changed = dict[str, tuple[Sequence[str], Sequence[str]]]()
    for key in dict.fromkeys(key for leaves in (*before, *after) for key in leaves):
        old, new = (list(dict.fromkeys(leaves.get(key, "absent") for leaves in side)) for side in (before, after))
        if old and new and not {*old} & {*new}:
            changed[key] = (old, new)
    return changed


def _unique(points: Sequence[Configuration], jobs: Sequence[Leaves], ignored: Changes) -> dict[str, Configuration]:
    """Return the configurations that are unique without the ignored keys, by their other keys."""
    kept = [json.dumps({key: job[key] for key in job if key not in ignored}, sort_keys=True) for job in jobs]
    counts = Counter(kept)
    return {job: point for job, point in zip(kept, points, strict=True) if counts[job] == 1}
