"""How the runs of a report ended: their states, and the errors of those without results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epochmeter.report.analyses.failures import Failure
from epochmeter.report.runs.filter import Selection
from epochmeter.report.runs.run import Run, grouped
from epochmeter.results.answer_fields import SCHEMA
from epochmeter.results.documents import NextStepFields

UNREADABLE = "unreadable"
"""State of a run whose record cannot be read."""


@dataclass(frozen=True)
class ErrorGroup:
    """An error, and the runs that it ended, by their numbers or the names of their folders."""

    reason: str
    hint: str
    runs: Sequence[str]


@dataclass(frozen=True)
class ProcessUse:
    """A run that measured a process that ran already: for how long, and the energy with its 95 % interval, if known."""

    run: int
    pid: int
    time_s: float
    energy_j: float | None
    energy_uncertainty_j: float | None


@dataclass(frozen=True)
class Outcome:
    """How the runs ended.

    Attributes:
        states: State -> number of runs.
        too_short: Numbers of the runs without an epoch after the warm-up.
        errors: Those of the runs without results, the most frequent first.
        next_steps: Of the first run that is too short.
        processes: Of the runs that are too short, those that measured a process.
    """

    states: Mapping[str, int]
    too_short: Sequence[int] = ()
    errors: Sequence[ErrorGroup] = ()
    next_steps: Sequence[NextStepFields] = ()
    processes: Sequence[ProcessUse] = ()

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def values(self) -> dict[str, Any]:
        """The fields of answer.json on all runs, whether there is a best configuration or not."""
        errors = [asdict(error) for error in self.errors]
        return {"states": dict(self.states), "without_steady_epoch": [*self.too_short], "errors": errors,
                "processes": [asdict(use) for use in self.processes]}  # fmt: skip


@dataclass(frozen=True)
class NoAnswer:
    """The answer of a report without a configuration to rank."""

    outcome: Outcome
    costs: tuple[()] = ()

    @property
    def values(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"doubts": [], "choices": [], "next_steps": [*self.outcome.next_steps]}
        return {"schema": SCHEMA, "state": "no_result", **self.outcome.values, **empty}


def analyze(selection: Selection, failures: Sequence[Failure]) -> Outcome:
    """Return how the selected and the excluded runs ended."""
    runs, short = (*selection.ended, *selection.excluded), selection.too_short
    states = Counter(run.state for run in runs) + Counter({UNREADABLE: len(selection.unreadable)})
    groups = grouped(failures, lambda failure: (failure.reason, failure.hint))
    errors = [ErrorGroup(*key, [failure.run for failure in group]) for key, group in groups.items()]
    errors.sort(key=lambda error: -len(error.runs))
    numbers = [run.number for run in short]
    return Outcome(states, numbers, errors, short[0].next_steps if short else (), _processes(short))


def _processes(runs: Sequence[Run]) -> list[ProcessUse]:
    found = []
    for run in runs:
        pid, metrics = (run.job.get("measure") or {}).get("pid"), run.metrics
        if pid is not None and "run/window_s" in metrics:
            energy = (metrics.get("run/energy_j"), metrics.get("run/energy_uncertainty_j"))
            found.append(ProcessUse(run.number, pid, metrics["run/window_s"], *energy))
    return found
