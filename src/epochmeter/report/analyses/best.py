"""The best configurations: the fastest, the one with the least energy, and trade-offs between both.

Time and energy are those per epoch, or up to the quality target if all configurations have the same one.

The trade-off is that of J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of
DNN Training, NSDI 2023: the minimum of eta x energy + (1 - eta) x maximum power x time. Maximum power is the highest
limit that the device takes; if no run recorded it, the sentence names what is used instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from epochmeter.report.formatting import interval, number, plural, quantity
from epochmeter.report.runs.configuration import Configuration, no_energy
from epochmeter.report.runs.costs import (
    PER_EPOCH,
    TIME_TO_TARGET,
    Cost,
    comparable,
    costs,
    max_power,
    ranked_costs,
)
from epochmeter.report.statistics import indistinguishable_from_best
from epochmeter.results.pareto import is_pareto_front

MAX_NAMED = 3
"""Configurations that are named in a sentence; further ones are counted."""
Name = Literal["fastest", "least_energy", "tradeoff", "within_slowdown", "power_budget", "deadline"]


@dataclass(frozen=True)
class Best:
    """The best configuration by one criterion.

    Attributes:
        value: Its time in seconds, or its energy in joules; of the trade-off, its cost in joules.
        sentence: The result as text.
        not_significantly_different: Configurations that repeats do not distinguish from it, or that are equal.
    """

    name: Name
    configuration: Configuration
    value: float
    sentence: str
    not_significantly_different: Sequence[Configuration] = ()


def find_best(
    configurations: Sequence[Configuration],
    eta: float = 0.5,
    max_slowdown: float = 1.1,
    power_budget_w: float | None = None,
    deadline_s: float | None = None,
) -> list[Best]:
    """Return the best configurations by time and energy.

    Energy is compared within each group of configurations whose energy covers the same parts of the machine. Without
    any energy only the fastest is returned. A constraint that no configuration meets has no result
    (`unmet_constraints`).

    Args:
        configurations: The configurations.
        eta: Weight of energy in the trade-off, 0 to 1.
        max_slowdown: Maximum time of the frugal choice, as a multiple of the shortest.
        power_budget_w: Maximum mean power, if any.
        deadline_s: Maximum time, if any.

    Raises:
        ValueError: A constraint is out of range.
    """
    check(eta, max_slowdown, power_budget_w, deadline_s)
    ranked = ranked_costs(configurations)
    if not ranked:
        return []
    per = ranked[0].per
    result = [_fastest(ranked)]
    groups = comparable(ranked)
    for covers, group in groups.items():
        of = f" ({covers})" if len(groups) > 1 else " (of those with energy)" if len(group) < len(ranked) else ""
        result += [_least_energy(group, of), _tradeoff(group, eta, of), _within_slowdown(group, max_slowdown, of)]
        if power_budget_w and (allowed := [cost for cost in group if _power(cost) <= power_budget_w]):
            best, ties = _best(allowed, _times)
            lead = f"Fastest at a mean power of {power_budget_w:g} W or less{of}: {best.title}"
            text = f"{lead}: {_time_text(best)} {per}, {quantity(_power(best), 'W')}.{also_as_good(ties, best, _times)}"
            result.append(Best("power_budget", best.configuration, best.time_s, text, _configurations(ties)))
        if deadline_s and (allowed := [cost for cost in group if cost.time_s <= deadline_s]):
            best, ties = _best(allowed, _joules)
            lead = f"Least energy within {deadline_s:g} s {per}{of}: {best.title}"
            text = f"{lead}: {_energy_text(best)} {per}, {_time_text(best)}.{also_as_good(ties, best, _joules)}"
            result.append(Best("deadline", best.configuration, _energy(best), text, _configurations(ties)))
    return result


def pareto(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return the Pareto front of time and energy per epoch, among configurations with comparable energy."""
    chosen: set[int] = set()
    for group in comparable(costs(configurations)).values():
        is_on_front = is_pareto_front((_energy(cost), cost.time_s) for cost in group)
        chosen.update(id(cost.configuration) for cost, kept in zip(group, is_on_front, strict=True) if kept)
    return [configuration for configuration in configurations if id(configuration) in chosen]


