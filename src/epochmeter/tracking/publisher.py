"""Publish a run to MLflow while it is measured: in a background thread and between windows only."""

import logging
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from epochmeter.results.appended_file import WindowLog
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.run_status import COMPLETED, RUNNING
from epochmeter.shared.problem import Problem, format_problem
from epochmeter.shared.record import Record
from epochmeter.tracking import queue, views
from epochmeter.tracking.client import (
    EXPERIMENT,
    Destination,
    Store,
    configured_uris,
    destination_of,
    load_mlflow,
    open_store,
)
from epochmeter.tracking.deadline import DeadlinePassed, interrupt
from epochmeter.tracking.export_process import Exported, ExportProcess
from epochmeter.tracking.exporter import exporter_names
from epochmeter.tracking.publish import Published, close_dead_runs, include_reused, is_superseded, publish
from epochmeter.tracking.reasons import error_reason
from epochmeter.tracking.run_export import publishable, run_params
from epochmeter.tracking.tensorboard import Events

LOADING_LIMIT_S = 60.0
CLOSE_LIMIT_S = 15.0  # time limit for publishing the end of a run, and then queued runs
BESIDE_LIMIT_S = 5.0  # time limit for publishing while a script runs
CATCH_UP_LIMIT_S = 10.0  # time limit for the queued runs; the next run continues
REUSED_LIMIT_S = 5.0  # time limit for including reused runs, at the end of a sweep
MAX_FRACTION = 0.02
"""Largest fraction of a training's time that its publication between windows takes."""
NOTICE_S = 3.0  # wait for an earlier run's last call before a message about it
PREVIOUS_LIMIT_S = 600.0  # time limit of that wait
Work = Callable[[Store], Iterator[Published | str | None]]
PUBLISH_LOCK = threading.Lock()
"""Held by the publisher that works: a later run's publisher waits for an earlier one's last call."""


class CheckedClient:
    """An MLflow client that calls `check` before each of its calls."""

    def __init__(self, client: object, check: Callable[[], None]):
        self._client, self._check = client, check

    def __getattr__(self, name: str) -> Any:
        self._check()
        return getattr(self._client, name)


class MlflowThread:
    """Calls MLflow in a background thread, which is idle during windows: each piece of work has a time limit.

    The work is a generator. It gets the open destination, and yields its outcome so far: a run in MLflow, or an error.
    """

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self._store: Store | None = None
        self._loaded, self._loading_limit_s = threading.Event(), LOADING_LIMIT_S
        self._outcome: Published | str | None = None
        self._deadline = math.inf
        self._thread = threading.Thread()

    def work_within(self, limit_s: float, work: Work) -> Published | str:
        """Do some work for at most this time; return its outcome so far."""
        deadline = self._deadline = time.monotonic() + limit_s
        if self._thread.is_alive():  # an earlier call may still hang
            self._thread.join(limit_s)
        if not self._thread.is_alive():
            self.start(work, deadline)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return self._outcome or f"no answer within {limit_s:g} s"

    def finish_within(self, limit_s: float, work: Work) -> Published | str:
        """Do some work for at most this time, and end a call that lasts longer; return the work's outcome so far."""
        outcome = self.work_within(limit_s, work)
        if self._loaded.is_set():  # an import that ended in the middle could not be repeated
            interrupt(self._thread)
        return outcome

    def start(self, work: Work, deadline: float = math.inf) -> None:
        """Begin some work; no call to MLflow begins after the deadline, which is a time of the monotonic clock."""
        self._outcome, self._deadline = None, deadline
        self._thread = threading.Thread(target=self._do, args=(work,), name="publisher", daemon=True)
        self._thread.start()

    def start_within(self, limit_s: float, work: Work) -> None:
        """Begin some work for at most this time, unless an earlier call still lasts."""
        if not self._thread.is_alive():
            self.start(work, time.monotonic() + limit_s)

    @property
    def run_link(self) -> str | None:
        """Address of the run as far as it was published; None if it is not known."""
        return views.run_link(self._outcome) if isinstance(self._outcome, Published) else None

    def wait_until_loaded(self) -> None:
        """Wait, once, for MLflow's import and an earlier run's last call, which cannot be interrupted."""
        if self._thread.is_alive():
            self._loaded.wait(self._loading_limit_s)
            self._loading_limit_s = 0.0

    def _do(self, work: Work) -> None:
        with suppress(DeadlinePassed), PUBLISH_LOCK:
            try:
                for outcome in work(self._opened()):
                    self._outcome = outcome
            except Exception as error:  # whatever MLflow raises, the run continues
                self._outcome = error_reason(error)

    def _opened(self) -> Store:
        """Import MLflow and open the destination, once."""
        if not self._store:
            try:
                load_mlflow()
            finally:
                self._loaded.set()
            self._check_deadline()
            store = open_store(*self.destination)
            self._store = store._replace(client=cast("Any", CheckedClient(store.client, self._check_deadline)))
        return self._store

    def _check_deadline(self) -> None:
        if time.monotonic() > self._deadline:
            raise DeadlinePassed


