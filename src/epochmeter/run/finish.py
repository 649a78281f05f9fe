"""The end of a run, however it ends: its summary, its publication, and its results in the terminal."""

import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from epochmeter.config.installation import display_path
from epochmeter.config.request import RunRequest
from epochmeter.console.console import Terminal
from epochmeter.machine.signals import deferred_signals, prefer_stop
from epochmeter.results.run_result import RunResult
from epochmeter.run.plan import Plan
from epochmeter.shared.problem import Problem, ProblemError, format_problem, problem_of
from epochmeter.tracking import views
from epochmeter.tracking.export_process import Exported, export_warning
from epochmeter.tracking.publish import Published
from epochmeter.tracking.publisher import Tracker


@contextmanager
def finalizing(plan: Plan, result: RunResult, tracker: Tracker, terminal: Terminal) -> Iterator[None]:
    """Write the summary, publish and print the results when the `with` block ends, also by an exception or a signal."""
    try:
        with prefer_stop():
            yield
    except (ProblemError, ValueError, RuntimeError, OSError) as error:
        result.set_failed(problem_of(error))
    except Exception as error:  # a bug in this program: the other runs of a sweep may still succeed
        traceback.print_exc()
        result.set_failed(Problem(f"{type(error).__name__}: {error}"))
    except (KeyboardInterrupt, SystemExit) as stop:
        result.set_stopped(stop)
    with deferred_signals() as signals:
        from epochmeter.console.run_end import print_run
        from epochmeter.run.record_end import end_record

        terminal.window_closed()
        end_record(plan, result)
        result.recorded = True
    if signals and result.stop is None:
        result.stop = KeyboardInterrupt() if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])
    terminal.stage("Publishing to MLflow")
    try:
        set_links(tracker.close(ended=result.state), tracker.exported, result)
    except (KeyboardInterrupt, SystemExit) as stop:
        text, hint = "stopped while publishing to MLflow; the record is complete", "the next command publishes the rest"
        problem = Problem(text, f"{hint}, or: {tracker.publish_command()}")
        result.publish_error = format_problem(problem, "warning")
        result.stop = result.stop or stop
    terminal.end_stage()
    if plan.script_node.is_first:  # which has the results of all nodes
        print_run(terminal, plan.record.windows(), plan.job, result)
    else:
        terminal.failed(result)


def set_links(published: Published | str | None, exported: Sequence[Exported], result: RunResult) -> None:
    """Set the addresses of a published run in its result, or why it was not published."""
    for each in exported:
        if each.problem is None:
            result.exports[each.exporter] = each.where
        elif result.folder:
            result.export_errors.append(export_warning(each, display_path(result.folder.parent)))
    if isinstance(published, str):
        result.publish_error = published
    elif published:
        result.run_link = views.run_link(published)
        sweep = result.folder.parent.name if result.of_sweep and result.folder else None
        if result.state == "completed":  # the comparison shows no other runs
            result.compare_link = views.results_link(published, sweep)


def remove_empty_folders(request: RunRequest) -> None:
    """Remove the folders of a refused run, if they are empty."""
    for folder in (request.folder, request.folder.parent):
        with suppress(OSError):
            folder.rmdir()
