"""The top of a report: the best configurations, their bottlenecks, and the runs to try next."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any

from epochmeter.config.suggestions import entry_keys
from epochmeter.machine.energy_codes import first_of_each_code
from epochmeter.report.analyses.best import (
    ANY,
    LEAST_WIDENED,
    Best,
    Criteria,
    Doubt,
    find_best,
    find_doubts,
    reused_runs,
)
from epochmeter.report.analyses.bottleneck import epoch_bottlenecks
from epochmeter.report.analyses.importance import KeyShare, key_shares
from epochmeter.report.analyses.next_runs import Suggestion, suggest_runs
from epochmeter.report.analyses.outcome import Outcome
from epochmeter.report.analyses.prediction import NoPrediction, Prediction, predict
from epochmeter.report.analyses.prior import Prior
from epochmeter.report.analyses.ratios import Ratios, is_adjusted
from epochmeter.report.formatting import join_or_more
from epochmeter.report.runs.configuration import (
    Configuration,
    NoEnergy,
    group_repeats,
    no_energy,
    quality_target,
    varied,
)
from epochmeter.report.runs.costs import (
    ENERGY,
    ENERGY_TO_TARGET,
    TIME,
    TIME_TO_TARGET,
    Cost,
    comparable,
    pareto_front,
    positive_values,
    ranked_costs,
)
from epochmeter.report.runs.filter import has_values
from epochmeter.report.runs.run import Run, grouped
from epochmeter.report.statistics import MIN_EFFECT, Estimate, tukey_critical_value
from epochmeter.results.answer_fields import SCHEMA
from epochmeter.results.bottleneck import STALL_TIMES, Bottleneck
from epochmeter.results.documents import NextStepFields, StragglerFields
from epochmeter.results.power_share import PowerShare, power_share
from epochmeter.results.summary import excessive_variation
from epochmeter.shared.problem import input_error

LARGE = 0.1
"""Relative difference, as a fraction, from which on too few repeats and outliers are reported."""
FAR, FAR_OF_TWO, MIN_REPEATS = 8.0, 40.0, 3
"""Multiple of the usual distance from the median of repeats above which a run is an outlier, and multiple of the
smaller one of two distances; repeats for a median. Noise alone causes an outlier in one of 25 sweeps."""
NO_OUTCOME = Outcome({})
CONVERGENCE_KEYS = ("model", "optimizer", "scheduler", "batch", "precision", "lr_scaling")
"""Keys that may change the number of epochs to a given accuracy."""


@dataclass(frozen=True)
class Row:
    """The best configuration by some criteria, or the baseline; `time` and `energy` are multiples of the baseline's."""

    cost: Cost
    bottleneck: Bottleneck | None
    best_by: list[str]
    time: Estimate | None = None
    energy: Estimate | None = None