class Tracker:
    """Follows a run, between windows only: publishes its record to MLflow and writes TensorBoard event files.

    Without a destination, nothing is published. An error in writing event files ends only their writing. Exports to
    other trackers are processes that work beside the run.

    Attributes:
        exported: How the exports ended, when the tracker is closed.
    """

    def __init__(
        self, record: Record, destination: Destination | None = None, events: Events | None = None,
        exports: Sequence[ExportProcess] = (),
    ) -> None:  # fmt: skip
        self._record, self._events, self._exports = record, events, exports
        self.exported: list[Exported] = []
        self._log = WindowLog(record.folder)
        self._mlflow = MlflowThread(destination) if destination else None
        self._ended: str | None = None
        self._housekeeping_done = False
        self._views: views.SavedViews | None = None  # those that this run has saved
        self._next_s = -math.inf  # when the next publication between windows may begin

    def wait_for_previous(self, notify: Callable[[str], object]) -> list[str]:
        """Wait, before measuring, for the calls of earlier runs; return notes about calls that do not end."""
        ended = PUBLISH_LOCK.acquire(timeout=NOTICE_S)
        if not ended:
            notify(f"Waiting up to {PREVIOUS_LIMIT_S:g} s until an earlier run is published to MLflow.")
            ended = PUBLISH_LOCK.acquire(timeout=PREVIOUS_LIMIT_S)
        if ended:
            PUBLISH_LOCK.release()
            return []
        return [f"an earlier run was still being published to MLflow after {PREVIOUS_LIMIT_S:g} s, during this one."]

    @property
    def export_pids(self) -> list[int]:
        """The processes of exporters, which are no part of the run."""
        return [pid for export in self._exports for pid in export.pids]

    def open(self) -> None:
        """Create the event file, and start the processes of exporters."""
        self._write_events(Events.open)
        for export in self._exports:
            export.start()

    def start(self) -> None:
        """Import MLflow, create the run, end runs whose process died, and save the views, while training starts."""
        if self._mlflow:
            self._mlflow.start(self._publish_record)

    def flush(self, limit_s: float = 1.0) -> None:
        """Publish the record's current content, within a time limit; at most one call can reach into a window."""
        self._write_beside()
        if self._mlflow:
            self._mlflow.wait_until_loaded()
            self._mlflow.work_within(limit_s, self._publish_record)

    def follow(self) -> None:
        """Publish the record's current content between two windows, unless that would take too much of the time."""
        begun_s = time.monotonic()
        if begun_s >= self._next_s:
            self.flush()
            ended_s = time.monotonic()
            self._next_s = ended_s + (ended_s - begun_s) * (1 / MAX_FRACTION - 1)

    def publish_beside(self, limit_s: float = BESIDE_LIMIT_S) -> None:
        """Begin to publish the record's current content beside a script, which is not waited for either."""
        self._write_beside()
        if self._mlflow:
            self._mlflow.start_within(limit_s, self._publish_record)

    def close(self, limit_s: float = CLOSE_LIMIT_S, ended: str | None = None) -> Published | str | None:
        """Publish the end, and then queued runs; return the run in MLflow, or a warning, or None without MLflow.

        `ended` is the state of the run, for a record whose end could not be written. Exports end at the same time.
        """
        self._write_events(Events.finish)
        deadline = time.monotonic() + limit_s
        address = self._mlflow.run_link if self._mlflow else None
        for export in self._exports:
            export.end(ended, {"MLflow": address} if address else {})
        try:
            outcome = self._publish_end(limit_s, ended)
            self.exported = [export.wait(deadline - time.monotonic()) for export in self._exports]
        finally:
            for export in self._exports:
                export.kill()
        return outcome

    def _publish_end(self, limit_s: float, ended: str | None) -> Published | str | None:
        self._ended, deadline = ended, time.monotonic() + limit_s
        outcome = self._mlflow.finish_within(limit_s, self._publish_record) if self._mlflow else None
        if isinstance(outcome, str):
            hint = f"the records are complete; once MLflow is available: {self.publish_command()}"
            return format_problem(Problem(f"not everything was published to MLflow: {outcome}", hint), "warning")
        queue.dequeue(self._record)
        if self._mlflow:
            rest_s = min(CATCH_UP_LIMIT_S, deadline - time.monotonic())
            publish_queued(self._mlflow, queue.multirun_of(self._record), rest_s)
        return outcome

    def publish_command(self) -> str:
        """Return the command that publishes the sweep of this run: one text for all runs of the sweep."""
        address = []
        if self._mlflow and (uri := self._mlflow.destination.uri) not in configured_uris():
            address = ["--uri", uri]  # else the command would not know it
        return shlex.join(["python", "src/publish.py", *address, str(self._record.folder.parent)])

    def _write_beside(self) -> None:
        self._write_events(Events.add)
        for export in self._exports:
            export.look()

    def _write_events(self, write: Callable[[Events], object]) -> None:
        try:
            if self._events:
                write(self._events)
        except Exception as error:
            self._events = None
            logging.getLogger(__name__).warning("TensorBoard does not show all of this run: %s", error_reason(error))

    def _publish_record(self, store: Store) -> Iterator[Published]:
        yield publish(self._record, store, self._ended, self._log)
        folder = RunFolder(self._record.folder)
        if self._ended or not self._housekeeping_done:  # at the end too, as views depend on the metrics of all runs
            if folder.state == COMPLETED and self._views:
                self._views = self._views.with_run(shown_run(folder))
            sweep = folder.run.sweep_id if folder.run.of_sweep else None
            self._views = views.save_views(store, sweep, self._views)
        if not self._housekeeping_done:
            with suppress(Exception):
                close_dead_runs(store)
            self._housekeeping_done = True


