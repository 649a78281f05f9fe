"""The end of a run, whatever it is: told by its record, by MLflow and in the terminal."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from trainmeter import launch
from trainmeter.outcome import Outcome
from trainmeter.plan import Plan
from trainmeter.summary import summarize
from trainmeter.terminal import Terminal
from trainmeter.tracking import views
from trainmeter.tracking.publish import Published
from trainmeter.tracking.publisher import Publisher, Unpublished


@contextmanager
def concluded(plan: Plan, outcome: Outcome, publish: Publisher | Unpublished, terminal: Terminal) -> Iterator[None]:
    """Whatever ends the run, its record, MLflow and the terminal tell how."""
    try:
        yield
    except launch.WorkerError as error:
        outcome.fails(error.failure, str(error))
    except (ValueError, RuntimeError, OSError) as error:
        outcome.fails("exception", str(error))
    except Exception as error:
        # An error of ours rather than of the job or the machine: the next run of a sweep is still worth having.
        traceback.print_exc()
        outcome.fails("exception", f"{type(error).__name__}: {error}")
    except BaseException as stop:
        outcome.fails("stopped", "stopped by Ctrl-C" if isinstance(stop, KeyboardInterrupt) else "stopped by a signal")
        outcome.stop = stop
    finally:
        terminal.closed()
        conclude(plan, outcome)
        shown(publish.close(), outcome)
        terminal.concluded(plan.record.windows(), plan.job["warmup_epochs"], outcome, plan.of_sweep)


def conclude(plan: Plan, outcome: Outcome) -> None:
    """Writes the summary; a storage that takes no more fails the run, and loses nothing that it has."""
    record = plan.record
    windows = record.windows()
    outcome.notes = list(dict.fromkeys(outcome.notes))
    if windows:
        outcome.metrics = summarize(windows, record.steps(), plan.job)
        outcome.no_energy = plan.run["energy"]["reason"]
    outcome.metrics.update({f"model/{name}": value for name, value in plan.run.get("model", {}).items()})
    failure = {"kind": outcome.kind, "message": outcome.failure} if outcome.failure else None
    summary = {"state": outcome.state, "metrics": outcome.metrics, "notes": outcome.notes, "failure": failure}
    try:
        record.conclude(summary, plan.run["identity"])
    except OSError as error:
        outcome.fails("exception", unwritten(error))


def unwritten(error: OSError) -> str:
    return f"the record cannot be written: {error}. Make room or give the right to, and run it again."


def shown(published: Published | str | None, outcome: Outcome) -> None:
    """Notes where the run is shown: its page, and the view that compares it; or why it is not, if it should be."""
    if isinstance(published, str):
        outcome.unpublished = published
    elif published:
        outcome.run_link, outcome.compare_link = views.run_link(published), views.link(published)
