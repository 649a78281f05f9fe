"""Runs that failed or cannot be read: the configuration, the reason and what to do."""

import platform
from dataclasses import dataclass
from textwrap import shorten

from epochmeter.report.runs.filter import Selection, reasons_of
from epochmeter.report.runs.run import FAILURES, Run
from epochmeter.results.run_status import RUNNING, UNKNOWN_END
from epochmeter.shared.problem import Problem

MAX_REASON = 500  # longest reason, in characters: a message may have a traceback


@dataclass(frozen=True)
class Failure:
    """A run without results.

    Attributes:
        run: Its number, or the name of its folder if its record cannot be read.
        overrides: Those that not all runs share; None if the record cannot be read.
    """

    run: str
    overrides: str | None
    reason: str
    hint: str = ""


def analyze(selection: Selection) -> list[Failure]:
    """Return the runs that ended without being completed, and the damaged records."""
    failures, every = [], [set(run.keys.items()) for run in (*selection.ended, *selection.excluded)]
    shared = set.intersection(*every) if len(every) > 1 else set()
    for run in selection.excluded:
        runs_here = run.state == RUNNING and run.host in (None, platform.node())
        if FAILURES in reasons_of(run) and not runs_here:
            problem = _problem_of(run)
            overrides = " ".join(f"{key}={value}" for key, value in run.keys.items() if (key, value) not in shared)
            reason = shorten(problem.message, MAX_REASON, placeholder="...")
            failures.append(Failure(str(run.number), overrides, reason, problem.hint))
    return [*failures, *(Failure(name, None, why) for name, why in selection.unreadable.items())]


def _problem_of(run: Run) -> Problem:
    """Return the error of a run; without one, its state."""
    if run.state == RUNNING:
        return Problem(UNKNOWN_END.format(run.host))
    return run.failure if run.failure and run.failure.message else Problem(run.state)