@dataclass(frozen=True)
class Answer:
    """The best of all ranked configurations (`costs`), and the limits of their comparison.

    Attributes:
        shares: Empty if no configuration differs significantly from the best.
        outcome: How the runs ended, also those that are not ranked.
    """

    configurations: Sequence[Configuration]
    costs: Sequence[Cost]
    choices: Sequence[Best]
    unmet: Sequence[Best]
    bottlenecks: Mapping[Configuration, Bottleneck]
    shares: Sequence[KeyShare]
    suggestions: Sequence[Suggestion]
    prediction: Prediction | NoPrediction | None
    baseline: Cost | None
    outcome: Outcome = NO_OUTCOME

    @cached_property
    def unranked(self) -> list[tuple[Configuration, int]]:
        """Configurations that are not ranked, and how many of their runs reached the target."""
        ranked = {cost.configuration for cost in self.costs}
        unranked = [configuration for configuration in self.configurations if configuration not in ranked]
        return [
            (configuration, sum(TIME_TO_TARGET in run.metrics for run in configuration.runs))
            for configuration in unranked
        ]

    @cached_property
    def samples(self) -> tuple[float, float] | None:
        """The smallest and the largest number of samples per epoch, if they differ."""
        counts = [
            count for configuration in self.configurations for count in positive_values(configuration, "steady/samples")
        ]
        return (min(counts), max(counts)) if counts and max(counts) > (1 + MIN_EFFECT) * min(counts) else None

    @cached_property
    def convergence_keys(self) -> list[str]:
        """Varying keys that may change the number of epochs to an accuracy, without a target."""
        if any(quality_target(configuration.job) for configuration in self.configurations):
            return []
        return [key for key in varied(self.configurations) if key.partition(".")[0] in CONVERGENCE_KEYS]

    @cached_property
    def by_workload(self) -> dict[str, list[Best]]:
        """The fastest and the least energy of each model and dataset; empty if all configurations have the same.

        Costs are up to the quality target if all configurations of a model and dataset have the same target.
        """
        ranked = [cost.configuration for cost in self.costs]
        groups = grouped(ranked, lambda configuration: configuration.named(("model", "dataset")))
        if len(groups) < 2:
            return {}
        # Grouped again, so that their titles have only the keys that differ within a model and dataset.
        every = {
            title: group_repeats([run for configuration in group for run in configuration.runs])
            for title, group in groups.items()
        }
        return {title: find_best(ranked_costs(group))[:2] for title, group in every.items()}

    @cached_property
    def single_runs(self) -> int:
        """Number of configurations that ran once; 0 if there is nothing to compare."""
        return (
            sum(len(configuration.runs) == 1 for configuration in self.configurations)
            if len(self.configurations) > 1
            else 0
        )

    @cached_property
    def doubts(self) -> list[Doubt]:
        return find_doubts(self.costs)

    @cached_property
    def time_ratios(self) -> Ratios:
        """Ratios of the times of the ranked configurations."""
        return Ratios({cost.configuration: cost.times_s for cost in self.costs})

    @cached_property
    def unresolved(self) -> tuple[float, int | None] | None:
        """The largest relative difference from the fastest that is not significant, and the repeats to show it."""
        large = [(excess, tie) for tie, excess in self.choices[0].ties if len(tie.times_s) > 1 and excess >= LARGE]
        if not large:
            return None
        excess, tie = max(large, key=lambda pair: pair[0])
        ratios, ends = self.time_ratios, (tie.configuration, self.choices[0].configuration)
        return excess, ratios.repeats(*ends, lambda dof: tukey_critical_value(len(self.costs), dof))

    @cached_property
    def noisy(self) -> list[tuple[Run, float]]:
        """Runs whose epoch times vary more than on an idle machine, by relative standard deviation."""
        runs = chain.from_iterable(configuration.runs for configuration in self.configurations)
        noisy = [(run, variation) for run in runs if (variation := excessive_variation(run.metrics))]
        return sorted(noisy, key=lambda pair: -pair[1])

    @cached_property
    def outliers(self) -> list[tuple[Run, float]]:
        """Runs whose time per epoch is far from the median of their repeats, with the relative difference."""
        distances: list[tuple[Run, float]] = []
        for configuration in self.configurations:
            if len(times_s := positive_values(configuration, TIME)) >= MIN_REPEATS:
                median_s = statistics.median(times_s)
                distances += zip(configuration.runs, (time_s / median_s - 1 for time_s in times_s), strict=True)
        sizes = sorted(abs(distance) for _, distance in distances if distance) or [0.0]
        limit = FAR_OF_TWO * sizes[0] if len(sizes) == 2 else FAR * statistics.median(sizes)
        far = [(run, distance) for run, distance in distances if abs(distance) > max(LARGE, limit)]
        return sorted(far, key=lambda pair: -abs(pair[1]))

    @cached_property
    def front(self) -> list[Cost]:
        """The Pareto front of time and energy, the fastest first; empty if not all energies can be compared."""
        is_comparable = [*map(len, comparable(self.costs).values())] == [len(self.costs)]
        front = pareto_front(self.costs) if is_comparable else set()
        return sorted((cost for cost in self.costs if cost.configuration in front), key=lambda cost: cost.time_s)

    @cached_property
    def rows(self) -> list[Row]:
        """The configurations that are the best by any criterion, the others on the front, and the baseline."""
        rows, ratios = dict[Configuration, Row](), list[Ratios]()
        named: list[tuple[str, Cost]] = [(choice.name, choice.cost) for choice in self.choices]
        best = {cost.configuration for _, cost in named}
        named += [("front", cost) for cost in self.front if cost.configuration not in best]
        if base := self.baseline:
            named.append(("baseline", base))
            joules = {cost.configuration: cost.joules for cost in self.costs if cost.covers == base.covers}
            ratios += [self.time_ratios, Ratios(joules)]
        for name, cost in named:
            key, factors = cost.configuration, list[Estimate | None]()
            if base and key is not base.configuration:
                factors = [ratio.between(key, base.configuration) for ratio in ratios]
            rows.setdefault(key, Row(cost, self.bottlenecks.get(key), [], *factors)).best_by.append(name)
        return [*rows.values()]

    @property
    def adjusts_ratios(self) -> bool:
        """Whether a ratio to the baseline differs from the quotient of the two times or energies next to it."""
        base, rows = self.baseline, self.rows
        return base is not None and any(
            is_adjusted(row.time, row.cost.time_s, base.time_s)
            or is_adjusted(row.energy, row.cost.energy_j, base.energy_j)
            for row in rows
        )

    @property
    def headlines(self) -> list[list[Best]]:
        """The first three choices in groups: those among all configurations that select the same one are one group."""
        return [*grouped(self.choices[:3], lambda best: (best.configuration, best.scope and best.name)).values()]

    @property
    def chosen_from(self) -> int | None:
        """The largest number of configurations that a best one was chosen from.

        None if no interval is widened, or no best one is named.
        """
        if any(doubt.is_decisive for doubt in self.doubts):
            return None
        most = max((1 + len(choice.ties) for choice in self.choices if choice.cost.time.low is not None), default=0)
        return most if most >= LEAST_WIDENED else None

    @property
    def is_best_by_all(self) -> bool:
        """Whether one configuration is significantly the best of all by all criteria."""
        is_certain = not (self.doubts or self.unmet or any(best.ties or best.scope for best in self.choices))
        return is_certain and len(self.choices) > 1 and len({choice.cost.title for choice in self.choices}) == 1

    def _is_established(self, choice: Best) -> bool:
        """Return whether a configuration is significantly the best of several by a criterion, without a doubt."""
        return len(self.costs) > 1 and not self.doubts and not choice.ties

    @property
    def reused(self) -> list[Run]:
        """Runs of the best, if there is one, that were not measured together with the others."""
        is_decided = not any(doubt.is_decisive for doubt in self.doubts)
        return reused_runs(self.choices, self.costs) if is_decided else []

    @property
    def next_steps(self) -> Sequence[NextStepFields]:
        """The recorded next steps of the first run of the fastest configuration."""
        return self.choices[0].configuration.runs[0].next_steps if self.choices else ()

    @property
    def power_share(self) -> PowerShare | None:
        """The power of the fastest configuration's GPUs as a share of their limit; None if it is not known."""
        return power_share(self.choices[0].configuration.mean) if self.choices else None

    @property
    def stragglers(self) -> list[tuple[Run, StragglerFields]]:
        """The runs whose ranks wait for one of them, the one that costs the most first."""
        runs = [run for cost in self.costs for run in cost.configuration.runs]
        found = [(run, run.straggler) for run in runs if run.straggler]
        return sorted(found, key=lambda pair: -pair[1].get("saving_s", 0.0))

    @property
    def bottleneck_counts(self) -> list[tuple[Bottleneck, int]]:
        """One bottleneck of each kind, and the number of configurations with it; the most frequent first."""
        kinds = grouped(self.bottlenecks.values(), lambda one: (frozenset(one.parts), one.equal)).values()
        return sorted([(group[0], len(group)) for group in kinds], key=lambda pair: -pair[1])

    @property
    def no_energy(self) -> NoEnergy | None:
        metric = ENERGY_TO_TARGET if self.costs[0].target else ENERGY
        return no_energy((cost.configuration for cost in self.costs), metric)

    @property
    def values(self) -> dict[str, object]:
        rows = {row.cost.configuration: row for row in self.rows}
        return {
            "schema": SCHEMA,
            "state": "result",
            **self.outcome.values,
            "doubts": [doubt._asdict() for doubt in self.doubts],
            "choices": [
                {**_choice_values(choice, rows[choice.configuration]), "is_established": self._is_established(choice)}
                for choice in self.choices
            ],
            "front": [
                {"configuration": cost.title, "time_s": cost.time_s, "energy_j": cost.energy_j} for cost in self.front
            ],
            "baseline": self.baseline.title if self.baseline else None,
            "by_workload": {title: {best.name: best.configuration.numbers for best in every}
                            for title, every in self.by_workload.items()},
            "bottlenecks": Counter(bottleneck.word for bottleneck in self.bottlenecks.values()),
            "power_of_limit": self.power_share.fraction if self.power_share else None,
            "stragglers": {run.number: straggler for run, straggler in self.stragglers},
            "explained_variance": [asdict(share) for share in self.shares],
            "unresolved": self.unresolved,
            "noisy_runs": {run.number: variation for run, variation in self.noisy},
            "outliers": {run.number: distance for run, distance in self.outliers},
            "what_next": [{"command": suggestion.command, "key": suggestion.key} for suggestion in self.suggestions],
            "next_steps": [*self.next_steps],
            "prediction": self.prediction.values if self.prediction else None,
            "unmet": {unmet.name: unmet.bound for unmet in self.unmet},
            "no_energy": asdict(self.no_energy) if self.no_energy else None,
        }  # fmt: skip


