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
    configurations: Sequence[Configuration],
    choices: Sequence[Best],
    breakdowns: Sequence[EpochBreakdown],
    prediction: Prediction | str | None = None,
    suggestions: Sequence[Suggestion] = (),
    notes: Sequence[str] = (),
) -> Page | None:
    """The top of a report; `notes` say why there is no choice where there is none (`choices.unmet`).

    None where no point has a time: then there is nothing to answer.
    """
    cost_by_id = {id(cost.configuration): cost for cost in ranked_costs(configurations)}
    if not choices or not cost_by_id:
        return None
    names = {
        id(configuration): title for configuration, title in zip(configurations, titles(configurations), strict=True)
    }
    breakdown_of = {id(breakdown.configuration): breakdown for breakdown in breakdowns}
    answer = _answer(choices, cost_by_id, breakdown_of, notes, caveats(configurations))
    sections = [
        Section(answer.sentences[MAX_SUMMARY:], answer.grids),
        _bounded(choices, breakdowns, names) if breakdowns else None,
        Section(["What to try next:", *map(_try, suggestions)]) if suggestions else None,
        _predicted(prediction) if prediction else None,
    ]
    values = {
        "choices": [
            _plain(choice, cost_by_id[id(choice.configuration)], breakdown_of.get(id(choice.configuration)))
            for choice in choices
        ],
        "bottlenecks": Counter(breakdown.bottleneck.label for breakdown in breakdowns),
        "what_next": [{"command": each.command, "why": each.why} for each in suggestions],
        "prediction": predicted.values(prediction) if prediction else None,
        "notes": list(notes),
    }
    numbers = sorted(run for cost in cost_by_id.values() for run in cost.configuration.numbers)
    shown = [each for each in sections if each]
    return Page("answer", "The answer", shown, finite(values), numbers, answer.sentences[:MAX_SUMMARY])


def caveats(configurations: Sequence[Configuration]) -> list[str]:
    """What a reader has to keep in mind where epochs are put side by side."""
    texts = []
    samples = [count for configuration in configurations for count in positive_values(configuration, "steady/samples")]
    if samples and max(samples) > (1 + MIN_EFFECT) * min(samples):
        span = f"{number(min(samples))} to {number(max(samples))}"
        texts.append(f"An epoch is not as much work in all of them: it has {span} samples.")
    targeted = any(
        configuration.job.get(f"target_{name}") is not None
        for configuration in configurations
        for name in ("accuracy", "loss")
    )
    learning = [key for key in varied(configurations) if key.partition(".")[0] in LEARNING]
    if learning and not targeted:
        keys = ", ".join(learning)
        texts.append(
            f"Epoch time does not show how many epochs are needed; that may depend on {keys}. "
            "Set target_accuracy= to compare time to accuracy."
        )
    once = [configuration for configuration in configurations if len(configuration.runs) == 1]
    if len(configurations) > 1 and once:
        texts.append(_once(once, configurations))
    if len(configurations) >= MANY and len(once) < len(configurations):
        texts.append(
            f"The best of {len(configurations)} configurations may be partly luck: "
            "its interval is not corrected for the selection."
        )
    return texts


def _once(once: Sequence[Configuration], configurations: Sequence[Configuration]) -> str:
    """That jobs ran once, and what gives them intervals: not the repeats that went to another host each."""
    which = "Each job" if len(once) == len(configurations) else f"{len(once)} of {len(configurations)} jobs"
    hosts = Counter(fingerprint(configuration.job) for configuration in configurations)
    if not any(hosts[fingerprint(configuration.job)] > 1 for configuration in once):
        return f"{which} ran once, so small differences may be chance: {RECOMMENDED_REPEATS} gives intervals."
    return (
        f"{which} ran once on its host, so that small differences may be chance. Equal jobs on several hosts are no "
        f"repeats of each other, as no two boards are quite alike: {RECOMMENDED_REPEATS} gives intervals where all go "
        "to one, which hydra.launcher.options='{nodelist: ...}' names."
    )


