"""Publishing while a run is under way: between its windows only, and never to its harm."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from trainmeter.record import Record
from trainmeter.tracking import views
from trainmeter.tracking.publish import Published, publishing, reap
from trainmeter.tracking.store import EXPERIMENT, Store, load_mlflow, open_store

LOADING_LIMIT_S = 60.0


class Publisher:
    """Publishes a record from a thread that works when asked to, and keeps still while a window is open.

    start ....... MLflow is imported and the run made, while the worker starts
    between ..... what the record holds by now is published; a call in flight is the most that a window sees
    close ....... the end is published
    """

    def __init__(self, record: Record, open_store: Callable[[], Store] = open_store):
        self._record = record
        self._open_store = open_store
        self._store: Store | None = None
        self._loaded = threading.Event()
        self._outcome: Published | str | None = None
        self._deadline = math.inf
        self._thread = threading.Thread()

    def start(self) -> None:
        """Begins, and returns at once."""
        self._ask(math.inf)

    def between(self, limit_s: float = 1.0) -> None:
        """Publishes what the record holds, for so long at most; what is left waits until asked again.

        The first time it also waits for MLflow's import, which nothing can interrupt and no window should see.
        """
        self._loaded.wait(LOADING_LIMIT_S)
        self._publish_within(limit_s)

    def close(self, limit_s: float = 30.0) -> Published | str:
        """Publishes the end, and returns its place in MLflow, or why it has none and what to do."""
        self._publish_within(limit_s)
        if isinstance(self._outcome, Published):
            return self._outcome
        why = self._outcome if isinstance(self._outcome, str) else f"no answer within {limit_s:g} s"
        return (
            f"MLflow does not show all of this run: {why}. Nothing is lost, its record is complete. "
            f"When MLflow is back: python src/publish.py {self._record.folder}"
        )

    def _publish_within(self, limit_s: float) -> None:
        self._deadline = time.monotonic() + limit_s
        if self._thread.is_alive():  # a call that was asked for earlier may still hang
            self._thread.join(limit_s)
        if not self._thread.is_alive():
            self._ask(self._deadline)
            self._thread.join(max(0.0, self._deadline - time.monotonic()))

    def _ask(self, deadline: float) -> None:
        self._outcome, self._deadline = None, deadline
        self._thread = threading.Thread(target=self._publish, name="publisher", daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        try:
            self._store = self._store or self._open()
            for published in publishing(self._record, self._store):  # noqa: B007 (the last one counts)
                if time.monotonic() > self._deadline:
                    return
            self._outcome = published
        except Exception as error:  # whatever MLflow raises, the run goes on
            self._outcome = reason(error)
            return
        if self._record.summary():
            self._tidy(self._store)

    def _tidy(self, store: Store) -> None:
        """Does at a run's end what is no part of it: the views, and earlier runs whose process died."""
        views.save(store)
        with suppress(Exception):
            reap(store)

    def _open(self) -> Store:
        try:
            load_mlflow()
        finally:
            self._loaded.set()
        return self._open_store()


class Unpublished:
    """Stands for a publisher where nothing is to be shown: `tracking=none`."""

    def start(self) -> None:
        pass

    def between(self, limit_s: float = 1.0) -> None:
        pass

    def close(self, limit_s: float = 30.0) -> None:
        pass


def publisher(record: Record, name: str, experiment: str = EXPERIMENT) -> Publisher | Unpublished:
    """The publisher that `tracking=` asks for."""
    if name == "none":
        return Unpublished()
    return Publisher(record, partial(open_store, experiment))


def reason(error: Exception) -> str:
    """The first line of an error, which with MLflow may go on for pages."""
    text = str(error).partition("\n")[0] or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
