"""The job of one run on a cluster: its command line and its sbatch options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochmeter.config.job import ROOT, RunRequest, affects_measurement, hash_value, identity
from epochmeter.config.secrets import redact_tree
from epochmeter.datasets.ready import dataset_checksum
from epochmeter.machine import slurm

NON_SBATCH_KEYS = ("python", "setup", "poll_s", "options")
"""Keys of the launcher that are not options of sbatch."""


@dataclass(frozen=True)
class RunTask:
    """The job of one run on a node."""

    number: int
    folder: Path
    arguments: tuple[str, ...]
    """Arguments of `src/train.py` on the node."""
    device: str
    options: Mapping[str, Any]
    """Options of sbatch: `constraint` -> `nano`."""
    python: str
    """Shell command of the node's Python."""
    digest: str
    """Hash of the configuration and sbatch options that affect the measurement; the same for all nodes."""
    dataset: str | None = None
    """Checksum of the dataset; None if it is not available on this host."""


def make_run_task(order: RunRequest, launcher: Mapping[str, Any]) -> RunTask:
    """Return the job of a run; the device's `slurm` keys take precedence over the launcher's."""
    of_device = {key: value for key, value in (order.job.device.slurm or {}).items() if value is not None}
    asked = (
        {key: value for key, value in launcher.items() if key not in NON_SBATCH_KEYS}
        | (launcher["options"] or {})
        | of_device
    )
    asked = {key: value for key, value in asked.items() if key != "python" and value is not None and value is not False}
    made_on = {key: value for key, value in asked.items() if affects_measurement(f"hydra.launcher.{key}")}
    folder = str(order.folder).replace("'", r"\'")  # as Hydra quotes
    return RunTask(
        number=order.number,
        folder=order.folder,
        arguments=(
            # The node does not publish, so that the tracking keys, and secrets in them, stay out of submitit's files.
            *redact_tree([typed for typed in order.overrides if not typed.startswith(("tracking=", "tracking."))]),
            "tracking=none",
            f"tracking.tensorboard={str(order.job.tracking.tensorboard).lower()}",
            "sweep.resume=true",
            "hydra/launcher=basic",
            "hydra.mode=RUN",
            f"hydra.job.num={order.number}",
            f"hydra.run.dir='{folder}'",
        ),
        device=order.choices["device"],
        options=asked,
        python=of_device.get("python") or launcher["python"] or shlex.quote(sys.executable),
        digest=hash_value([identity(order.job, None, host=""), made_on]),
        dataset=dataset_checksum(order.job.dataset, order.job.storage, ROOT),
    )


def check_constraint(task: RunTask, cluster_nodes: Sequence[slurm.SlurmNode]) -> None:
    """Check that a node has the features that the task needs.

    Raises:
        ValueError: No node has them.
    """
    constraint = task.options.get("constraint")
    missing = slurm.missing_features(constraint, cluster_nodes) if constraint else []
    if missing:
        features = sorted({feature for node in cluster_nodes for feature in node.features})
        raise ValueError(
            f"device={task.device} needs a node with the feature {', '.join(missing)}, and no node has it: "
            f"{len(cluster_nodes)} nodes, their features: {', '.join(features) or 'none'}. "
            f"Give its nodes the feature in slurm.conf (Features={missing[0]}), "
            "or name one that is there: device.slurm.constraint="
        )
