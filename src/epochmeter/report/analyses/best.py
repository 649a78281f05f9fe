"""The best configurations: the fastest, the one with the least energy, and trade-offs between both.

Time and energy are those per epoch, or up to the quality target if all configurations have the same one.

The trade-off is that of J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of
DNN Training, NSDI 2023: the minimum of eta x energy + (1 - eta) x maximum power x time. Maximum power is the highest
limit that the device accepts; if no run recorded it, the result states the power used instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import Cost, comparable, max_power, ranked_costs
from epochmeter.report.statistics import Estimate, indistinguishable_from_best, positive_means

Name = Literal["fastest", "least_energy", "tradeoff", "within_slowdown", "power_budget", "deadline"]
Values = Callable[[Cost], Sequence[float]]
"""Values that a criterion compares, one per run."""
LEAST_WIDENED = 3
"""Smallest number of configurations, not significantly different, for which the interval of the best is widened."""
TIMES, JOULES, TIME = attrgetter("times_s"), attrgetter("joules"), attrgetter("time_s")


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


@dataclass(frozen=True)
class Best:
    """The best configuration by one criterion.

    Attributes:
        cost: Its time and energy. Their intervals allow for the choice of the best among its ties.
        value: Its time in seconds, or its energy in joules; of the trade-off, its cost in joules.
        ties: Configurations that are not significantly different, and the relative increase of their value.
        scope: The parts of the machine that the compared energies cover; None if all configurations are compared.
        bound: The constraint: a multiple of the shortest time, watts or seconds; of the trade-off, eta.
        max_power: Maximum power of the trade-off in watts, and its source.
    """

    name: Name
    cost: Cost
    value: float
    ties: Sequence[tuple[Cost, float]]
    scope: str | None
    bound: float | None = None
    fastest: Cost | None = None
    max_power: tuple[float, str] | None = None

    @property
    def configuration(self) -> Configuration:
        return self.cost.configuration

    @property
    def not_significantly_different(self) -> list[Configuration]:
        return [cost.configuration for cost, _ in self.ties]


def find_best(configurations: Sequence[Configuration], criteria: Criteria = ANY) -> list[Best]:
    """Return the best configurations by time and, among those with comparable energy, by energy.

    A constraint that no configuration meets has no result (`unmet_constraints`).
    """
    ranked = ranked_costs(configurations)
    if not ranked:
        return []
    result = [_best("fastest", ranked, TIMES)]
    for scope, group in _scopes(ranked):
        fastest, limit = min(group, key=TIME), max_power(group)
        near = [cost for cost in group if cost.time_s <= criteria.max_slowdown * fastest.time_s]
        weighted = _weighted(criteria.eta, limit[0])
        result += [
            _best("least_energy", group, JOULES, scope),
            _best("tradeoff", group, weighted, scope, bound=criteria.eta, max_power=limit),
            _best("within_slowdown", near, JOULES, scope, bound=criteria.max_slowdown, fastest=fastest),
        ]
        for name, bound, limited, values in _constraints(criteria):
            if allowed := [cost for cost in group if limited(cost) <= bound]:
                result.append(_best(name, allowed, values, scope, bound=bound))
    return _widened(result, ranked)


def unmet_constraints(configurations: Sequence[Configuration], criteria: Criteria) -> list[Best]:
    """Return the constraints that no configuration meets, each with the nearest configuration."""
    return [
        Best(name, nearest, limited(nearest), (), scope, bound)
        for scope, group in _scopes(ranked_costs(configurations))
        for name, bound, limited, _ in _constraints(criteria)
        if limited(nearest := min(group, key=limited)) > bound
    ]


def _constraints(criteria: Criteria) -> Iterator[tuple[Name, float, Callable[[Cost], float], Values]]:
    """Yield each constraint: its name and bound, the limited quantity, and the values to minimize within the bound."""
    if criteria.power_budget_w:
        yield "power_budget", criteria.power_budget_w, _power, TIMES
    if criteria.deadline_s:
        yield "deadline", criteria.deadline_s, TIME, JOULES


def _scopes(ranked: Sequence[Cost]) -> list[tuple[str | None, list[Cost]]]:
    """Return the configurations with comparable energy and its scope; None if the energy of all is comparable."""
    groups = comparable(ranked)
    return [(None if len(group) == len(ranked) else covers, group) for covers, group in groups.items()]


def _best(name: Name, candidates: Sequence[Cost], values: Values, scope: str | None = None, **more: Any) -> Best:
    """Return the configuration with the least mean, and those that are not significantly different from it."""

    def order(cost: Cost) -> tuple[float, ...]:
        return statistics.fmean(values(cost)), cost.time_s, math.inf if cost.energy_j is None else cost.energy_j

    best = min(candidates, key=order)
    value = order(best)[0]
    is_tie = indistinguishable_from_best(
        [values(cost) for cost in candidates],
        candidates.index(best),
        [[run.round for run in cost.configuration.runs] for cost in candidates],
        [[run.started for run in cost.configuration.runs] for cost in candidates],
    )
    tied = [cost for cost, tie in zip(candidates, is_tie, strict=True) if tie and cost is not best]
    return Best(name, best, value, [(cost, order(cost)[0] / value - 1) for cost in tied], scope, **more)


def _widened(choices: list[Best], ranked: Sequence[Cost]) -> list[Best]:
    """Return the choices with wider intervals, as the best of several equal configurations seems better than it is."""
    counts = dict.fromkeys((cost.configuration for cost in ranked), 1)
    for choice in choices:
        counts[choice.configuration] = max(counts[choice.configuration], 1 + len(choice.ties))
    if max(counts.values()) < LEAST_WIDENED:
        return choices

    def means(values: Values) -> dict[Configuration, Estimate]:
        samples = {cost.configuration: values(cost) for cost in ranked if values(cost)}
        return dict(zip(samples, positive_means([*samples.values()], [counts[key] for key in samples]), strict=True))

    times, energies = means(TIMES), means(JOULES)
    costs = {cost.configuration: replace(cost, time=times[cost.configuration], energy=energies.get(cost.configuration))
             for cost in (choice.cost for choice in choices)}  # fmt: skip
    return [replace(choice, cost=costs[choice.configuration]) for choice in choices]


def _weighted(eta: float, max_power_w: float) -> Values:
    """Return the cost of the trade-off."""
    return lambda cost: [
        eta * energy_j + (1 - eta) * max_power_w * time_s
        for energy_j, time_s in zip(cost.joules, cost.times_s, strict=True)
    ]


def _power(cost: Cost) -> float:
    return math.inf if cost.power_w is None else cost.power_w
