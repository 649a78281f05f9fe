"""A record's scalars in an event file beside it, for TensorBoard: those that MLflow is shown, at the same steps.

The record is the truth and the file its index, which is written anew, from all that the record holds, whenever its run
begins, goes on, or is asked for later. No torch and no TensorFlow takes part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from epochmeter.shared.record import Record
from epochmeter.tracking import scalars
from epochmeter.tracking.scalars import Scalar
from epochmeter.tracking.state import EVENTS, state

if TYPE_CHECKING:
    from tensorboard.summary import Writer


def check(tracking: Mapping[str, Any]) -> None:
    """Refuses to begin what could not be shown: ValueError where TensorBoard is asked for, and its package missing."""
    asked = tracking.get("tensorboard", False)
    if not isinstance(asked, bool):
        raise ValueError(f"tracking.tensorboard={asked}: give true or false.")
    if asked and find_spec("tensorboard") is None:
        raise ValueError(
            "TensorBoard's event files are written by the package tensorboard, which this Python has not. Install it: "
            "make .venv/.with-tensorboard, or pip install tensorboard; or leave out tracking.tensorboard=true."
        )


def write(record: Record) -> None:
    """Writes the event file of a run that has ended; that of one under way is its own steward's to write."""
    if state(record) != "RUNNING":
        Events(record).finish()


class Events:
    """Writes what the record holds by now whenever it is asked to, and does nothing in between."""

    def __init__(self, record: Record):
        self._record = record
        self._writer: Writer | None = None
        self._known = 0

    def open(self) -> Writer:
        """Begins the file, in place of those of earlier attempts."""
        from tensorboard.summary import Writer

        if self._writer is None:
            for earlier in self._record.folder.glob(f"{EVENTS}*"):
                earlier.unlink()
            self._writer = Writer(str(self._record.folder))
        return self._writer

    def add(self) -> None:
        """Adds the windows that are new; they can be read when this returns."""
        windows = self._record.windows()
        for found in scalars.of_windows(self._record, windows, self._known):
            self._log(found)
        self._known = len(windows)
        self.open().flush()

    def finish(self) -> None:
        """Adds what is left, with the run's means, its totals and its power, and ends the file."""
        self.add()
        if summary := self._record.summary():
            self._log(scalars.of_summary(self._record, summary))
            self._log(scalars.of_power(self._record, self._record.windows()))
        self.open().close()

    def _log(self, found: Iterable[Scalar]) -> None:
        writer = self.open()
        for scalar in found:
            writer.add_scalar(scalar.name, scalar.value, scalar.step, wall_time=scalar.when_ms / 1000)
