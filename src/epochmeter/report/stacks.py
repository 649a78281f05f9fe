"""Stacked bars: what an epoch's time and its energy are made of, the fastest job on top."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from epochmeter.report.axes import Shown, Value, apart, axis, by_covers, covers_told, fewer, sentence, steady
from epochmeter.report.figures import BLACK, BLUE, GRAY, GREEN, ORANGE, PURPLE, SKY, VERMILION, Bar, Bars, Stack
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.words import number

MOST = 40
"""Bars of one picture."""
METRICS = {"s": "e2e_s", "J": "energy_j"}
"""What bars are of, by its unit."""
PARTS = {"fetch stall": "data_stall_s", "copy": "copy_s", "compute": "compute_s", "overhead": "overhead_s"}
PHASES = {"fetch stall": "stall_energy_j", "copy": "copy_energy_j", "compute": "compute_energy_j",
          "overhead": "overhead_energy_j"}  # fmt: skip
STYLES = {"fetch stall": VERMILION, "copy": ORANGE, "compute": BLUE, "overhead": GRAY}
"""A phase looks the same in time and in energy."""
DOMAIN_STYLES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, BLACK)
DOMAIN = re.compile(r"steady/energy_(?!per_sample_j$|uncertainty_j$)(?!.*_sampled_j$)(.+)_j")
REST = "what else"
"""Of a total that its domains do not make up."""
WITHIN = 0.02
"""Share by which domains may miss the total that they make up: they are read one after the other."""


class Pieces(NamedTuple):
    """A job, and what its bar is made of."""

    shown: Shown
    parts: Mapping[str, float]
    whole: Value


def epoch_parts(every: Sequence[Shown]) -> Bars | None:
    """Where the time of a steady epoch goes; None where no job tells of its four parts."""
    said = "A steady epoch by what the device was doing; each part is measured by itself."
    return _bars("epoch_parts", "Where the time goes", "Time of an epoch", "s", every,
                 lambda each, whole: _known(each.point, PARTS), said, STYLES)  # fmt: skip


def energy_parts(every: Sequence[Shown]) -> list[Bars]:
    """Energy of a steady epoch by domain and by phase; energies that are of different things have pictures apart."""
    told: list[Bars | None] = []
    groups = by_covers(every)
    for place, group in enumerate(groups.values()):
        covers, label, name = covers_told(group), "Energy of an epoch", apart(place, groups)
        told += [
            _bars(f"energy_domains{name}", "Where the energy goes: domains", label, "J", group,
                  lambda each, whole: domains_of(each, whole.mean),
                  sentence("A steady epoch by what used the energy.", covers)),
            _bars(f"energy_phases{name}", "Where the energy goes: phases", label, "J", group,
                  lambda each, whole: _known(each.point, PHASES),
                  sentence("A steady epoch by what the device was doing meanwhile.", covers), STYLES),
        ]  # fmt: skip
    return [picture for picture in told if picture]


def domains_of(each: Shown, total_j: float) -> dict[str, float]:
    """Joules of the domains that make up a total, none counted twice; empty where they do not.

    What lies within the one domain that is the total, as a board's rails do, stands beside what else that one fed.
    """
    names = {domain for row in each.point.runs for name in row.metrics if (domain := _domain(name))}
    joules = _known(each.point, {name: f"energy_{name}_j" for name in sorted(names)})
    totals = {frozenset(row.energy_domains) for row in each.point.runs}
    total = totals.pop() if len(totals) == 1 else frozenset()
    made = {name: value for name, value in joules.items() if name in total}
    if len(made) < len(total) or not math.isclose(math.fsum(made.values()), total_j, rel_tol=WITHIN):
        return {}
    within = {name: value for name, value in joules.items() if name not in total}
    if len(total) > 1 or not within:
        return made
    rest = total_j - math.fsum(within.values())
    return {**within, REST: rest} if rest >= 0 else {}


@lru_cache(maxsize=1024)  # the same few names in each of many runs
def _domain(name: str) -> str | None:
    found = DOMAIN.fullmatch(name)
    return found[1] if found else None


def _known(point: Configuration, names: Mapping[str, str]) -> dict[str, float]:
    """Means of metrics by what they are called here; empty unless all are known."""
    values = {called: steady(point, name) for called, name in names.items()}
    return {called: value.mean for called, value in values.items() if value} if all(values.values()) else {}


def _ordered(every: Sequence[Shown], name: str) -> list[tuple[Shown, Value]]:
    """Jobs that have a metric, the least first."""
    found = [(each, value) for each in every if (value := steady(each.point, name))]
    return sorted(found, key=lambda pair: pair[1].mean)


def _bars(
    name: str, title: str, label: str, unit: str, every: Sequence[Shown],
    parts_of: Callable[[Shown, Value], dict[str, float]], said: str, styles: Mapping[str, int] | None = None,
) -> Bars | None:  # fmt: skip
    """Of these jobs the first that have parts; without styles their parts are domains, and have those of them."""
    ordered = _ordered(every, METRICS[unit])
    told = [Pieces(each, parts, whole) for each, whole in ordered if (parts := parts_of(each, whole))]
    if not told:
        return None
    drawn = told[:MOST]
    styles = styles or _domain_styles({part for each in drawn for part in each.parts})
    x, size = axis(label, [each.whole.mean for each in drawn], unit, straight=True)
    stacks = [
        Stack(called, [_piece(each, called, unit, size) for each in drawn], style) for called, style in styles.items()
    ]
    kept = [stack for stack in stacks if any(piece and piece.value for piece in stack.pieces)]
    few = fewer(len(told), MOST, "fastest" if unit == "s" else "most frugal")
    lost = f"{len(every) - len(told):,} of {len(every):,} jobs tell of no parts." if len(told) < len(every) else ""
    return Bars(name, title, sentence(said, few, lost), x, [each.shown.title for each in drawn], kept)


def _domain_styles(names: Collection[str]) -> dict[str, int]:
    styles = {name: DOMAIN_STYLES[index % len(DOMAIN_STYLES)] for index, name in enumerate(sorted({*names} - {REST}))}
    return styles | ({REST: GRAY} if REST in names else {})


def _piece(each: Pieces, called: str, unit: str, size: float) -> Bar | None:
    if called not in each.parts:
        return None
    value, whole = each.parts[called], each.whole.mean
    share = f", {100 * value / whole:.0f} %" if whole else ""
    lines = (f"{called} {number(value, whole)} {unit}{share}", f"in all {each.whole.told(unit)}")
    return Bar(value / size, each.shown.told(*lines), each.shown.link)
