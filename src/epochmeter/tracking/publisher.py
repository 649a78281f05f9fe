"""Publishing while a run is under way: between its windows only, and never to its harm."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from epochmeter.config.secrets import redacted
from epochmeter.results.run_status import RUNNING, state
from epochmeter.shared.record import Record
from epochmeter.tracking import queue, views
from epochmeter.tracking.client import EXPERIMENT, Place, Store, load_mlflow, open_store, place
from epochmeter.tracking.publish import Published, include, is_superseded, publishing, reaping
from epochmeter.tracking.tensorboard import Events

LOADING_LIMIT_S = 60.0
CATCHING_UP_S = 10.0
"""How long a run, once it is shown, may take to show what earlier ones have left: the next one goes on with it."""
SETTLING_S = 3.0
"""How long an earlier run's last call may take before its being waited for is told."""
SETTLING_LIMIT_S = 600.0
AT_WORK = threading.Lock()
"""Held by the one publisher that works: a later run's waits for an earlier one's last call."""


class Tracker(Protocol):
    """Shows a run as it goes: asked to between its windows only."""

    def settle(self, say: Callable[[str], object]) -> list[str]:
        """Waits until nothing of an earlier run is under way any more, before anything is measured; what to note of
        what would not end."""

    def start(self) -> None:
        """Begins, before the worker does."""

    def between(self, limit_s: float = 1.0) -> None:
        """Shows what the record holds by now, for so long at most."""

    def close(self, limit_s: float = 30.0, ended: str | None = None) -> Published | str | None:
        """Shows the end; where that is in MLflow, or why it is not there, or None where it is not meant to be."""


class Publisher:
    """Publishes a record from a thread that works when asked to, and keeps still while a window is open.

    start ....... MLflow is imported and the run made, earlier runs whose process died are ended and the views saved,
                  while the worker starts
    between ..... what the record holds by now is published; a call in flight is the most that a window sees
    close ....... the end is published, and then what earlier runs have left in the queue while MLflow was away, as far
                  as it is meant for the same place, `where`
    """

    def __init__(self, record: Record, open_store: Callable[[], Store] = open_store, where: Place | None = None):
        self._record = record
        self._open_store = open_store
        self._where = where
        self._store: Store | None = None
        self._loaded = threading.Event()
        self._patience_s = LOADING_LIMIT_S
        self._ended: str | None = None
        self._tidy = False
        self._outcome: Published | str | None = None
        self._deadline = math.inf
        self._thread = threading.Thread()

    def settle(self, say: Callable[[str], object]) -> list[str]:
        """Waits for an earlier run's last call, which nothing can interrupt: an upload may take a board minutes."""
        ended = AT_WORK.acquire(timeout=SETTLING_S)
        if not ended:
            say(f"Waiting up to {SETTLING_LIMIT_S:g} s until an earlier run is published to MLflow.")
            ended = AT_WORK.acquire(timeout=SETTLING_LIMIT_S)
        if ended:
            AT_WORK.release()
            return []
        return [f"an earlier run was still being published to MLflow after {SETTLING_LIMIT_S:g} s, during this one."]

    def start(self) -> None:
        """Begins, and returns at once."""
        self._ask(math.inf, self._steps)

    def between(self, limit_s: float = 1.0) -> None:
        """Publishes what the record holds, for so long at most; what is left waits until asked again.

        The first time it also waits for an earlier run's last call and for MLflow's import, which nothing can interrupt
        and no window should see.
        """
        self._loaded.wait(self._patience_s)
        self._patience_s = 0.0
        self._publish_within(limit_s)

    def close(self, limit_s: float = 30.0, ended: str | None = None) -> Published | str:
        """Publishes the end, and returns its place in MLflow, or why it has none and what to do.

        `ended` is how the run ended (whole, failed or killed), for a record that could not be written to its end.
        """
        self._ended = ended
        self._publish_within(limit_s)
        shown = self._outcome
        if isinstance(shown, Published):
            queue.drop(self._record)
            if any(waiting_for(self._where, queue.multirun_of(self._record))):
                self.catch_up(CATCHING_UP_S)
            return shown
        why = shown or f"no answer within {limit_s:g} s"
        return (
            f"warning: not all of this run was published to MLflow: {why}\n"
            f"  hint: its record is complete; once MLflow is available: python src/publish.py {self._record.folder}"
        )

    def catch_up(self, limit_s: float) -> str | None:
        """Publishes what earlier runs have left, for so long at most; what kept some of it from being published."""
        self._work_within(limit_s, self._catching_up)
        return self._outcome if isinstance(self._outcome, str) else None

    def include(self, folders: Sequence[Path], limit_s: float) -> Published | str:
        """Publish the runs that a sweep reuses as part of the sweep; returns one of them in MLflow, or the error.

        Args:
            folders: the folders of the sweep's runs that refer to completed ones.
            limit_s: how long it may take.
        """

        def steps() -> Iterator[None]:
            store = yield from self._opened()
            published = None
            for folder in folders:
                published = include(folder, store) or published
                yield
            yield from views.saving(store, sweep=folders[0].parent.name)
            self._outcome = published

        self._work_within(limit_s, steps)
        return self._outcome or f"no answer within {limit_s:g} s"

    def _publish_within(self, limit_s: float) -> None:
        self._work_within(limit_s, self._steps)

    def _work_within(self, limit_s: float, steps: Callable[[], Iterator[None]]) -> None:
        self._deadline = time.monotonic() + limit_s
        if self._thread.is_alive():  # a call that was asked for earlier may still hang
            self._thread.join(limit_s)
        if not self._thread.is_alive():
            self._ask(self._deadline, steps)
            self._thread.join(max(0.0, self._deadline - time.monotonic()))

    def _ask(self, deadline: float, steps: Callable[[], Iterator[None]]) -> None:
        self._outcome, self._deadline = None, deadline
        self._thread = threading.Thread(target=self._work, args=(steps,), name="publisher", daemon=True)
        self._thread.start()

    def _work(self, steps: Callable[[], Iterator[None]]) -> None:
        with AT_WORK:
            try:
                for _ in steps():
                    if time.monotonic() > self._deadline:
                        return
            except Exception as error:  # whatever MLflow raises, the run goes on
                self._outcome = reason(error)

    def _steps(self) -> Iterator[None]:
        """All there is to do by now, a call at a time: at each yield the deadline may end it."""
        yield
        store = yield from self._opened()
        for published in publishing(self._record, store, self._ended):  # noqa: B007 (the last one counts)
            yield
        self._outcome = published
        if not self._tidy:
            yield from self._tidying(store)
            self._tidy = True

    def _opened(self) -> Generator[None, None, Store]:
        if not self._store:
            try:
                load_mlflow()
            finally:
                self._loaded.set()
            yield
            self._store = self._open_store()
            yield
        return self._store

    def _tidying(self, store: Store) -> Iterator[None]:
        """What is no part of the run, and is done once: the views, and earlier runs whose process died."""
        run = self._record.run()
        yield from views.saving(store, self._record, run["sweep_id"] if run.get("of_sweep") else None)
        with suppress(Exception):
            for _ in reaping(store):
                yield

    def _catching_up(self) -> Iterator[None]:
        """Publishes what earlier runs have left, as far as it is meant for the same place."""
        store = yield from self._opened()
        for record in waiting_for(self._where, queue.multirun_of(self._record)):
            try:
                for _ in publishing(record, store):
                    yield
                queue.drop(record)
            except Exception as error:  # one that is broken, or that MLflow refuses, keeps no other from being shown
                self._outcome = reason(error)
                store.client.get_experiment(store.experiment_id)  # a server that is away is not waited for once more
                yield


