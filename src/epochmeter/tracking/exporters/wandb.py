"""Export runs to Weights & Biases. A repeated export adds what a run there lacks: W&B ignores earlier steps."""

import os
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from epochmeter.shared.problem import input_error
from epochmeter.tracking.exporter import ExportedRun

if TYPE_CHECKING:
    from wandb import Run

FORBIDDEN = re.compile(r"[/\\#?%:]")  # in names of projects
MAX_LABEL, MAX_NAME = 64, 128
QUIET = {"console": "off", "disable_git": True, "disable_code": True, "disable_job_creation": True, "silent": True}
NOT_COLLECTED = ("disable_stats", "disable_meta")
"""Settings for what is in the record; W&B would read sensors while the run is measured."""


class WandbExporter:
    """A run in W&B, whose configuration has the parameters and all other facts."""

    def check(self) -> None:
        """Refuse runs without a login, unless W&B is set to write to the disk only."""
        import wandb

        if os.environ.get("WANDB_MODE") == "disabled":
            raise input_error("`WANDB_MODE=disabled` exports nothing", "unset it, or set `WANDB_MODE=offline`")
        os.environ.setdefault("WANDB_SILENT", "true")  # else it asks the server for the user's name
        try:
            wandb.login(verify=False)  # a server that does not answer is no reason to refuse a run
        except wandb.errors.UsageError as error:
            problem = "`tracking.also=wandb` needs a login, and W&B has no API key"
            hint = "run `wandb login`, set WANDB_API_KEY, or write to this disk only: `WANDB_MODE=offline`"
            raise input_error(problem, hint) from error

    def open(self, run: ExportedRun) -> str | None:
        """Begin or continue the run with this record's ID; return its page, or the command that uploads its files."""
        import wandb

        prefix = "x_" if hasattr(wandb.Settings(), "x_disable_stats") else "_"
        settings = wandb.Settings(**QUIET, **{f"{prefix}{name}": True for name in NOT_COLLECTED})
        self._run: Run = wandb.init(
            id=run.record_id, resume="allow", project=FORBIDDEN.sub("-", run.project)[:MAX_NAME],
            name=run.name[:MAX_NAME], group=run.group[:MAX_NAME] or None, notes=run.note,
            config={**run.params, **run.facts}, tags=[label[:MAX_LABEL] for label in run.labels], settings=settings,
        )  # fmt: skip
        return self._run.url or shlex.join(["wandb", "sync", os.path.relpath(self._run.settings.sync_dir)])

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics}, step=epoch)

    def close(self, run: ExportedRun) -> None:
        self._run.config.update(run.facts, allow_val_change=True)
        self._run.summary.update({**run.metrics})
        self._run.notes = run.note
        self._run.finish(exit_code=int(run.state != "completed"))