def unmet_constraints(
    configurations: Sequence[Configuration], power_budget_w: float | None = None, deadline_s: float | None = None
) -> list[str]:
    """Return why configurations are not ranked, and why constraints have no result, as sentences."""
    ranked = ranked_costs(configurations)
    ranked_ids = {id(cost.configuration) for cost in ranked}
    texts = []
    if missing := [configuration for configuration in configurations if id(configuration) not in ranked_ids]:
        texts.append(_not_ranked(missing, len(configurations), ranked[0].per if ranked else PER_EPOCH))
    if not ranked:
        return texts
    per, groups = ranked[0].per, comparable(ranked)
    if why := no_energy([cost.configuration for cost in ranked]):
        some = "Not all energies can be compared" if groups else "No result for energy"
        texts.append(f"{some}: {why.rstrip('.')}.")
    for covers, group in groups.items():
        of = f" ({covers})" if len(groups) > 1 else ""
        frugal, fast = min(group, key=_power), min(group, key=lambda cost: cost.time_s)
        if power_budget_w and _power(frugal) > power_budget_w:
            least = f"the lowest is {quantity(_power(frugal), 'W')}, {frugal.title}"
            texts.append(f"No configuration{of} needs {power_budget_w:g} W or less: {least}.")
        if deadline_s and fast.time_s > deadline_s:
            least = f"the fastest needs {quantity(fast.time_s, 's')}, {fast.title}"
            texts.append(f"No configuration{of} needs {deadline_s:g} s or less {per}: {least}.")
    return texts


def check(eta: float, max_slowdown: float, power_budget_w: float | None, deadline_s: float | None) -> None:
    """Raise ValueError if a constraint is out of range."""
    if not 0 <= eta <= 1:
        raise ValueError(f"report.eta={eta}: give a weight from 0 (time only) to 1 (energy only)")
    if not 1 <= max_slowdown < math.inf:
        raise ValueError(f"report.max_slowdown={max_slowdown}: give a multiple of the fastest's time, 1 or more")
    for name, bound, unit in (("power_budget", power_budget_w, "watts"), ("deadline", deadline_s, "seconds")):
        if bound is not None and not 0 < bound < math.inf:
            raise ValueError(f"report.{name}={bound}: give {unit} above 0, or null")


def also_as_good(ties: Sequence[Cost], best: Cost, values: Callable[[Cost], Sequence[float]]) -> str:
    """Return a sentence on the configurations that are not significantly different from the best; empty without any.

    Each comes with how far it is from the best, and its repeats: a large difference needs more of them.
    """
    if not ties:
        return ""
    least = statistics.fmean(values(best))
    texts = []
    for cost in ties[:MAX_NAMED]:
        runs = plural(len(values(cost)), "run")
        texts.append(f"{cost.title} ({100 * (statistics.fmean(values(cost)) / least - 1):+.1f} %, {runs})")
    more = [f"{len(ties) - MAX_NAMED} more"] if len(ties) > MAX_NAMED else []
    return f" Not significantly different: {'; '.join([*texts, *more])}."


def _fastest(ranked: Sequence[Cost]) -> Best:
    best, ties = _best(ranked, _times)
    energy = f", {_energy_text(best)}" if best.joules else ""
    text = f"Fastest: {best.title}: {_time_text(best)} {best.per}{energy}.{also_as_good(ties, best, _times)}"
    return Best("fastest", best.configuration, best.time_s, text, _configurations(ties))


def _least_energy(group: Sequence[Cost], of: str) -> Best:
    best, ties = _best(group, _joules)
    lead = f"Least energy{of}: {best.title}"
    text = f"{lead}: {_energy_text(best)} {best.per}, {_time_text(best)}.{also_as_good(ties, best, _joules)}"
    return Best("least_energy", best.configuration, _energy(best), text, _configurations(ties))