class Unpublished:
    """Stands for a publisher where nothing is to be shown: `tracking=none`."""

    def __init__(self, record: Record):
        self._record = record

    def settle(self, say: Callable[[str], object]) -> list[str]:
        return []

    def start(self) -> None:
        pass

    def between(self, limit_s: float = 1.0) -> None:
        pass

    def close(self, limit_s: float = 30.0, ended: str | None = None) -> None:
        queue.drop(self._record)


class WithEvents:
    """A tracker with an event file for TensorBoard beside it; what goes wrong with the file ends that alone."""

    def __init__(self, tracker: Tracker, events: Events):
        self._tracker = tracker
        self._events: Events | None = events

    def settle(self, say: Callable[[str], object]) -> list[str]:
        return self._tracker.settle(say)

    def start(self) -> None:
        self._write(Events.open)
        self._tracker.start()

    def between(self, limit_s: float = 1.0) -> None:
        self._write(Events.add)
        self._tracker.between(limit_s)

    def close(self, limit_s: float = 30.0, ended: str | None = None) -> Published | str | None:
        self._write(Events.finish)
        return self._tracker.close(limit_s, ended)

    def _write(self, write: Callable[[Events], object]) -> None:
        try:
            if self._events:
                write(self._events)
        except Exception as error:
            self._events = None
            logging.getLogger(__name__).warning("TensorBoard does not show all of this run: %s", reason(error))


def publisher(record: Record, **tracking: Any) -> Tracker:
    """The tracker that `tracking=` asks for, by its keys."""
    where = place({"experiment": EXPERIMENT, **tracking})
    tracker = Publisher(record, partial(open_store, *where), where) if where else Unpublished(record)
    return WithEvents(tracker, Events(record)) if tracking.get("tensorboard") else tracker


def waiting_for(where: Place | None, multirun: Path) -> Iterator[Record]:
    """The records in the queue of runs that are over, and are to be shown there; none where there is no such place."""
    for record in queue.waiting(multirun) if where else ():
        with suppress(*queue.UNREADABLE):
            if is_superseded(record):
                queue.drop(record)
            elif place(record.job()["tracking"]) == where and state(record) != RUNNING:
                yield record


def catch_up(multirun: Path, tracking: Mapping[str, Any], limit_s: float = 30.0) -> str | None:
    """Shows what earlier runs have left in the queue, where none is measured; or says why not."""
    where = place(tracking)
    left = next(waiting_for(where, multirun), None)
    if where is None or left is None:
        return None
    why = Publisher(left, partial(open_store, *where), where).catch_up(limit_s)
    if not any(waiting_for(where, multirun)):
        return None
    why = why or f"not all were published within {limit_s:g} s"
    return (
        f"warning: earlier runs are not published to MLflow yet: {why}\n"
        "  hint: their records are complete; once MLflow is available: make publish"
    )


def include_all(folders: Sequence[Path], tracking: Mapping[str, Any], limit_s: float = 30.0) -> Published | str | None:
    """Publish the runs that a sweep reuses as part of the sweep; None if there is nothing to publish.

    Args:
        folders: the folders of the sweep's runs that refer to completed ones.
        tracking: the tracking keys of the sweep's runs.
        limit_s: how long it may take.

    Returns:
        One of the runs in MLflow, or a warning if not all are published.
    """
    where = place(tracking)
    if where is None or not folders:
        return None
    done = Publisher(Record(folders[0]), partial(open_store, *where), where).include(folders, limit_s)
    if isinstance(done, Published):
        return done
    return f"warning: MLflow does not show the reused runs in this sweep: {done}\n  hint: run the same command again"


def reason(error: Exception) -> str:
    """The first line of an error, which with MLflow may go on for pages, less any secret in it."""
    text = redacted(str(error).partition("\n")[0]) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
