"""Export runs to trackio: to its database on this disk, or as its environment variables say to a server or a Space."""

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING

from epochmeter.shared.problem import input_error
from epochmeter.tracking.exporter import ExportedRun

if TYPE_CHECKING:
    import trackio

RECORD_ID = "epochmeter.record_id"
QUIET = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}  # it would read sensors during the run


class TrackioExporter:
    """A run in trackio, whose configuration has the parameters and all other facts."""

    def check(self) -> None:
        """Refuse runs for a Space without a login; trackio's own database needs none."""
        import trackio  # noqa: F401

        if not (space := os.environ.get("TRACKIO_SPACE_ID")):
            return
        from huggingface_hub import get_token

        if not get_token():
            problem = f"`TRACKIO_SPACE_ID={space}` needs a login at Hugging Face"
            raise input_error(problem, "run `hf auth login`, set HF_TOKEN, or unset TRACKIO_SPACE_ID")

    def open(self, run: ExportedRun) -> str | None:
        """Begin the run in place of an earlier export; return the command that shows it."""
        import trackio

        with suppress(ValueError):  # the project does not exist
            for earlier in trackio.Api().runs(run.project):
                if earlier.name == run.name and (earlier.config or {}).get(RECORD_ID) == run.record_id:
                    earlier.delete()
        self._epoch = 0
        self._run = self._init(run, "never")
        return f"trackio show --project {shlex.quote(run.project)}"

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._epoch = epoch
        self._run.log({**metrics}, step=epoch)

    def close(self, run: ExportedRun) -> None:
        """Add means and totals at the last epoch, as trackio has no summary."""
        self._run.finish()
        self._run = self._init(run, "must")  # the configuration is stored with the first metrics after this
        self._run.log({**run.metrics}, step=self._epoch)
        self._run.finish()

    def _init(self, run: ExportedRun, resume: str) -> "trackio.Run":
        import trackio

        known = signature(trackio.init).parameters  # earlier versions do not read sensors
        quiet = {name: value for name, value in QUIET.items() if name in known}
        config = {**run.params, **run.facts, "epochmeter.note": run.note}
        return trackio.init(run.project, name=run.name, group=run.group or None, config=config, resume=resume, **quiet)
