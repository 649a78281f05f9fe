"""The job of one run on a cluster: its command line and its sbatch options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochmeter.config.job import RunRequest, affects_measurement, hash_value, identity
from epochmeter.config.secrets import redact_tree
from epochmeter.machine import slurm
from epochmeter.run.preflight import dataset_digest

NON_SBATCH_KEYS = ("python", "setup", "poll_s", "options")
"""Keys of the launcher that are not options of sbatch."""


@dataclass(frozen=True)
class RunTask:
    """The job of one run on a node."""

    number: int
    folder: Path
    arguments: tuple[str, ...]  # of `src/train.py` on the node, or with `--` and a script, of `src/measure.py`
    device: str
    options: Mapping[str, Any]  # of sbatch: `constraint` -> `nano`
    python: str  # shell command of the node's Python
    digest: str  # of the configuration and options that affect the measurement; the same for all nodes
    dataset: str | None = None  # checksum of the dataset; None if it is not available on this host


def make_run_task(request: RunRequest, launcher: Mapping[str, Any]) -> RunTask:
    """Return the job of a run; the device's `slurm` keys take precedence over the launcher's."""
    device_keys = {key: value for key, value in (request.job.device.slurm or {}).items() if value is not None}
    launcher_keys = {key: value for key, value in launcher.items() if key not in NON_SBATCH_KEYS}
    keys = {**launcher_keys, **(launcher["options"] or {}), **device_keys, "python": None}
    options = {key: value for key, value in keys.items() if value is not None and value is not False}
    measured_on = {key: value for key, value in options.items() if affects_measurement(f"hydra.launcher.{key}")}
    # The node does not publish, so that the tracking keys, and secrets in them, stay out of submitit's files.
    overrides = [text for text in request.overrides if not text.startswith(("tracking=", "tracking."))]
    folder = str(request.folder).replace("'", r"\'")  # as Hydra quotes
    return RunTask(
        number=request.number,
        folder=request.folder,
        arguments=(
            *redact_tree(overrides),
            "tracking=none",
            f"tracking.tensorboard={str(request.job.tracking.tensorboard).lower()}",
            "sweep.resume=true",
            "hydra/launcher=basic",
            "hydra.mode=RUN",
            f"hydra.job.num={request.number}",
            f"hydra.run.dir='{folder}'",
            *(["--", *command] if (command := request.job.measure.command) else []),
        ),
        device=request.choices["device"],
        options=options,
        python=device_keys.get("python") or launcher["python"] or shlex.quote(sys.executable),
        digest=hash_value([identity(request.job, None, host=""), measured_on]),
        dataset=dataset_digest(request.job),
    )


def check_constraint(task: RunTask, cluster_nodes: Sequence[slurm.SlurmNode]) -> None:
    """Raise ValueError if no node has the features that the task needs."""
    constraint = task.options.get("constraint")
    if constraint and (missing := slurm.missing_features(constraint, cluster_nodes)):
        features = sorted({feature for node in cluster_nodes for feature in node.features})
        raise ValueError(
            f"device={task.device} needs a node with the feature {', '.join(missing)}; "
            f"features of the {len(cluster_nodes)} nodes: {', '.join(features) or 'none'}\n"
            f"  hint: add Features={missing[0]} to its nodes in slurm.conf, or set `device.slurm.constraint=`"
        )
