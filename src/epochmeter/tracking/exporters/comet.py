"""Export runs to Comet. Comet cannot replace metrics: a repeated export is another experiment."""

import os
import shlex
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from epochmeter.shared.problem import input_error
from epochmeter.tracking.exporter import ExportedRun

if TYPE_CHECKING:
    from comet_ml import CometExperiment

OFF = ("log_code", "log_graph", "parse_args", "log_git_metadata", "log_git_patch", "log_env_details",
       "auto_output_logging", "auto_param_logging", "auto_metric_logging", "auto_log_co2")  # fmt: skip
"""What Comet would collect by itself: it is in the record, or not of the training."""


class CometExporter:
    """An experiment in Comet: its parameters, and all other facts under "Other"."""

    def check(self) -> None:
        """Refuse runs without an API key, unless Comet is set to write to the disk only."""
        import comet_ml

        comet_ml.start  # noqa: B018  (earlier versions lack it)
        config = comet_ml.config.get_config()
        if config["comet.api_key"] or config["comet.start.online"] is False:
            return
        problem = "`tracking.also=comet` needs a login, and Comet has no API key"
        raise input_error(
            problem, "run `comet login`, set COMET_API_KEY, or write to this disk: COMET_START_ONLINE=false"
        )

    def open(self, run: ExportedRun) -> str | None:
        """Begin an experiment; return its page, or the command that uploads its file."""
        import comet_ml

        config = comet_ml.ExperimentConfig(
            name=run.name, tags=[*run.labels, *([run.group] if run.group else [])], display_summary_level=0,
            **dict.fromkeys(OFF, False),
        )  # fmt: skip
        # With a key of its own, it does not continue an experiment that COMET_EXPERIMENT_KEY names.
        self._experiment: CometExperiment = comet_ml.start(
            project_name=run.project, experiment_key=uuid.uuid4().hex, mode="create", experiment_config=config
        )
        self._experiment.log_parameters({**run.params})
        if folder := getattr(self._experiment, "offline_directory", None):
            return shlex.join(["comet", "upload", f"{os.path.relpath(folder)}/{self._experiment.get_key()}.zip"])
        return str(self._experiment.url)

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._experiment.log_metrics({**metrics}, step=epoch, epoch=epoch)

    def close(self, run: ExportedRun) -> None:
        self._experiment.log_metrics({**run.metrics})
        others = {"epochmeter.group": run.group, "epochmeter.note": run.note}
        self._experiment.log_others({**others, **run.facts})
        self._experiment.end()
