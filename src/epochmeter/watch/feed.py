"""The state of a folder as JSON for the page: one reading per second for all viewers, and changes only."""

from __future__ import annotations

import json
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from epochmeter.config.errors import InputError
from epochmeter.results.reuse import READ_ERRORS
from epochmeter.watch.appended import Series
from epochmeter.watch.snapshot import Snapshot

PERIOD_S = 1.0
"""Shortest time between two readings of the folder."""
TIMES = ("at_s", "elapsed_s", "silent_s", "duration_s")
"""Fields that change although the record has not; the page counts on by itself."""
CORE = re.compile(r"cpu\d+_utilization")
"""Gauges of which the page shows the latest value only."""


@dataclass(frozen=True)
class Reading:
    """What a folder showed at one moment.

    Attributes:
        version: Increases with each change.
        snapshot: The last state that could be read.
        error: Why the folder cannot be read now; empty if it can be.
        change: The state as JSON, with the samples and the rows that the previous version does not have.
    """

    version: int
    snapshot: Snapshot
    error: str = ""
    change: str = ""

    @cached_property
    def state(self) -> str:
        """The state as JSON."""
        return to_json(self.snapshot, self.error, is_full=True)


class Feed:
    """The state of a folder, read at most once per `PERIOD_S`, however many threads ask for it.

    Args:
        read: Function that returns the state now.
    """

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read, self._lock = read, threading.Lock()
        self._reading = Reading(0, read())
        self._content, self._due_s = "", time.monotonic() + PERIOD_S

    def latest(self) -> Reading:
        """Return the state, at most `PERIOD_S` old."""
        with self._lock:
            if time.monotonic() >= self._due_s:
                self._update(self._reading)
                self._due_s = time.monotonic() + PERIOD_S
            return self._reading

    def _update(self, before: Reading) -> None:
        try:
            snapshot, error = self._read(), ""
        except (InputError, *READ_ERRORS) as failure:
            snapshot, error = before.snapshot, str(failure) or type(failure).__name__
        changed = changes_since(before.snapshot, snapshot)
        content = to_json(changed, error, without=TIMES)
        if content != self._content:
            self._reading = Reading(before.version + 1, snapshot, error, to_json(changed, error))
            self._content = content


def changes_since(before: Snapshot, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the samples and the rows of a sweep that an earlier one has."""
    views = {view.folder: view for view in before.active}
    active = [
        replace(view, power=_newer(view.power, earlier.power), gauges=_newer(view.gauges, earlier.gauges))
        if (earlier := views.get(view.folder))
        else view
        for view in snapshot.active
    ]
    rows = {row.number: row for row in before.runs}
    return replace(snapshot, active=active, runs=[row for row in snapshot.runs if row != rows.get(row.number)])


def _newer(series: Mapping[str, Series], earlier: Mapping[str, Series]) -> dict[str, Series]:
    """Return new samples, and those of the last second of the earlier ones, as it may have more now."""
    cut = {}
    for name, own in series.items():
        first = bisect_left(own.times_s, earlier[name].times_s[-1]) if name in earlier else 0
        cut[name] = replace(own, times_s=own.times_s[first:], values=own.values[first:])
    return cut


def to_json(snapshot: Snapshot, error: str = "", *, is_full: bool = False, without: tuple[str, ...] = ()) -> str:
    """Return a state as JSON that has no `<`, so that it can be part of HTML; numbers that are not finite are null.

    Args:
        is_full: Whether it has everything, or only the changes.
        without: Names of fields to leave out.
    """

    def convert(part: Any) -> object:
        if isinstance(part, Series):
            values = [float(f"{value:.4g}") for value in part.values]  # for lines of 100 pixels
            return {"latest": part.latest, "times_s": [round(time_s, 2) for time_s in part.times_s], "values": values}
        fields = {name: value for name, value in vars(part).items() if name not in without}
        if "gauges" in fields:
            fields["gauges"] = {
                name: Series((), (), own.latest) if CORE.fullmatch(name) else own for name, own in part.gauges.items()
            }
        return fields

    state = {"is_full": is_full, "error": error, "snapshot": snapshot}
    try:
        text = json.dumps(state, default=convert, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a diverged loss
        finite = json.loads(json.dumps(state, default=convert), parse_constant=lambda name: None)
        text = json.dumps(finite, separators=(",", ":"))
    return text.replace("<", "\\u003c")