def _answer(
    choices: Sequence[Best],
    cost_by_id: dict[int, Cost],
    breakdown_of: dict[int, EpochBreakdown],
    unmet_constraints: Sequence[str],
    caveats: Sequence[str],
) -> Section:
    """What to choose: in one sentence where one job is the best by each bound, none is as good, and none is unmet."""
    first = cost_by_id[id(choices[0].configuration)]
    energy = f", {interval(first.energy, first.energy.value, 'J')}" if first.energy else ""
    cost = f"{interval(first.time, first.time_s)} {first.per}{energy}"
    if len(cost_by_id) == 1:
        return Section(
            [f"One job alone, and nothing to choose between: {first.title}: {cost}.", *unmet_constraints, *caveats]
        )
    alone = len(choices) > 1 and len({id(choice.configuration) for choice in choices}) == 1
    if alone and not unmet_constraints and not any(choice.not_significantly_different for choice in choices):
        texts = [f"{first.title} is the best by every criterion: {cost}."]
    else:
        texts = [choice.sentence for choice in choices]
    covers = list(dict.fromkeys(cost.covers for cost in cost_by_id.values() if cost.covers))
    if covers:
        texts.append(f"Energy is that of: {'; '.join(covers)}.")
    return Section([*texts, *unmet_constraints, *caveats], [grid(choices, cost_by_id, breakdown_of)])


def grid(choices: Sequence[Best], cost_by_id: dict[int, Cost], breakdown_of: dict[int, EpochBreakdown]) -> Grid:
    """A row for each job that is the best by anything; `known` and `bound_of` by the id of its point."""
    best: dict[int, list[str]] = {}
    for choice in choices:
        best.setdefault(id(choice.configuration), []).append(BEST[choice.name])
    rows = []
    for point, by in best.items():
        cost, breakdown = cost_by_id[point], breakdown_of.get(point)
        joules = spread(cost.energy) if cost.energy else ABSENT
        runs, seconds = ", ".join(map(str, cost.configuration.numbers)), spread(cost.time)
        bottleneck_text = breakdown.bottleneck.text if breakdown else ABSENT
        rows.append([cost.title, runs, seconds, joules, number(cost.power_w), bottleneck_text, "; ".join(by)])
    return Grid(
        f"The best, {cost_by_id[next(iter(best))].per}", ["job", "runs", "s", "J", "W", "bottleneck", "best by"], rows
    )


def _bounded(choices: Sequence[Best], breakdowns: Sequence[EpochBreakdown], names: dict[int, str]) -> Section:
    """The bottlenecks of all configurations, and where the time of each chosen one goes."""
    texts = [bottleneck.bottleneck_sentence([breakdown.bottleneck for breakdown in breakdowns])]
    if any(breakdown.configuration.devices != 1 for breakdown in breakdowns):
        texts.append("Of several devices one's stall is another's compute: who waits keeps the others waiting.")
    chosen = dict.fromkeys(id(choice.configuration) for choice in choices)
    breakdown_of = {id(breakdown.configuration): breakdown for breakdown in breakdowns}
    best = {point: breakdown_of[point].bottleneck.fractions for point in chosen if point in breakdown_of}
    parts = [part for part in PARTS if any(part in fractions for fractions in best.values())]
    rows = [
        [names[point], *(number(_percent(fractions.get(part)), 10) for part in parts)]
        for point, fractions in best.items()
    ]
    grids = [Grid("Where an epoch of the best goes, %", ["job", *map(part_name, parts)], rows)] if best else []
    return Section(texts, grids)


def _predicted(prediction: Prediction | str) -> Section:
    grids = [] if isinstance(prediction, str) else [predicted.grid(prediction)]
    return Section(predicted.sentences(prediction), grids)


def _try(suggestion: Suggestion) -> str:
    return f"{suggestion.why[:1].upper()}{suggestion.why[1:]}: {suggestion.command}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _plain(choice: Best, cost: Cost, breakdown: EpochBreakdown | None) -> dict[str, Any]:
    return {
        "name": choice.name,
        "job": cost.title,
        "runs": choice.configuration.numbers,
        "value": choice.value,
        "time_s": cost.time_s,
        "energy_j": cost.energy_j,
        "power_w": cost.power_w,
        "energy_covers": cost.covers,
        "bottleneck": breakdown.bottleneck.text if breakdown else None,
        "fractions": dict(breakdown.bottleneck.fractions) if breakdown else None,
        "not_significantly_different": [point.numbers for point in choice.not_significantly_different],
        "sentence": choice.sentence,
    }