def shown_run(folder: RunFolder) -> views.ShownRun:
    """Return what the views show of a completed run."""
    metrics = publishable((folder.summary or {}).get("metrics", {}))
    return views.ShownRun(run_params(folder), [*metrics])


def make_tracker(record: Record, **tracking: Any) -> Tracker:
    events = Events(record) if tracking.get("tensorboard") else None
    exports = [ExportProcess(name, record) for name in exporter_names(tracking.get("also"))]
    return Tracker(record, destination_of({"experiment": EXPERIMENT, **tracking}), events, exports)


def pending_records(destination: Destination, multirun: Path) -> Iterator[Record]:
    """Yield the queued records of finished runs with this destination."""
    for record in queue.pending_runs(multirun):
        with suppress(*READ_ERRORS):
            run_folder = RunFolder(record.folder)
            if is_superseded(record):
                queue.dequeue(record)
            elif destination_of(run_folder.job["tracking"]) == destination and run_folder.state != RUNNING:
                yield record


def publish_queued(thread: MlflowThread, multirun: Path, limit_s: float) -> str | None:
    """Publish queued runs with the same destination; return why any is not published, or None if all are."""

    def publish_all(store: Store) -> Iterator[str]:
        for record in pending_records(thread.destination, multirun):
            try:
                publish(record, store)
                queue.dequeue(record)
            except Exception as error:  # a broken or refused record must not block the next
                yield error_reason(error)
                store.client.get_experiment(store.experiment_id)  # raises if the server is down: no second wait

    if not any(pending_records(thread.destination, multirun)):
        return None
    reason = thread.finish_within(limit_s, publish_all)
    return str(reason) if any(pending_records(thread.destination, multirun)) else None


def publish_pending(multirun: Path, tracking: Mapping[str, Any], limit_s: float = CLOSE_LIMIT_S) -> str | None:
    """Publish queued runs while no run is measured; return a warning if not all are published."""
    destination = destination_of(tracking)
    reason = publish_queued(MlflowThread(destination), multirun, limit_s) if destination else None
    if destination is None or not reason:
        return None
    is_configured = destination.uri in configured_uris()
    command = "make publish" if is_configured else shlex.join(["python", "src/publish.py", "--uri", destination.uri])
    hint = f"their records are complete; once MLflow is available: {command}"
    return format_problem(Problem(f"earlier runs are not published to MLflow yet: {reason}", hint), "warning")


def include_all(folders: Sequence[Path], tracking: Mapping[str, Any]) -> Published | str | None:
    """Publish the runs that a sweep's folders reference as part of it; return one of them in MLflow, or a warning."""
    destination = destination_of(tracking)
    if destination is None or not folders:
        return None

    def include(store: Store) -> Iterator[Published | None]:
        published = [include_reused(folder, store) for folder in folders]
        views.save_views(store, folders[0].parent.name)
        yield next(filter(None, reversed(published)), None)

    outcome = MlflowThread(destination).finish_within(REUSED_LIMIT_S, include)
    if isinstance(outcome, Published):
        return outcome
    problem = Problem(f"MLflow does not show the reused runs in this sweep: {outcome}", "run the same command again")
    return format_problem(problem, "warning")
