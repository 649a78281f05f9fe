"""Runs that failed or cannot be read: the configuration, the reason and what to do."""

from dataclasses import dataclass

from epochmeter.config.errors import with_hint
from epochmeter.report.runs.filter import Selection, reasons_of
from epochmeter.report.runs.run import FAILURES, RUNNING
from epochmeter.shared.record import Record

HINT = "hint:"


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
        if FAILURES in reasons_of(run) and run.state != RUNNING:
            summary = (Record(run.folder).summary() if run.folder else None) or {}
            message = with_hint((summary.get("failure") or {}).get("message", ""))
            lines = [line.strip() for line in message.splitlines()]
            hints = [line.removeprefix(HINT).strip() for line in lines[1:] if line.startswith(HINT)]
            overrides = " ".join(f"{key}={value}" for key, value in run.keys.items() if (key, value) not in shared)
            failures.append(Failure(str(run.number), overrides, lines[0] if lines else run.state, " ".join(hints)))
    return [*failures, *(Failure(name, None, why) for name, why in selection.unreadable.items())]
