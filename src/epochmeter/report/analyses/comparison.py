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

from epochmeter.report.analyses.matching import Matching, matching
from epochmeter.report.runs.configuration import Configuration, no_energy
from epochmeter.report.runs.costs import ENERGY, POWER, TIME, positive_values
from epochmeter.report.statistics import ALPHA, Estimate, false_discovery_rates, mean, pairwise_ratios

METRICS = (TIME, ENERGY, POWER)
EQUIVALENCE = 0.05
"""Two values are equivalent if the interval of their ratio contains 1 and is within this relative difference."""
DIFFERS, SAME, INCONCLUSIVE = "differs", "no difference", "inconclusive"
RUNS, ONCE, CONFIGURATIONS = "runs", "one run each", "configurations"
MIN_OVERALL = 3
"""Number of configurations from which on there is also an overall comparison."""


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


@dataclass(frozen=True)
class Comparison:
    """Two sweeps compared.

    Attributes:
        names: Names of the sweeps, before and after.
        matched: The configurations in both.
        overall: Geometric mean over all configurations by metric, if there are several; the configuration is the unit.
        differences: All other differences.
        energy_reason: Why not all energies can be compared; None if they can.
    """

    names: tuple[str, str]
    matched: Matching
    overall: Sequence[Difference]
    differences: Sequence[Difference]
    energy_reason: str | None

    @property
    def significant_times(self) -> list[Difference]:
        """The times that differ, the largest difference first."""
        return [entry for entry in self.by_size if entry.metric == TIME and entry.verdict == DIFFERS]

    @property
    def tested(self) -> int:
        """Number of configurations among which the false discovery rate is controlled."""
        tested = [entry.metric for entry in self.differences if entry.p_value is not None]
        return max(map(tested.count, METRICS))

    @property
    def by_size(self) -> list[Difference]:
        """The differences, the largest first."""
        return sorted(self.differences, key=lambda entry: -round(abs(math.log(entry.ratio.value)), 9))

    @property
    def values(self) -> dict[str, object]:
        """All numbers, as the JSON file has them."""
        differences = [{**asdict(entry), "verdict": entry.verdict} for entry in (*self.overall, *self.differences)]
        return {"before": self.names[0], "after": self.names[1], "changed": self.matched.changed,
                "unmatched": self.matched.unmatched, "differences": differences}  # fmt: skip


def analyze(
    before: Sequence[Configuration], after: Sequence[Configuration], names: tuple[str, str] = ("before", "after")
) -> Comparison:
    """Compare time, energy and power per epoch of each configuration, then of all overall if there are several.

    Metrics that either side lacks are absent, as are energies that cover different parts of the machine.
    """
    matched = matching(before, after)
    by_metric = [_differences_of(metric, matched.pairs) for metric in METRICS]
    order = {old.title: index for index, (old, _) in enumerate(matched.pairs)}
    return Comparison(
        names,
        matched,
        overall=list(chain.from_iterable(map(_overall, by_metric))),
        differences=sorted(chain.from_iterable(by_metric), key=lambda difference: order[difference.title]),
        energy_reason=no_energy(list(chain.from_iterable(matched.pairs))),
    )


def _differences_of(metric: str, pairs: Sequence[tuple[Configuration, Configuration]]) -> list[Difference]:
    """Return one metric's differences; absent where either side lacks it, or the energies are not comparable."""
    values = {
        before.title: (positive_values(before, metric), positive_values(after, metric))
        for before, after in pairs
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


def _overall(differences: Sequence[Difference]) -> Iterator[Difference]:
    """Yield the geometric mean over configurations, if there are several: the configuration is the unit."""
    logs = [math.log(difference.ratio.value) for difference in differences]
    if len(logs) >= MIN_OVERALL:
        ratio = mean(logs).exp()
        title = f"All {len(logs)} configurations"
        yield Difference(title, differences[0].metric, ratio, _is_equivalent(ratio), CONFIGURATIONS)
