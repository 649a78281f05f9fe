"""The end of a run, whatever it is: told by its record, by MLflow and in the terminal."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from epochmeter.config.job import recorded_job
from epochmeter.config.schema import Job
from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal
from epochmeter.machine.signals import deferred_signals, prefer_stop
from epochmeter.results.run_result import RunResult, is_measured, no_energy_reason
from epochmeter.results.run_status import FAILED, KILLED, recorded_status, status_of
from epochmeter.results.summary import collect_notes, no_total_note, summarize, variance_warning
from epochmeter.results.throughput import measure_throughput
from epochmeter.run.oom_hint import oom_message
from epochmeter.run.plan import Plan, write_error
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.record import Record
from epochmeter.sweep.sweep_folder import is_remote
from epochmeter.tracking import queue, views
from epochmeter.tracking.client import destination_of
from epochmeter.tracking.publish import Published
from epochmeter.tracking.publisher import Tracker

NUMBER = re.compile(r"\d+(\.\d+)?")
ABORTED_MESSAGE = "epochmeter was killed, the machine stopped, or the disk was full before the run ended"


@contextmanager
def finalizing(plan: Plan, outcome: RunResult, publish: Tracker, terminal: Terminal) -> Iterator[None]:
    """Whatever ends the run, its record, MLflow and the terminal tell how."""
    try:
        with prefer_stop():
            yield
    except WorkerError as error:
        ran_out = error.failure == "oom"
        outcome.set_failed(error.failure, oom_message(str(error), plan.record) if ran_out else str(error))
    except (ValueError, RuntimeError, OSError) as error:
        outcome.set_failed("exception", str(error))
    except Exception as error:
        # An error of ours rather than of the job or the machine: the next run of a sweep is still worth having.
        traceback.print_exc()
        outcome.set_failed("exception", f"{type(error).__name__}: {error}")
    except (KeyboardInterrupt, SystemExit) as stop:
        outcome.set_stopped(stop)
    terminal.window_closed()
    with deferred_signals() as came:  # a second Ctrl-C costs no summary
        write_summary(plan, outcome)
        outcome.recorded = True
    if came and outcome.stop is None:
        outcome.stop = KeyboardInterrupt() if came[0] == signal.SIGINT else SystemExit(128 + came[0])
    terminal.stage("Publishing to MLflow")
    try:
        note_links(publish.close(ended=outcome.state), outcome)
    except (KeyboardInterrupt, SystemExit) as stop:
        outcome.publish_error = (
            "warning: stopped while publishing to MLflow; the record is complete\n"
            f"  hint: the next command publishes the rest, or: python src/publish.py {plan.record.folder}"
        )
        outcome.stop = outcome.stop or stop
    terminal.stage()
    terminal.run_finished(plan.record.windows(), plan.job, outcome, plan.of_sweep)


def write_summary(plan: Plan, outcome: RunResult) -> None:
    """Writes the summary; a storage that takes no more fails the run, and loses nothing that it has."""
    outcome.notes += resume_hint(plan) if outcome.state != "completed" else []
    try:
        summary = build_summary(plan.record, plan.job, plan.run, outcome)
        ended = datetime.now().astimezone().isoformat()
        plan.record.write_summary({**summary, "ended": ended}, plan.run["identity"], plan.run.get("configuration"))
    except OSError as error:
        outcome.set_failed("exception", write_error(error))


def close_orphans(multirun: Path, say: Callable[[str], None]) -> None:
    """Tells the ends of runs that never did: of those in the queue whose process, of this host, is gone.

    Of what a node leaves behind Slurm knows more, and its sender tells it. One that cannot be read or written keeps no
    other from its end.
    """
    for record in queue.pending_runs(multirun):
        with suppress(*queue.READ_ERRORS), record.locked():
            if is_remote(record.folder.parent):
                continue
            ended = status_of(record)
            if ended in (FAILED, KILLED) and not recorded_status(record):
                job, run = recorded_job(record.job()), record.run()
                outcome = RunResult(run["number"], run["overrides"])
                outcome.state, outcome.kind, outcome.failure = ended, "killed", ABORTED_MESSAGE
                record.write_summary(
                    build_summary(record, job, run, outcome), run["identity"], run.get("configuration")
                )
                if destination_of(job.tracking.to_dict()) is None:  # nothing of it is left to tell
                    queue.dequeue(record)
                say(f"run {record.folder.relative_to(multirun)} is marked as {ended}: {ABORTED_MESSAGE}")


def build_summary(record: Record, job: Job, run: Mapping[str, Any], outcome: RunResult) -> dict[str, Any]:
    """What the summary holds: the outcome, with means, totals and notes of what was measured."""
    windows = record.windows()
    outcome.notes = dedupe_notes([*outcome.notes, *collect_notes(windows)])
    if windows:
        outcome.no_energy = no_energy_reason(run)
        if is_measured(run) and (less := run["energy"]["reason"]):  # less was measured than was asked for
            outcome.notes.append(f"energy was measured in part: {less}")
        outcome.metrics = summarize(windows, record.steps(), job)
        outcome.notes += [*no_total_note(windows), *variance_warning(outcome.metrics)]
        between = measure_throughput(windows, record.steps(), job)
        outcome.metrics.update(between.metrics)
        outcome.notes += [f"no throughput: {between.reason}"] if between.reason else []
        epochs, warmup = outcome.metrics["total/epochs"], job.warmup_epochs
        if epochs <= warmup and outcome.state == "completed" and not between.metrics:
            outcome.notes.append(f"no means: all {epochs:g} epochs are warm-up (`warmup_epochs={warmup}`)")
    outcome.metrics.update(run_metrics(run))
    failure = {"kind": outcome.kind, "message": outcome.failure} if outcome.failure else None
    summary: dict[str, Any] = redact_tree(
        {"state": outcome.state, "metrics": outcome.metrics, "notes": outcome.notes, "failure": failure}
    )
    return summary


def resume_hint(plan: Plan) -> list[str]:
    """What to say of a run that was ended before its end, and has left what it can go on from."""
    told = plan.record.checkpoint()
    if told is None or told["record_id"] != plan.run["record_id"]:
        return []
    epochs = f"{told['epochs']} epoch{'s' if told['epochs'] > 1 else ''}"
    how = (
        "run the same command again to resume"
        if plan.of_sweep or is_remote(plan.record.folder.parent)
        else "run the same command with `sweep.resume=true` to resume"
    )
    return [f"a checkpoint after {epochs} is kept: {how}"]


def run_metrics(run: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are no window's: of the model, of the machine at rest, and of what it was set to."""
    idle = run.get("idle", {})
    of_run = {
        **{f"model/{name}": value for name, value in run.get("model", {}).items()},
        "total/idle_power_w": idle.get("before_w"),
        "total/idle_power_after_w": idle.get("after_w"),
        "total/power_limit_w": run["power_limit_w"],
        "total/power_limit_max_w": run["power_limit_max_w"],
    }
    return {name: value for name, value in of_run.items() if value is not None}


def dedupe_notes(notes: Sequence[str]) -> list[str]:
    """The first of all notes that are alike but for their numbers, with how many more there were."""
    alike: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        alike.setdefault(NUMBER.sub("#", note), []).append(note)
    return [first + (f" ({len(more)} more)" if more else "") for first, *more in alike.values()]


def note_links(published: Published | str | None, outcome: RunResult) -> None:
    """Notes where the run is shown: its page, and, of one that is completed, the view that compares it; or why not."""
    if isinstance(published, str):
        outcome.publish_error = published
    elif published:
        outcome.run_link = views.run_link(published)
        # The view leaves out runs that failed: of those alone it would be an empty page.
        sweep = outcome.folder.parent.name if outcome.of_sweep and outcome.folder else None
        link = views.results_link(published, sweep, bool(outcome.rehearsal))
        outcome.compare_link = link if outcome.state == "completed" else None
