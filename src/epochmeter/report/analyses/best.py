"""The best configurations by time and energy, per epoch or up to the quality target if all have the same target.

The trade-off is that of J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of
DNN Training, NSDI 2023: the minimum of eta x energy + (1 - eta) x maximum power x time. Maximum power is the highest
limit that the device accepts; if no run recorded it, the result states the power used instead.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from epochmeter.report.analyses.ratios import Ratios
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import Cost, comparable, max_power
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import (
    MIN_EFFECT,
    Estimate,
    geometric_mean,
    indistinguishable_from_best,
    positive_means,
    tukey_critical_value,
)

Name = Literal["fastest", "least_energy", "tradeoff", "within_slowdown", "power_budget", "deadline"]
Values = Callable[[Cost], Sequence[float]]
"""Values that a criterion compares, one per run."""
LEAST_WIDENED = 3
"""Smallest number of configurations, not significantly different, for which the interval of the best is widened."""
TIMES, JOULES, TIME, ENERGY = map(attrgetter, ("times_s", "joules", "time_s", "energy_j"))


@dataclass(frozen=True)
class Criteria:
    """Criteria of the best configurations, and the baseline: keys of `report`, explained in conf/report.yaml."""

    eta: float = 0.5
    max_slowdown: float = 1.1
    power_budget_w: float | None = None
    deadline_s: float | None = None
    baseline: Mapping[str, Any] | str | None = None
    predict: bool = False
    next_runs: int = 3


ANY = Criteria()


class TieBreak(NamedTuple):
    """What would show the difference between a best configuration and the largest of its ties.

    Attributes:
        difference: Relative increase of the tie's value.
        is_equal: Whether all ties differ by less than `MIN_EFFECT`, which is too little to matter.
        effect: Relative difference that the repeats would show: the observed one, but at least `MIN_EFFECT`.
        repeats: Estimated runs of each configuration that show it with a probability of 80 %. None: not known, or more
            than 200.
    """

    difference: float
    is_equal: bool
    effect: float
    repeats: int | None


@dataclass(frozen=True)
class Best:
    """The best configuration by one criterion.

    Attributes:
        cost: Its time and energy. Their intervals allow for the choice of the best among its ties.
        value: Its time in seconds, or its energy in joules; of the trade-off, its cost in joules.
        ties: Configurations that are not significantly different, and the relative increase of their value.
        tie_break: What would show their difference; None without ties that were repeated.
        lead: The next best configuration, and its value as a multiple of the best one's; None if there are ties.
        count: Number of configurations with comparable values, including those that the constraint excludes.
        scope: The parts of the machine that the compared energies cover; None if all configurations are compared.
        bound: The constraint: a multiple of the shortest time, watts or seconds; of the trade-off, eta.
        max_power: Maximum power of the trade-off in watts, and whether it is a power limit.
        is_met: Whether any configuration meets the constraint; else `cost` is the nearest to it.
    """

    name: Name
    cost: Cost
    value: float
    ties: Sequence[tuple[Cost, float]]
    count: int
    scope: str | None = None
    bound: float | None = None
    fastest: Cost | None = None
    max_power: tuple[float, bool] | None = None
    is_met: bool = True
    tie_break: TieBreak | None = None
    lead: tuple[Cost, Estimate] | None = None

    @property
    def configuration(self) -> Configuration:
        return self.cost.configuration


class Doubt(NamedTuple):
    """Why no best configuration is established: the number of affected runs, of a total."""

    kind: Literal["rehearsal", "single", "disturbed", "reused", "diverged"]
    affected: int
    total: int

    @property
    def is_decisive(self) -> bool:
        """Whether it leaves nothing to compare: all runs were disturbed."""
        return self.kind == "disturbed" and self.affected == self.total


def find_best(ranked: Sequence[Cost], criteria: Criteria = ANY) -> list[Best]:
    """Return the best configurations by time and, among those with comparable energy, by energy; unmet ones last."""
    result, unmet = [_best("fastest", ranked, TIMES)] if ranked else [], list[Best]()
    for covers, group in comparable(ranked).items():
        scope = None if len(group) == len(ranked) else covers
        fastest, limit = min(group, key=TIME), max_power(group)
        near = [cost for cost in group if cost.time_s <= criteria.max_slowdown * fastest.time_s]
        if len(group) > 1 or not scope:  # else there is nothing to compare its energy with
            result += [
                _best("least_energy", group, JOULES, scope),
                _best("tradeoff", group, _weighted(criteria.eta, limit[0]), scope, bound=criteria.eta, max_power=limit),
                _best("within_slowdown", group, JOULES, scope, near, bound=criteria.max_slowdown, fastest=fastest),
            ]
        constraints: list[tuple[Name, float | None, Callable[[Cost], float], Values]] = [
            ("power_budget", criteria.power_budget_w, lambda cost: cost.power_w or math.inf, TIMES),
            ("deadline", criteria.deadline_s, TIME, JOULES),
        ]
        for name, bound, limited, values in constraints:
            allowed = [cost for cost in group if bound and limited(cost) <= bound]
            if allowed:
                result.append(_best(name, group, values, scope, allowed, bound=bound))
            elif bound:
                nearest = min(group, key=limited)
                unmet.append(Best(name, nearest, limited(nearest), (), len(group), scope, bound, is_met=False))
    return [*_widened(result, ranked), *unmet]


def find_doubts(ranked: Sequence[Cost]) -> list[Doubt]:
    """Return why no best, or no result, is established.

    There is no doubt about repeated, undisturbed runs of what was requested, nor about the single run of a command. A
    configuration that trained no model is a doubtful best one.
    """
    runs = [run for cost in ranked for run in cost.configuration.runs]
    has_repeats = len(runs) > len(ranked)  # of any configuration: they show how much the others vary
    doubts = [
        Doubt("rehearsal", sum(bool(run.rehearsal) for run in runs), len(runs)),
        Doubt("single", 0 if has_repeats or len(ranked) < 2 else len(runs), len(runs)),
        Doubt("disturbed", sum(bool(run.disturbed) for run in runs), len(runs)),
        Doubt("reused", sum(bool(run.reused) for run in runs) if len(_sweeps(ranked)) > 1 else 0, len(runs)),
        Doubt("diverged", sum(bool(run.diverged) for run in runs) if _best_diverged(ranked) else 0, len(runs)),
    ]
    return [doubt for doubt in doubts if doubt.affected]


def _best_diverged(ranked: Sequence[Cost]) -> bool:
    """Return whether a run of the fastest, or of the configuration with the least energy, has diverged."""
    metered = [cost for cost in ranked if cost.energy_j is not None]
    best = [*([min(ranked, key=TIME)] if ranked else []), *([min(metered, key=ENERGY)] if metered else [])]
    return any(run.diverged for cost in best for run in cost.configuration.runs)


def reused_runs(choices: Sequence[Best], ranked: Sequence[Cost]) -> list[Run]:
    """Return the reused runs of the best configurations; none if one sweep measured all ranked runs."""
    runs = dict.fromkeys(run for choice in choices for run in choice.configuration.runs if run.reused)
    return list(runs) if len(_sweeps(ranked)) > 1 else []


def _sweeps(ranked: Sequence[Cost]) -> set[str]:
    """Return the names of the sweeps that measured some configurations."""
    return {run.name.partition("/")[0] for cost in ranked for run in cost.configuration.runs}


def _best(
    name: Name, group: Sequence[Cost], values: Values, scope: str | None = None, allowed: Sequence[Cost] = (),
    **more: Any,
) -> Best:  # fmt: skip
    """Return the configuration with the least geometric mean, of those `allowed` (default: all), and its ties."""
    candidates = allowed or group

    def order(cost: Cost) -> tuple[float, ...]:
        return geometric_mean(values(cost)), cost.time_s, math.inf if cost.energy_j is None else cost.energy_j

    best = min(candidates, key=order)
    value = order(best)[0]
    ratios = indistinguishable_from_best(
        [values(cost) for cost in candidates],
        candidates.index(best),
        [[run.round for run in cost.configuration.runs] for cost in candidates],
        [[run.started for run in cost.configuration.runs] for cost in candidates],
    )
    ties = [(candidates[place], ratio - 1) for place, ratio in ratios.items() if candidates[place] is not best]
    ratios_of = Ratios({cost.configuration: values(cost) for cost in candidates})
    others = sorted((cost for cost in candidates if cost is not best), key=order)
    lead = ratios_of.between(others[0].configuration, best.configuration) if others and not ties else None
    return Best(
        name, best, value, ties, len(group), scope,
        tie_break=_tie_break(best, ties, ratios_of), lead=(others[0], lead) if lead else None, **more,
    )  # fmt: skip


def _tie_break(best: Cost, ties: Sequence[tuple[Cost, float]], ratios: Ratios) -> TieBreak | None:
    """Return what would show the difference between the best and the largest of its ties, by the variance so far."""
    if not ties:
        return None
    largest, difference = max(ties, key=lambda tie: tie[1])
    ends, smallest = (largest.configuration, best.configuration), 1 + MIN_EFFECT
    ratio = ratios.between(*ends)
    if ratio is None or ratio.low is None:  # single runs show no variance
        return None
    every = (ratios.between(tie.configuration, best.configuration) for tie, _ in ties)
    is_equal = difference < MIN_EFFECT and all(each and each.is_within(1 / smallest, smallest) for each in every)
    bound = 1.0 if difference >= MIN_EFFECT else (1 + difference) / smallest
    repeats = ratios.repeats(*ends, lambda dof: tukey_critical_value(len(ratios.places), dof), bound)
    return TieBreak(difference, is_equal, max(difference, MIN_EFFECT), None if is_equal else repeats)


def _widened(choices: list[Best], ranked: Sequence[Cost]) -> list[Best]:
    """Return the choices with wider intervals, as the best of several equal configurations seems better than it is."""
    counts = dict.fromkeys((cost.configuration for cost in ranked), 1)
    for choice in choices:
        counts[choice.configuration] = max(counts[choice.configuration], 1 + len(choice.ties))
    if max(counts.values(), default=0) < LEAST_WIDENED:
        return choices
    times, energies = (
        positive_means({cost.configuration: values(cost) for cost in ranked if values(cost)}, counts)
        for values in (TIMES, JOULES)
    )
    costs = [
        replace(choice.cost, time=times[choice.configuration], energy=energies.get(choice.configuration))
        for choice in choices
    ]
    return [replace(choice, cost=cost) for choice, cost in zip(choices, costs, strict=True)]


def _weighted(eta: float, max_power_w: float) -> Values:
    return lambda cost: [
        eta * energy_j + (1 - eta) * max_power_w * time_s
        for energy_j, time_s in zip(cost.joules, cost.times_s, strict=True)
    ]
