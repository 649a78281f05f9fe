"""A run that a node is to make: what is typed there, and what is asked of Slurm."""

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
"""Keys of the launcher that are no options of sbatch."""


@dataclass(frozen=True)
class RunTask:
    """A run that a node is to make."""

    number: int
    folder: Path
    arguments: tuple[str, ...]
    """What follows `src/train.py` on the node."""
    device: str
    options: Mapping[str, Any]
    """Options of sbatch: `constraint` -> `nano`."""
    python: str
    """The shell's words for the node's interpreter."""
    digest: str
    """Of all in its job, and in what is asked of Slurm, that affects the measurement, on whatever node."""
    dataset: str | None = None
    """The digest of its dataset, where that is known here."""


def make_run_task(order: RunRequest, launcher: Mapping[str, Any]) -> RunTask:
    """What is sent for an order; a device's own `slurm` keys go before those of the launcher."""
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
            # It shows its run nowhere, and so is not told where. What it is told lies in submitit's files; the worker
            # sees no more of a secret than that.
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
        dataset=dataset_checksum(order.job.dataset.to_dict(), order.job.storage.to_dict(), ROOT),
    )


def check_constraint(asked: RunTask, there: Sequence[slurm.SlurmNode]) -> None:
    """Refuses what no node of the cluster is; ValueError."""
    constraint = asked.options.get("constraint")
    missing = slurm.missing_features(constraint, there) if constraint else []
    if missing:
        features = sorted({feature for each in there for feature in each.features})
        raise ValueError(
            f"device={asked.device} needs a node with the feature {', '.join(missing)}, and no node has it: "
            f"{len(there)} nodes, their features: {', '.join(features) or 'none'}. Give its nodes the feature in "
            f"slurm.conf (Features={missing[0]}), or name one that is there: device.slurm.constraint="
        )