def analyze(
    configurations: Sequence[Configuration], criteria: Criteria = ANY, prior: Prior | None = None,
    excluded: Sequence[Configuration] = (), verdicts: Mapping[tuple[int, ...], Bottleneck] = MappingProxyType({}),
    outcome: Outcome = NO_OUTCOME,
) -> Answer | None:  # fmt: skip
    """Return the answer; None if no configuration has a time; ValueError unless one has the baseline's values.

    Args:
        excluded: Configurations that were started but are not candidates, which are neither predicted nor suggested.
        verdicts: Bottlenecks by the numbers of runs, of stall analyses, which are more exact than those of runs.
        outcome: How all selected runs ended.
    """
    ranked = ranked_costs(configurations)
    if not ranked:
        return None
    every, bottlenecks = find_best(ranked, criteria), epoch_bottlenecks(configurations)
    bottlenecks |= {
        configuration: verdicts[key]
        for configuration in configurations
        if (key := tuple(configuration.numbers)) in verdicts
    }
    choices = [choice for choice in every if choice.is_met]
    differs = any(len(best.ties) < best.count - 1 for best in choices[:2])  # else the variance may be noise
    return Answer(
        configurations,
        ranked,
        choices,
        every[len(choices) :],
        bottlenecks,
        key_shares(ranked) if differs else [],
        suggest_runs([*configurations, *excluded], choices, bottlenecks),
        predict(configurations, prior, criteria.next_runs, excluded) if criteria.predict else None,
        None if criteria.baseline is None else _find_baseline(ranked, criteria.baseline),
        outcome,
    )


