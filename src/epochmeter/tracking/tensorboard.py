"""Write a record's scalars to a TensorBoard event file, with the same values and steps as in MLflow.

The file is derived from the record and rewritten in full whenever the run starts or resumes.
"""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

from epochmeter.config.installation import install_command
from epochmeter.results.appended_file import WindowLog
from epochmeter.results.metrics import find
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import Record
from epochmeter.tracking import run_export
from epochmeter.tracking.run_export import EVENTS, Scalar

if TYPE_CHECKING:
    from tensorboard.summary import Writer


def check_tensorboard(tracking: Mapping[str, Any]) -> None:
    if tracking.get("tensorboard") and find_spec("tensorboard") is None:
        raise input_error(
            "`tracking.tensorboard=true` needs the package tensorboard, which is not installed",
            f"install it: `{install_command('tensorboard')}`; or set `tracking.tensorboard=false`",
        )


class Events:
    """Append new scalars to the event file on request."""

    def __init__(self, record: Record):
        self._record = record
        self._writer: Writer | None = None
        self._windows, self._written_count = WindowLog(record.folder), 0
        self._described: set[str] = set()

    def open(self) -> "Writer":
        """Create the file, replacing those of earlier attempts."""
        from tensorboard.summary import Writer

        if self._writer is None:
            for earlier in self._record.folder.glob(f"{EVENTS}*"):
                earlier.unlink()
            self._writer = Writer(str(self._record.folder))
        return self._writer

    def add(self) -> None:
        """Append the new windows; they are readable when this returns."""
        windows, earlier_steps = self._windows.after(self._written_count)
        self._log(chain(*run_export.window_scalars(RunFolder(self._record.folder), windows, earlier_steps)))
        self._written_count += len(windows)

    def finish(self) -> None:
        """Append the rest, with means, totals, power and gauges, and close the file."""
        self.add()
        folder = RunFolder(self._record.folder)
        if folder.summary:
            self._log(run_export.summary_scalars(folder, folder.summary))
            self._log(run_export.curve_scalars(folder, folder.all_windows))
        self.open().close()

    def _log(self, points: Iterable[Scalar]) -> None:
        writer = self.open()
        for scalar in points:
            # TensorBoard shows the description of a tag's first event.
            meaning = None if scalar.name in self._described else find(scalar.name).meaning or None
            self._described.add(scalar.name)
            when_s = scalar.when_ms / 1000
            writer.add_scalar(scalar.name, scalar.value, scalar.step, wall_time=when_s, description=meaning)
        writer.flush()