def _tradeoff(group: Sequence[Cost], eta: float, of: str) -> Best:
    most_w, source = max_power(group)

    def cost_j(cost: Cost) -> list[float]:
        return [eta * energy_j + (1 - eta) * most_w * time_s
                for energy_j, time_s in zip(cost.joules, cost.times_s, strict=True)]  # fmt: skip

    best, ties = _best(group, cost_j)
    value = statistics.fmean(cost_j(best))
    formula = f"{eta:g} x energy + {round(1 - eta, 10):g} x {number(most_w)} W x time"
    text = (
        f"Best trade-off{of}: {best.title}: {_time_text(best)} and {_energy_text(best)} {best.per}, the minimum of "
        f"{formula}: {quantity(value, 'J')}. {number(most_w)} W is {source}.{also_as_good(ties, best, cost_j)}"
    )
    return Best("tradeoff", best.configuration, value, text, _configurations(ties))


def _within_slowdown(group: Sequence[Cost], max_slowdown: float, of: str) -> Best:
    fastest, _ = _best(group, _times)
    best, ties = _best([cost for cost in group if cost.time_s <= max_slowdown * fastest.time_s], _joules)
    lead = f"Least energy within {max_slowdown:g} times the shortest time{of}: {best.title}"
    if best is fastest:
        text = f"{lead}, the fastest itself: {_energy_text(best)} {best.per}, {_time_text(best)}."
    else:
        saved = 100 * (1 - _energy(best) / _energy(fastest))
        longer = 100 * (best.time_s / fastest.time_s - 1)
        text = f"{lead}: {_energy_text(best)} {best.per}, {number(saved, 10)} % less energy and {number(longer, 10)} % "
        text += "more time than the fastest."
    return Best(
        "within_slowdown",
        best.configuration,
        _energy(best),
        text + also_as_good(ties, best, _joules),
        _configurations(ties),
    )


def _best(candidates: Sequence[Cost], values: Callable[[Cost], Sequence[float]]) -> tuple[Cost, list[Cost]]:
    """Return the configuration with the least mean, and those that are not significantly different from it."""

    def order(cost: Cost) -> tuple[float, ...]:
        return statistics.fmean(values(cost)), cost.time_s, cost.energy_j or math.inf

    best = min(candidates, key=order)
    is_tie = indistinguishable_from_best(
        [values(cost) for cost in candidates], candidates.index(best), [cost.rounds for cost in candidates]
    )
    return best, [cost for cost, tied in zip(candidates, is_tie, strict=True) if tied and cost is not best]


def _not_ranked(missing: Sequence[Configuration], count: int, per: str) -> str:
    """Return how many configurations are not ranked, and why; those that missed the target with their rate."""
    if per == PER_EPOCH:
        return f"{len(missing)} of {count} configurations are not ranked: the time per epoch is not known."
    rates = [
        f"{configuration.runs_text} ({_reached(configuration)} of {len(configuration.runs)})"
        for configuration in missing[:MAX_NAMED]
    ]
    more = [f"{len(missing) - MAX_NAMED} more"] if len(missing) > MAX_NAMED else []
    texts = "; ".join([*rates, *more])
    lead = f"{len(missing)} of {count} configurations are not ranked, as not all of their runs reached the target"
    return f"{lead}: {texts}."


def _reached(configuration: Configuration) -> int:
    return sum(TIME_TO_TARGET in run.metrics for run in configuration.runs)


def _configurations(ties: Sequence[Cost]) -> list[Configuration]:
    return [cost.configuration for cost in ties]


def _times(cost: Cost) -> Sequence[float]:
    return cost.times_s


def _joules(cost: Cost) -> Sequence[float]:
    return cost.joules


def _time_text(cost: Cost) -> str:
    return interval(cost.time, "s")


def _energy_text(cost: Cost) -> str:
    return interval(cost.energy, "J")


def _energy(cost: Cost) -> float:
    return math.inf if cost.energy_j is None else cost.energy_j


def _power(cost: Cost) -> float:
    return math.inf if cost.power_w is None else cost.power_w