def _find_baseline(costs: Sequence[Cost], values: Mapping[str, Any] | str) -> Cost:
    """Return the only configuration with these values, or with the default of each key that varies."""
    if isinstance(values, str):
        options, defaults = entry_keys("train")
        keys = varied([cost.configuration for cost in costs])
        values = {key: value for key, value in {**options, **defaults}.items() if key in keys}
    matching = [cost for cost in costs if has_values(cost.configuration.runs[0], values)]
    if len(matching) != 1:
        titles = join_or_more([cost.title for cost in costs], 10, "; ")
        text = ", ".join(f"{key}: {value}" for key, value in values.items())
        raise input_error(
            f"report.baseline: {len(matching)} configurations have the values {{{text}}}",
            f"give values that one of these has: {titles}",
        )
    return matching[0]


def _lead_values(cost: Cost, ratio: Estimate) -> dict[str, object]:
    return {"configuration": cost.title, "runs": cost.configuration.numbers, "ratio": asdict(ratio)}


def _choice_values(choice: Best, row: Row) -> dict[str, object]:
    cost, bottleneck, absent = choice.cost, row.bottleneck, dict[str, str]()
    for run in choice.configuration.runs:
        absent |= run.absent
        if run.no_energy:
            absent[ENERGY] = run.no_energy
    runs = choice.configuration.runs
    validities = [run.energy_valid for run in runs]
    return {
        "name": choice.name, "configuration": cost.title, "runs": choice.configuration.numbers, "value": choice.value,
        "time_s": cost.time_s, "energy_j": cost.energy_j, "power_w": cost.power_w, "energy_covers": cost.covers,
        "energy_valid": None if None in validities else all(validities),
        "energy_reasons": first_of_each_code(reason for run in runs for reason in run.energy_reasons),
        "time_ratio": asdict(row.time) if row.time else None,
        "energy_ratio": asdict(row.energy) if row.energy else None,
        "bottleneck": bottleneck.word or None if bottleneck else None,
        "fractions": dict(bottleneck.fractions) if bottleneck else None,
        **{name: choice.configuration.mean(f"steady/{name}") for name in STALL_TIMES},
        "absent": absent,
        "not_significantly_different": [tie.configuration.numbers for tie, _ in choice.ties],
        "tie_break": choice.tie_break._asdict() if choice.tie_break else None,
        "lead": _lead_values(*choice.lead) if choice.lead else None,
    }  # fmt: skip
