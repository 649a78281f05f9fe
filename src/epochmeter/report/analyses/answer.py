"""The top of a report in words: the best configurations, their bottlenecks, and the runs to try next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from epochmeter.report.analyses import prediction as predicted
from epochmeter.report.analyses.best import Best
from epochmeter.report.analyses.epoch_breakdown import EpochBreakdown
from epochmeter.report.analyses.next_runs import Suggestion
from epochmeter.report.analyses.prediction import Prediction
from epochmeter.report.formatting import ABSENT, interval, number, quantity
from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import Configuration, fingerprint, titles, varied
from epochmeter.report.runs.costs import Cost, positive_values, ranked_costs
from epochmeter.report.statistics import MIN_EFFECT
from epochmeter.report.words import Grid, finite
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
HINT = f"hint: {RECOMMENDED_REPEATS} gives confidence intervals"
MANY = 5
"""Number of configurations from which on the best one seems noticeably better than it is."""
CONVERGENCE_KEYS = ("model", "optimizer", "scheduler", "batch", "precision", "lr_scaling")
"""Keys that may change the number of epochs to a given accuracy."""


def page(
    configurations: Sequence[Configuration],
    choices: Sequence[Best],
    breakdowns: Sequence[EpochBreakdown],
    prediction: Prediction | str | None = None,
    suggestions: Sequence[Suggestion] = (),
    notes: Sequence[str] = (),
) -> Page | None:
    """Return the page at the top of a report; None if no configuration has a time.

    Args:
        configurations: All configurations of the report.
        choices: The best of them, by suggestion criterion.
        breakdowns: The bottleneck of suggestion configuration for which it is known.
        prediction: Predicted configurations, or why there are none.
        suggestions: Runs to try next.
        notes: Why constraints have no result (`best.unmet_constraints`).
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
        _bottlenecks(choices, breakdowns, names) if breakdowns else None,
        Section(["What to try next:", *map(_suggestion_text, suggestions)]) if suggestions else None,
        _predicted(prediction) if prediction else None,
    ]
    values = {
        "choices": [
            _choice_values(choice, cost_by_id[id(choice.configuration)], breakdown_of.get(id(choice.configuration)))
            for choice in choices
        ],
        "bottlenecks": Counter(breakdown.bottleneck.label for breakdown in breakdowns),
        "what_next": [{"command": suggestion.command, "why": suggestion.why} for suggestion in suggestions],
        "prediction": predicted.values(prediction) if prediction else None,
        "notes": list(notes),
    }
    numbers = sorted(run for cost in cost_by_id.values() for run in cost.configuration.numbers)
    shown = [section for section in sections if section]
    return Page("answer", "The answer", shown, finite(values), numbers, answer.sentences[:MAX_SUMMARY])


