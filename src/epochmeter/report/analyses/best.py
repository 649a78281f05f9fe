"""Which point to choose: the fastest, the one of least energy, and what lies between, told as sentences.

The trade-off is that of J. You, J.-W. Chung, M. Chowdhury, Zeus: Understanding and Optimizing GPU Energy Consumption of
DNN Training, NSDI 2023: the least of eta x energy + (1 - eta) x max power x time, here of a steady epoch. Their max
power is the highest limit that the device takes; where no run tells it, what stands for it is said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from epochmeter.report.runs.configuration import Configuration, no_energy
from epochmeter.report.runs.costs import Cost, also_as_good, comparable, costs, indistinguishable_from_best, max_power
from epochmeter.report.statistics import positive_mean
from epochmeter.report.words import interval, number
from epochmeter.sweep.search import is_pareto_front

Name = Literal["fastest", "least_energy", "tradeoff", "within_slowdown", "power_budget", "deadline"]


@dataclass(frozen=True)
class Best:
    """A point, by what it is the best, and how good it is."""

    name: Name
    point: Configuration
    value: float
    """What it was chosen by: seconds or joules of a steady epoch; of a trade-off its cost in joules."""
    sentence: str
    not_significantly_different: Sequence[Configuration] = ()
    """Points that are not told apart from it: equal, or not by what repeats tell of all of them together."""


def find_best(
    points: Sequence[Configuration],
    eta: float = 0.5,
    max_slowdown: float = 1.1,
    power_budget_w: float | None = None,
    deadline_s: float | None = None,
) -> list[Best]:
    """The best points by time and energy of a steady epoch; ValueError where a bound is none.

    What needs energy is chosen once for each thing that energy covers, as others cannot be put beside it. Without any
    energy there is the fastest alone; without a point that keeps to a bound there is no choice under it (`unmet`).
    """
    check(eta, max_slowdown, power_budget_w, deadline_s)
    known = costs(points)
    if not known:
        return []
    found = [_fastest(known)]
    groups = comparable(known)
    for covers, group in groups.items():
        of = f" ({covers})" if len(groups) > 1 else " (of those with energy)" if len(group) < len(known) else ""
        found += [_least_energy(group, of), _tradeoff(group, eta, of), _within_slowdown(group, max_slowdown, of)]
        if power_budget_w and (kept := [cost for cost in group if _power(cost) <= power_budget_w]):
            found.append(_on_budget(kept, power_budget_w, of))
        if deadline_s and (kept := [cost for cost in group if cost.time_s <= deadline_s]):
            found.append(_in_time(kept, deadline_s, of))
    return found


def pareto(points: Sequence[Configuration]) -> list[Configuration]:
    """Points that none other betters in time and energy, among those whose energy covers the same."""
    chosen: set[int] = set()
    for group in comparable(costs(points)).values():
        on = is_pareto_front((_energy(cost), cost.time_s) for cost in group)
        chosen.update(id(cost.point) for cost, kept in zip(group, on, strict=True) if kept)
    return [point for point in points if id(point) in chosen]


def unmet_constraints(
    points: Sequence[Configuration], power_budget_w: float | None = None, deadline_s: float | None = None
) -> list[str]:
    """Why there is no choice where there is none, as sentences."""
    known = costs(points)
    said = []
    if lost := len(points) - len(known):
        said.append(f"{lost} of {len(points)} jobs have no time of a steady epoch, and no part in this.")
    if not known:
        return said
    groups = comparable(known)
    if why := no_energy([cost.point for cost in known]):
        some = "Not all energies can be put side by side" if groups else "No choice by energy"
        said.append(f"{some}: {why.rstrip('.')}.")
    for covers, group in groups.items():
        of = f" ({covers})" if len(groups) > 1 else ""
        frugal, fast = min(group, key=_power), min(group, key=lambda cost: cost.time_s)
        if power_budget_w and _power(frugal) > power_budget_w:
            least = f"the least is {number(_power(frugal))} W, of {frugal.title}"
            said.append(f"None{of} keeps to {power_budget_w:g} W: {least}.")
        if deadline_s and fast.time_s > deadline_s:
            least = f"the fastest takes {number(fast.time_s)} s, {fast.title}"
            said.append(f"None{of} ends an epoch within {deadline_s:g} s: {least}.")
    return said


def check(eta: float, max_slowdown: float, power_budget_w: float | None, deadline_s: float | None) -> None:
    """Raises ValueError for what no point can be chosen by."""
    if not 0 <= eta <= 1:
        raise ValueError(f"report.eta={eta}: give a share from 0 (time alone) to 1 (energy alone)")
    if not 1 <= max_slowdown < math.inf:
        raise ValueError(f"report.max_slowdown={max_slowdown}: give a multiple of the fastest's time, 1 or more")
    for name, bound, unit in (("power_budget", power_budget_w, "watts"), ("deadline", deadline_s, "seconds")):
        if bound is not None and not 0 < bound < math.inf:
            raise ValueError(f"report.{name}={bound}: give {unit} above 0, or null")


def _fastest(known: Sequence[Cost]) -> Best:
    best, others = _best(known, lambda cost: cost.times_s)
    energy = f", {_joules(best)}" if best.joules else ""
    said = f"Fastest: {best.title}: {_seconds(best)} an epoch{energy}.{_alike(others)}"
    return Best("fastest", best.point, best.time_s, said, [cost.point for cost in others])


def _least_energy(group: Sequence[Cost], of: str) -> Best:
    best, others = _best(group, lambda cost: cost.joules)
    said = f"Least energy{of}: {best.title}: {_joules(best)} an epoch, {_seconds(best)}.{_alike(others)}"
    return Best("least_energy", best.point, _energy(best), said, [cost.point for cost in others])


def _tradeoff(group: Sequence[Cost], eta: float, of: str) -> Best:
    most_w, source = max_power(group)

    def cost_j(cost: Cost) -> list[float]:
        return [eta * energy_j + (1 - eta) * most_w * time_s
                for energy_j, time_s in zip(cost.joules, cost.times_s, strict=True)]  # fmt: skip

    best, others = _best(group, cost_j)
    value = statistics.fmean(cost_j(best))
    formula = f"{eta:g} x energy + {round(1 - eta, 10):g} x {number(most_w)} W x time"
    said = (
        f"Best trade-off{of}: {best.title}: {_seconds(best)} and {_joules(best)} an epoch, the least {formula}: "
        f"{number(value)} J. {number(most_w)} W is {source}.{_alike(others)}"
    )
    return Best("tradeoff", best.point, value, said, [cost.point for cost in others])


def _within_slowdown(group: Sequence[Cost], max_slowdown: float, of: str) -> Best:
    fastest, _ = _best(group, lambda cost: cost.times_s)
    kept = [cost for cost in group if cost.time_s <= max_slowdown * fastest.time_s]
    best, others = _best(kept, lambda cost: cost.joules)
    lead = f"Least energy within {max_slowdown:g} times the fastest's time{of}: {best.title}"
    if best is fastest:
        said = f"{lead}, the fastest itself: {_joules(best)} an epoch, {_seconds(best)}.{_alike(others)}"
    else:
        more = number(best.time_s / fastest.time_s)
        less = number(_energy(best) / _energy(fastest))
        said = (
            f"{lead}: {_joules(best)} an epoch, {less} times the fastest's, in {more} times its time.{_alike(others)}"
        )
    return Best("within_slowdown", best.point, _energy(best), said, [cost.point for cost in others])


def _on_budget(kept: Sequence[Cost], budget_w: float, of: str) -> Best:
    best, others = _best(kept, lambda cost: cost.times_s)
    lead = f"Fastest on {budget_w:g} W or less in the mean of an epoch{of}"
    said = f"{lead}: {best.title}: {_seconds(best)} an epoch, {number(_power(best))} W.{_alike(others)}"
    return Best("power_budget", best.point, best.time_s, said, [cost.point for cost in others])


def _in_time(kept: Sequence[Cost], deadline_s: float, of: str) -> Best:
    best, others = _best(kept, lambda cost: cost.joules)
    lead = f"Least energy with an epoch in {deadline_s:g} s or less{of}"
    said = f"{lead}: {best.title}: {_joules(best)} an epoch, {_seconds(best)}.{_alike(others)}"
    return Best("deadline", best.point, _energy(best), said, [cost.point for cost in others])


def _best(known: Sequence[Cost], by: Callable[[Cost], Sequence[float]]) -> tuple[Cost, list[Cost]]:
    """The least in the mean of its runs, of equal ones the cheaper in the other; and those that are as good."""

    def order(cost: Cost) -> tuple[float, ...]:
        return statistics.fmean(by(cost)), cost.time_s, cost.energy_j or math.inf

    best = min(known, key=order)
    others = [cost for cost in known if cost is not best]
    alike = indistinguishable_from_best(map(by, others), by(best))
    return best, [cost for cost, kept in zip(others, alike, strict=True) if kept]


def _alike(others: Sequence[Cost]) -> str:
    return also_as_good([cost.title for cost in others])


def _seconds(cost: Cost) -> str:
    return interval(positive_mean(cost.times_s), cost.time_s)


def _joules(cost: Cost) -> str:
    return interval(positive_mean(cost.joules), _energy(cost), "J")


def _energy(cost: Cost) -> float:
    return math.inf if cost.energy_j is None else cost.energy_j


def _power(cost: Cost) -> float:
    return math.inf if cost.power_w is None else cost.power_w
