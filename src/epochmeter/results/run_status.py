"""State of a run: planned, running, and then completed, failed or killed. Nothing else defines it.

It is planned without a job.json, running if the process that measures it is alive, and completed with a completed.json.
Otherwise it failed or was killed according to summary.json, or was killed if its process is gone. The live view divides
running into preparing, training and stalled. `RunFolder.state` is the state of a record.
"""

from epochmeter.results.documents import Summary
from epochmeter.shared.problem import Problem, read_problem

PLANNED, RUNNING, COMPLETED, FAILED, KILLED = "planned", "running", "completed", "failed", "killed"
NO_COMPLETION = "all epochs are measured, but the end of the run is not recorded"
UNKNOWN_STATE = "it ended with the state `{}`, which this version does not know"
UNKNOWN_END = "no end is recorded, and only its host, {}, shows whether it runs"
STATES = (PLANNED, RUNNING, COMPLETED, FAILED, KILLED)


def end_in(summary: Summary | None) -> str | None:
    """Return the end in the summary of a run without a completed.json; None if there is none."""
    state = (summary or {}).get("state")
    return state if state in (FAILED, KILLED) else None


def state_without_end(summary: Summary | None, may_run: bool, ended: str | None = None) -> str:
    """Return the state of a run without a recorded end.

    Args:
        may_run: Whether its process is alive; one of another host counts as alive.
        ended: The end as its controller knows it, if the record could not be written.
    """
    if ended is None and may_run:
        return RUNNING
    if summary:  # `completed.json` could not be written, or a newer version knows other states
        return FAILED
    return KILLED if ended in (None, KILLED) else FAILED


def failure_in(summary: Summary | None, state: str) -> Problem | None:
    """Return why a run failed or was stopped, as recorded, or else as it follows from its state; None if not known."""
    summary = summary or {}
    if failure := read_problem(summary.get("failure")):
        return failure
    if state != FAILED or end_in(summary) or not summary:
        return None
    word = summary.get("state")
    return Problem(NO_COMPLETION if word == COMPLETED else UNKNOWN_STATE.format(word))