def caveats(configurations: Sequence[Configuration]) -> list[str]:
    """Return the limits of a comparison of epochs, as sentences."""
    texts = []
    samples = [count for configuration in configurations for count in positive_values(configuration, "steady/samples")]
    if samples and max(samples) > (1 + MIN_EFFECT) * min(samples):
        span = f"{number(min(samples))} to {number(max(samples))}"
        texts.append(f"Epochs differ in their number of samples: {span}.")
    targeted = any(
        configuration.job.get(f"target_{name}") is not None
        for configuration in configurations
        for name in ("accuracy", "loss")
    )
    learning = [key for key in varied(configurations) if key.partition(".")[0] in CONVERGENCE_KEYS]
    if learning and not targeted:
        keys = ", ".join(learning)
        texts.append(
            f"Epoch time does not show how many epochs are needed; that may depend on {keys}. "
            "hint: target_accuracy=0.9 compares the time to that accuracy."
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
    """Return that configurations have no repeats, and how to repeat them; runs on other hosts are no repeats."""
    which = (
        "Each configuration"
        if len(once) == len(configurations)
        else f"{len(once)} of {len(configurations)} configurations"
    )
    hosts = Counter(fingerprint(configuration.job) for configuration in configurations)
    if not any(hosts[fingerprint(configuration.job)] > 1 for configuration in once):
        return f"{which} ran once, so small differences may be noise. {HINT}."
    return (
        f"{which} ran once on its host, so small differences may be noise. Runs on different hosts are not compared as "
        f"repeats. {HINT} if all runs are on one host: hydra.launcher.options='{{nodelist: ...}}'."
    )


def _answer(
    choices: Sequence[Best],
    cost_by_id: dict[int, Cost],
    breakdown_of: dict[int, EpochBreakdown],
    unmet_constraints: Sequence[str],
    caveats: Sequence[str],
) -> Section:
    """Return the best configurations; one sentence if the same one is significantly the best by all criteria."""
    first = cost_by_id[id(choices[0].configuration)]
    energy = f", {interval(first.energy, 'J')}" if first.energy else ""
    cost = f"{interval(first.time, 's')} {first.per}{energy}"
    if len(cost_by_id) == 1:
        return Section([f"Only one configuration: {first.title}: {cost}.", *unmet_constraints, *caveats])
    same = len(choices) > 1 and len({id(choice.configuration) for choice in choices}) == 1
    if same and not unmet_constraints and not any(choice.not_significantly_different for choice in choices):
        texts = [f"{first.title} is the best by every criterion: {cost}."]
    else:
        texts = [choice.sentence for choice in choices]
    covers = list(dict.fromkeys(cost.covers for cost in cost_by_id.values() if cost.covers))
    if covers:
        texts.append(f"Energy: {'; '.join(covers)}.")
    return Section([*texts, *unmet_constraints, *caveats], [grid(choices, cost_by_id, breakdown_of)])


def grid(choices: Sequence[Best], cost_by_id: dict[int, Cost], breakdown_of: dict[int, EpochBreakdown]) -> Grid:
    """Return one row per configuration that is the best by a criterion; the arguments are by its id."""
    best: dict[int, list[str]] = {}
    for choice in choices:
        best.setdefault(id(choice.configuration), []).append(BEST[choice.name])
    rows = []
    for point, by in best.items():
        cost, breakdown = cost_by_id[point], breakdown_of.get(point)
        energy = interval(cost.energy, "J")
        runs, time = ", ".join(map(str, cost.configuration.numbers)), interval(cost.time, "s")
        bottleneck_text = breakdown.bottleneck.text if breakdown else ABSENT
        rows.append([cost.title, runs, time, energy, quantity(cost.power_w, "W"), bottleneck_text, "; ".join(by)])
    return Grid(
        f"The best, {cost_by_id[next(iter(best))].per}",
        ["configuration", "runs", "time", "energy", "power", "bottleneck", "best by"],
        rows,
    )


def _bottlenecks(choices: Sequence[Best], breakdowns: Sequence[EpochBreakdown], names: dict[int, str]) -> Section:
    """Return the bottlenecks of all configurations, and the parts of the epoch time of the best ones."""
    texts = [bottleneck.bottleneck_sentence([breakdown.bottleneck for breakdown in breakdowns])]
    if any(breakdown.configuration.devices != 1 for breakdown in breakdowns):
        texts.append(
            "With several devices, a data stall of one rank appears as compute time of the ranks that wait for it."
        )
    chosen = dict.fromkeys(id(choice.configuration) for choice in choices)
    breakdown_of = {id(breakdown.configuration): breakdown for breakdown in breakdowns}
    best = {point: breakdown_of[point].bottleneck.fractions for point in chosen if point in breakdown_of}
    parts = [part for part in PARTS if any(part in fractions for fractions in best.values())]
    rows = [
        [names[point], *(number(_percent(fractions.get(part)), 10) for part in parts)]
        for point, fractions in best.items()
    ]
    title = f"Parts of the epoch time of the best configuration{'s' if len(best) > 1 else ''}, %"
    grids = [Grid(title, ["configuration", *map(part_name, parts)], rows)] if best else []
    return Section(texts, grids)


def _predicted(prediction: Prediction | str) -> Section:
    grids = [] if isinstance(prediction, str) else [predicted.grid(prediction)]
    return Section(predicted.sentences(prediction), grids)


def _suggestion_text(suggestion: Suggestion) -> str:
    return f"{suggestion.why[:1].upper()}{suggestion.why[1:]}: {suggestion.command}"


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _choice_values(choice: Best, cost: Cost, breakdown: EpochBreakdown | None) -> dict[str, Any]:
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
