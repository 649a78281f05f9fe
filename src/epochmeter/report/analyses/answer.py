"""The answer in words, above all else that a report tells: what to choose, what bounds it, what to try next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from epochmeter.report.analyses import prediction as predicted
from epochmeter.report.analyses.best import Best
from epochmeter.report.analyses.epoch_breakdown import EpochBreakdown
from epochmeter.report.analyses.next_runs import Suggestion
from epochmeter.report.analyses.prediction import Prediction
from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import Configuration, fingerprint, titles, varied
from epochmeter.report.runs.costs import Cost, positive_values, ranked_costs
from epochmeter.report.statistics import MIN_EFFECT
from epochmeter.report.words import ABSENT, Grid, finite, interval, number, spread
from epochmeter.results import bottleneck
from epochmeter.results.bottleneck import PARTS, part_name
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS

MAX_SUMMARY = 3
"""Sentences above the first chart."""
BEST = {
    "fastest": "time",
    "least_energy": "energy",
    "tradeoff": "trade-off",
    "within_slowdown": "energy within the slowdown",
    "power_budget": "time on the power budget",
    "deadline": "energy by the deadline",
}
MANY = 5
"""Configurations from which on the best of them seems noticeably better than it is."""
LEARNING = ("model", "optimizer", "scheduler", "batch", "precision", "lr_scaling")
"""Keys by which a job may need another number of epochs to learn as much."""


def page(
    points: Sequence[Configuration],
    choices: Sequence[Best],
    bounds: Sequence[EpochBreakdown],
    prediction: Prediction | str | None = None,
    what_next: Sequence[Suggestion] = (),
    notes: Sequence[str] = (),
) -> Page | None:
    """The top of a report; `notes` say why there is no choice where there is none (`choices.unmet`).

    None where no point has a time: then there is nothing to answer.
    """
    known = {id(cost.point): cost for cost in ranked_costs(points)}
    if not choices or not known:
        return None
    names = {id(point): title for point, title in zip(points, titles(points), strict=True)}
    bound_of = {id(bound.point): bound for bound in bounds}
    answer = _answer(choices, known, bound_of, notes, caveats(points))
    sections = [
        Section(answer.sentences[MAX_SUMMARY:], answer.grids),
        _bounded(choices, bounds, names) if bounds else None,
        Section(["What to try next:", *map(_try, what_next)]) if what_next else None,
        _predicted(prediction) if prediction else None,
    ]
    values = {
        "choices": [_plain(choice, known[id(choice.point)], bound_of.get(id(choice.point))) for choice in choices],
        "bottlenecks": Counter(bound.bottleneck.label for bound in bounds),
        "what_next": [{"command": each.command, "why": each.why} for each in what_next],
        "prediction": predicted.values(prediction) if prediction else None,
        "notes": list(notes),
    }
    numbers = sorted(run for cost in known.values() for run in cost.point.numbers)
    shown = [each for each in sections if each]
    return Page("answer", "The answer", shown, finite(values), numbers, answer.sentences[:MAX_SUMMARY])


def caveats(points: Sequence[Configuration]) -> list[str]:
    """What a reader has to keep in mind where epochs are put side by side."""
    said = []
    samples = [count for point in points for count in positive_values(point, "steady/samples")]
    if samples and max(samples) > (1 + MIN_EFFECT) * min(samples):
        span = f"{number(min(samples))} to {number(max(samples))}"
        said.append(f"An epoch is not as much work in all of them: it has {span} samples.")
    targeted = any(point.job.get(f"target_{name}") is not None for point in points for name in ("accuracy", "loss"))
    learning = [key for key in varied(points) if key.partition(".")[0] in LEARNING]
    if learning and not targeted:
        keys = ", ".join(learning)
        said.append(
            f"Epoch time does not show how many epochs are needed; that may depend on {keys}. "
            "Set target_accuracy= to compare time to accuracy."
        )
    once = [point for point in points if len(point.runs) == 1]
    if len(points) > 1 and once:
        said.append(_once(once, points))
    if len(points) >= MANY and len(once) < len(points):
        said.append(
            f"The best of {len(points)} configurations was partly lucky: its interval is not corrected for the choice."
        )
    return said


def _once(once: Sequence[Configuration], points: Sequence[Configuration]) -> str:
    """That jobs ran once, and what gives them intervals: not the repeats that went to another host each."""
    which = "Each job" if len(once) == len(points) else f"{len(once)} of {len(points)} jobs"
    hosts = Counter(fingerprint(point.job) for point in points)
    if not any(hosts[fingerprint(point.job)] > 1 for point in once):
        return f"{which} ran once, so small differences may be chance: {RECOMMENDED_REPEATS} gives intervals."
    return (
        f"{which} ran once on its host, so that small differences may be chance. Equal jobs on several hosts are no "
        f"repeats of each other, as no two boards are quite alike: {RECOMMENDED_REPEATS} gives intervals where all go "
        "to one, which hydra.launcher.options='{nodelist: ...}' names."
    )


def _answer(
    choices: Sequence[Best],
    known: dict[int, Cost],
    bound_of: dict[int, EpochBreakdown],
    unmet_constraints: Sequence[str],
    caveats: Sequence[str],
) -> Section:
    """What to choose: in one sentence where one job is the best by each bound, none is as good, and none is unmet."""
    first = known[id(choices[0].point)]
    energy = f", {interval(first.energy, first.energy.value, 'J')}" if first.energy else ""
    cost = f"{interval(first.time, first.time_s)} {first.per}{energy}"
    if len(known) == 1:
        return Section(
            [f"One job alone, and nothing to choose between: {first.title}: {cost}.", *unmet_constraints, *caveats]
        )
    alone = len(choices) > 1 and len({id(choice.point) for choice in choices}) == 1
    if alone and not unmet_constraints and not any(choice.not_significantly_different for choice in choices):
        said = [f"{first.title} is the best by every criterion: {cost}."]
    else:
        said = [choice.sentence for choice in choices]
    covers = list(dict.fromkeys(cost.covers for cost in known.values() if cost.covers))
    if covers:
        said.append(f"Energy is that of: {'; '.join(covers)}.")
    return Section([*said, *unmet_constraints, *caveats], [grid(choices, known, bound_of)])


def grid(choices: Sequence[Best], known: dict[int, Cost], bound_of: dict[int, EpochBreakdown]) -> Grid:
    """A row for each job that is the best by anything; `known` and `bound_of` by the id of its point."""
    best: dict[int, list[str]] = {}
    for choice in choices:
        best.setdefault(id(choice.point), []).append(BEST[choice.name])
    rows = []
    for point, by in best.items():
        cost, bound = known[point], bound_of.get(point)
        joules = spread(cost.energy) if cost.energy else ABSENT
        runs, seconds = ", ".join(map(str, cost.point.numbers)), spread(cost.time)
        found = bound.bottleneck.text if bound else ABSENT
        rows.append([cost.title, runs, seconds, joules, number(cost.power_w), found, "; ".join(by)])
    return Grid(
        f"The best, {known[next(iter(best))].per}", ["job", "runs", "s", "J", "W", "bottleneck", "best by"], rows
    )


def _bounded(choices: Sequence[Best], bounds: Sequence[EpochBreakdown], names: dict[int, str]) -> Section:
    """The bottlenecks of all configurations, and where the time of each chosen one goes."""
    said = [bottleneck.bottleneck_sentence([bound.bottleneck for bound in bounds])]
    if any(bound.point.devices != 1 for bound in bounds):
        said.append("Of several devices one's stall is another's compute: who waits keeps the others waiting.")
    chosen = dict.fromkeys(id(choice.point) for choice in choices)
    of = {id(bound.point): bound for bound in bounds}
    best = {point: of[point].bottleneck.fractions for point in chosen if point in of}
    parts = [part for part in PARTS if any(part in fractions for fractions in best.values())]
    rows = [
        [names[point], *(number(_percent(fractions.get(part)), 10) for part in parts)]
        for point, fractions in best.items()
    ]
    grids = [Grid("Where an epoch of the best goes, %", ["job", *map(part_name, parts)], rows)] if best else []
    return Section(said, grids)


def _predicted(prediction: Prediction | str) -> Section:
    grids = [] if isinstance(prediction, str) else [predicted.grid(prediction)]
    return Section(predicted.sentences(prediction), grids)


def _try(told: Suggestion) -> str:
    return f"{told.why[:1].upper()}{told.why[1:]}: {told.command}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _plain(choice: Best, cost: Cost, bound: EpochBreakdown | None) -> dict[str, Any]:
    return {
        "name": choice.name,
        "job": cost.title,
        "runs": choice.point.numbers,
        "value": choice.value,
        "time_s": cost.time_s,
        "energy_j": cost.energy_j,
        "power_w": cost.power_w,
        "energy_covers": cost.covers,
        "bottleneck": bound.bottleneck.text if bound else None,
        "fractions": dict(bound.bottleneck.fractions) if bound else None,
        "not_significantly_different": [point.numbers for point in choice.not_significantly_different],
        "sentence": choice.sentence,
    }
