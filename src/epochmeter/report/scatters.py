"""Energy against time: of an epoch, and to a target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from epochmeter.report.analyses.targets import ENERGY, TIME
from epochmeter.report.axes import (
    Shown,
    Value,
    axis,
    covers_told,
    fewer,
    lacking,
    natural,
    over_runs,
    sentence,
    spread_told,
    steady,
)
from epochmeter.report.figures import STYLES, Bar, Bars, Callout, Mark, Reach, Scatter, Series, Stack
from epochmeter.report.runs.configuration import Configuration, quality_target
from epochmeter.sweep.search import is_pareto_front

if TYPE_CHECKING:
    from epochmeter.report.analyses.best import Best

MOST_KINDS = 7
"""Kinds of marks that can be told from one another."""
MOST_BARS = 40
CHOSEN = {"fastest": "fastest", "least_energy": "least energy", "tradeoff": "best trade-off",
          "within_slowdown": "least energy in time", "power_budget": "best in budget",
          "deadline": "best by the deadline"}  # fmt: skip
NAMES = ("", "model", "dataset", "strategy", "device")
"""Keys whose values say what they are."""


class Taken(NamedTuple):
    """A job, and what it takes of both."""

    shown: Shown
    time: Value
    energy: Value

    @property
    def run(self) -> int:
        """The number of its first run, which it is known by."""
        return self.shown.point.numbers[0]


def energy_by_time(
    every: Sequence[Shown], keys: Sequence[str], choices: Sequence[Best] = (), pareto: Sequence[Configuration] = ()
) -> Scatter | None:
    """Energy against time of a steady epoch, a mark a job; None where none has both."""
    measured = [(each, steady(each.point, "e2e_s"), steady(each.point, "energy_j")) for each in every if each.covers]
    taken = [Taken(each, time, energy) for each, time, energy in measured if time and energy]
    if not taken:
        return None
    words: dict[int, list[str]] = {}
    for choice in choices:
        words.setdefault(choice.point.numbers[0], []).append(CHOSEN.get(choice.name, choice.name))
    on_front = {point.numbers[0] for point in pareto}
    left = lacking(every, len(taken), "energy of an epoch")
    return _scatter("energy_by_time", "Energy against time", "of an epoch", taken, keys, on_front, words, left)


def to_target(every: Sequence[Shown], keys: Sequence[str]) -> list[Scatter | Bars]:
    """Energy against time to each target, of the jobs that reached it; time alone where no energy is known.

    A job of which only some runs did says so, and is on no front: the slow ones are not in its mean.
    """
    goals: dict[tuple[str, str], list[Shown]] = {}
    for each in every:
        if goal := quality_target(each.point.job):
            goals.setdefault((goal, each.point.value("dataset")), []).append(each)
    told: list[Scatter | Bars] = []
    for place, ((goal, dataset), group) in enumerate(goals.items()):
        name = f"target_{place}" if len(goals) > 1 else "target"
        title = f"To {'an' if goal.startswith('accuracy') else 'a'} {goal}, {dataset}"
        reached = [found for each in group if (found := _reached(each))]
        asked = {id(each.point) for each in group}
        always = {each.point.numbers[0] for each in reached if id(each.point) in asked}
        lost, some = len(group) - len(reached), len(reached) - len(always)
        said = sentence(
            f"{lost:,} of {len(group):,} jobs never reached it." if lost else "",
            f"{some:,} did in some of their runs: the mean of those is on no front." if some else "",
        )
        measured = [(each, over_runs(each.point, TIME), over_runs(each.point, ENERGY)) for each in reached]
        taken = [Taken(each, time, energy) for each, time, energy in measured if time and energy and each.covers]
        times_s = [(each, time) for each, time, _ in measured if time]
        if taken:
            said = sentence(said, lacking(reached, len(taken), "energy to it"))
            told.append(_scatter(name, title, "to the target", taken, keys, _on_front(taken, always), {}, said))
        elif times_s:
            told.append(_times(name, title, times_s, said))
    return told


def kinds(found: Sequence[Shown], keys: Sequence[str]) -> tuple[str, list[str]]:
    """By what marks are told apart, and the kind of each: what their energy is that of, or else a key that varies.

    The first key that takes two to seven values; the empty text where none does.
    """
    covers = [str(each.covers) for each in found]
    if len(set(covers)) > 1:
        return "what their energy is that of", covers
    for key in keys:
        values = [each.point.value(key) for each in found]
        if 1 < len(set(values)) <= MOST_KINDS:
            word = "" if key in NAMES else f"{key.replace('_', ' ')} "
            return key.replace("_", " "), [f"{word}{value}" for value in values]
    return "", ["jobs"] * len(found)


def _scatter(
    name: str, title: str, of: str, taken: Sequence[Taken], keys: Sequence[str], on_front: Collection[int],
    words: Mapping[int, Sequence[str]], said: str,
) -> Scatter:  # fmt: skip
    """Energy against time, of an epoch or to a target; what is on the front, and what has a word, by first runs."""
    x, second = axis(f"Time {of}", [each.time.mean for each in taken], "s")
    y, joule = axis(f"Energy {of}", [each.energy.mean for each in taken], "J")
    marks = [_mark(each, second, joule) for each in taken]
    by, kind_of = kinds([each.shown for each in taken], keys)
    series = []
    for index, kind in enumerate(sorted(set(kind_of), key=_by_number)):
        those = [place for place, its in enumerate(kind_of) if its == kind]
        series.append(Series(kind, [marks[place] for place in those], index % len(STYLES)))
    corners: dict[str, list[tuple[float, float]]] = {}
    for each, mark in zip(taken, marks, strict=True):
        if each.run in on_front:
            corners.setdefault(str(each.shown.covers), []).append((mark.x, mark.y))
    fronts = [sorted(front) for front in corners.values() if len(front) > 1]
    caption = sentence(
        f"Each mark is a job with its repeats{f', told apart by {by}' if by else ''}.",
        "The line is the Pareto front: no other job is both faster and takes less energy." if fronts else "",
        spread_told([value for each in taken for value in (each.time, each.energy)]),
        covers_told([each.shown for each in taken]),
        said,
    )
    called = [
        (mark.x, mark.y, _word(words, each)) for each, mark in zip(taken, marks, strict=True) if each.run in words
    ]
    callouts = [Callout(said, *place) for *place, said in sorted(called)]
    return Scatter(name, title, caption, x, y, series, fronts, callouts)


def _word(words: Mapping[int, Sequence[str]], each: Taken) -> str:
    said = list(dict.fromkeys(words[each.run]))
    return "the best in all" if len(words) == 1 and len(said) > 2 else ", ".join(said)


def _mark(each: Taken, second: float, joule: float) -> Mark:
    time, energy = each.time, each.energy
    return Mark(
        time.mean / second,
        energy.mean / joule,
        each.shown.told(f"time {time.told('s')}", f"energy {energy.told('J')}", f"of {each.shown.covers}"),
        each.shown.link,
        _reach(time, second),
        _reach(energy, joule),
    )


def _reach(value: Value, size: float) -> Reach | None:
    return None if value.spread is None else Reach(value.spread / size, value.spread / size)


def _times(name: str, title: str, found: Sequence[tuple[Shown, Value]], said: str) -> Bars:
    """Time alone, the fastest on top."""
    ordered = sorted(found, key=lambda pair: pair[1].mean)
    drawn = ordered[:MOST_BARS]
    x, second = axis("Time to the target", [time.mean for _, time in drawn], "s", straight=True)
    bars = [Bar(time.mean / second, each.told(f"time {time.told('s')}"), each.link) for each, time in drawn]
    caption = sentence("No energy to it is known.", said, fewer(len(ordered), MOST_BARS))
    return Bars(name, title, caption, x, [each.title for each, _ in drawn], [Stack("time", bars)])


def _on_front(taken: Sequence[Taken], always: Collection[int]) -> set[int]:
    """Of those that always reached it; of each thing that energy is that of by itself."""
    on: set[int] = set()
    for cover in {each.shown.covers for each in taken}:
        alike = [each for each in taken if each.shown.covers == cover and each.run in always]
        flags = is_pareto_front((each.energy.mean, each.time.mean) for each in alike)
        on.update(each.run for each, flag in zip(alike, flags, strict=True) if flag)
    return on


def _reached(each: Shown) -> Shown | None:
    """A job itself where each of its runs reached its target, else by those that did; None where none did."""
    rows = [row for row in each.point.runs if TIME in row.metrics]
    if not rows or len(rows) == len(each.point.runs):
        return each if rows else None
    return Shown(Configuration(rows), f"{each.title}, reached by {len(rows)} of {len(each.point.runs)} runs")


def _by_number(kind: str) -> tuple[str, tuple[bool, float, str]]:
    """`batch 8` before `batch 16`."""
    word, _, value = kind.rpartition(" ")
    return word, natural(value)
