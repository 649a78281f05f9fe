"""The fields of `answer.json`, with their meaning. The published JSON Schema is made from these types."""

from typing import Annotated, Any, Literal, TypedDict

from epochmeter.machine.energy_codes import EnergyReason
from epochmeter.results.documents import NextStepFields, StragglerFields

SCHEMA = 1
"""Version of `answer.json`; it changes if a field is removed, renamed or gets another meaning."""


class ErrorFields(TypedDict):
    """An error, and the runs that it ended."""

    reason: str
    hint: Annotated[str, "what to do; empty without advice"]
    runs: Annotated[list[str], "numbers of the runs, or names of their folders"]


class ProcessFields(TypedDict):
    """A run that measured a process that ran already."""

    run: Annotated[int, "number of the run"]
    pid: int
    time_s: Annotated[float, "duration of the measurement"]
    energy_j: Annotated[float | None, "null if energy was not measured"]
    energy_uncertainty_j: Annotated[float | None, "half of the 95 % interval"]


class DoubtFields(TypedDict):
    """Why no best configuration is established."""

    kind: Literal["rehearsal", "single", "disturbed", "reused", "diverged"]
    affected: Annotated[int, "number of runs"]
    total: Annotated[int, "number of all runs"]


class EstimateFields(TypedDict):
    """A value and its 95 % confidence interval, which single runs do not have."""

    value: float
    low: float | None
    high: float | None


class TieBreakFields(TypedDict):
    """What would show the difference between the best configuration and those that are not significantly different."""

    difference: Annotated[float, "largest relative difference from the best"]
    is_equal: Annotated[bool, "whether all differ by less than 2 %"]
    effect: Annotated[float, "relative difference that the repeats would show, at least 2 %"]
    repeats: Annotated[int | None, "runs per configuration that would show it; null: not known, or more than 200"]


class LeadFields(TypedDict):
    """The next best configuration."""

    configuration: str
    runs: list[int]
    ratio: Annotated[EstimateFields, "its value as a multiple of the best one's"]


class ChoiceFields(TypedDict):
    """The best configuration by one criterion."""

    name: Annotated[
        Literal["fastest", "least_energy", "tradeoff", "within_slowdown", "power_budget", "deadline"], "the criterion"
    ]
    configuration: Annotated[str, "the keys in which it differs from others"]
    runs: Annotated[list[int], "numbers of its runs"]
    value: Annotated[float, "what the criterion compares: time in seconds, energy in joules, or the cost in joules"]
    time_s: Annotated[float, "mean time per epoch, or to the quality target"]
    energy_j: Annotated[float | None, "mean energy per epoch, or to the quality target; null: `absent` has the reason"]
    power_w: Annotated[float | None, "mean power"]
    energy_covers: Annotated[str | None, "the parts of the machine that the energy includes"]
    energy_valid: Annotated[bool | None, "whether the energy holds in all runs; null in older records"]
    energy_reasons: Annotated[list[EnergyReason], "what is absent or doubtful about the energy"]
    time_ratio: Annotated[EstimateFields | None, "time as a multiple of the baseline's; null without a baseline"]
    energy_ratio: Annotated[EstimateFields | None, "energy as a multiple of the baseline's"]
    bottleneck: Annotated[str | None, "largest part of the epoch, or several parts with ` or `; null: not known"]
    fractions: Annotated[dict[str, float] | None, "part of the epoch -> fraction of its time, 0 to 1"]
    prep_stall_s: Annotated[float | None, "wait for preprocessing per epoch"]
    fetch_stall_s: Annotated[float | None, "wait for storage per epoch"]
    absent: Annotated[dict[str, str], "name of a quantity that is not known -> the reason"]
    not_significantly_different: Annotated[list[list[int]], "runs of each configuration that ties with this one"]
    tie_break: Annotated[TieBreakFields | None, "null without ties that were repeated"]
    lead: Annotated[LeadFields | None, "null if there are ties"]
    is_established: Annotated[bool, "whether it is significantly the best of several, without a doubt"]


class FrontFields(TypedDict):
    """A configuration on the Pareto front of time and energy."""

    configuration: str
    time_s: float
    energy_j: float | None


class ShareFields(TypedDict):
    """The part of the variance that a key explains."""

    key: str
    count: Annotated[int, "number of its values"]
    time: Annotated[float, "fraction of the variance of the time"]
    energy: Annotated[float | None, "fraction of the variance of the energy; null if energies cannot be compared"]


class SuggestionFields(TypedDict):
    """Runs to try next."""

    command: str
    key: str


class NoEnergyFields(TypedDict):
    """Why energies cannot be compared."""

    without: Annotated[int, "number of runs without energy"]
    count: Annotated[int, "number of all runs"]
    reason: str | None
    covers: Annotated[list[str], "the different parts of the machine that the energies include, if all runs have one"]


class Ended(TypedDict):
    """How the runs ended; every answer has these fields."""

    states: Annotated[dict[str, int], "state -> number of runs"]
    without_steady_epoch: Annotated[list[int], "runs that ended within the warm-up"]
    errors: Annotated[list[ErrorFields], "the most frequent first"]
    processes: list[ProcessFields]


class Answered(Ended):
    schema: Annotated[int, "1; it changes if a field is removed, renamed or gets another meaning"]
    state: Annotated[
        Literal["result", "no_result"],
        "`no_result` if no run was completed with an epoch after the warm-up; such an answer has no later field",
    ]
    doubts: Annotated[list[DoubtFields], "why no best configuration is established"]
    choices: Annotated[list[ChoiceFields], "the best configuration by each criterion"]
    next_steps: Annotated[list[NextStepFields], "of the first run of the fastest configuration"]


class AnswerFields(Answered, total=False):
    """The answer of a report: the best configurations, what is not established, and what to try next."""

    front: Annotated[list[FrontFields], "Pareto front of time and energy; empty if energies cannot be compared"]
    baseline: Annotated[str | None, "configuration of `report.baseline=`"]
    by_workload: Annotated[
        dict[str, dict[str, list[int]]], "model and dataset -> criterion -> runs of the best; empty for one workload"
    ]
    bottlenecks: Annotated[dict[str, int], "bottleneck -> number of configurations"]
    power_of_limit: Annotated[float | None, "mean power of the fastest configuration, as a fraction of the limit"]
    stragglers: Annotated[dict[str, StragglerFields], "number of a run -> the rank for which the others wait"]
    explained_variance: Annotated[list[ShareFields], "by key, the largest share first"]
    unresolved: Annotated[
        list[float | int | None] | None,
        "largest relative difference from the fastest that is not significant, and the repeats that would show it",
    ]
    noisy_runs: Annotated[dict[str, float], "number of a run -> relative standard deviation of its epoch times"]
    outliers: Annotated[dict[str, float], "number of a run -> relative difference from the median of its repeats"]
    what_next: list[SuggestionFields]
    prediction: Annotated[dict[str, Any] | None, "of configurations that were not run; null without `report.predict`"]
    unmet: Annotated[dict[str, float], "constraint that no configuration meets -> its bound"]
    no_energy: NoEnergyFields | None
