"""What is refused of a job before it waits for a device: all that can be told without training."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from epochmeter.config.errors import input_error
from epochmeter.config.job import ROOT, local_device_overrides, split_config
from epochmeter.config.schema import INSTANTIATED_GROUPS, Device, Job, Precision, Strategy
from epochmeter.config.suggestions import check_overrides
from epochmeter.config.validation import check_values
from epochmeter.console.progress import track_items
from epochmeter.datasets.manifest import without_secrets
from epochmeter.datasets.ready import peek_manifest
from epochmeter.machine import host
from epochmeter.results.throughput import check_length
from epochmeter.run import capacity, launch
from epochmeter.tracking.client import check as check_store
from epochmeter.tracking.tensorboard import check_installed as check_events

SOURCE = Path(__file__).resolve().parents[2]
MAX_SHOWN = 10
CHECK_LIMIT_S = 60.0
CPU_PRECISIONS = (Precision.fp32, Precision.bf16)
"""The numeric precisions of a CPU, as `worker.precision` has them, which this process cannot import."""


def validate_job(job: Job, choices: Mapping[str, str], overrides: Sequence[str], nodes: int = 1) -> None:
    """Refuses a job for what was typed, by itself and with the dataset that is there; ValueError."""
    check_overrides(overrides, choices)
    check_values(job)
    check_store(job.tracking.to_dict())
    check_events(job.tracking.to_dict())
    if count := training_samples(job):
        check_length(job, count, process_ranks(job.strategy) * nodes)
    check_constructible(job, overrides)


def validate_sweep(points: Sequence[Sequence[str]], composed: Callable[[list[str]], DictConfig]) -> None:
    """Composes each configuration of a sweep and refuses them all for those that cannot be, each named; ValueError."""
    reasons: dict[str, list[Sequence[str]]] = {}
    for point in track_items(points, "Composing configurations"):
        try:
            config = composed(list(point))
            job, choices, overrides = split_config(config)
            validate_job(job, choices, overrides)
            if config.hydra.runtime.choices["hydra/launcher"] != "slurm":
                check_machine(job, overrides)
        except ValueError as error:
            reasons.setdefault(str(error), []).append(point)
    if not reasons:
        return
    same = set.intersection(*map(set, points)) if len(points) > 1 else set()
    lines = [format_point([typed for typed in first if typed not in same], len(more), why)
             for why, (first, *more) in reasons.items()]  # fmt: skip
    left = [f"... and {len(lines) - MAX_SHOWN} more reasons."] if len(lines) > MAX_SHOWN else []
    count = sum(map(len, reasons.values()))
    raise ValueError(
        "\n".join(
            [f"Nothing is trained: {count} of {len(points)} configurations are refused", *lines[:MAX_SHOWN], *left]
        )
    )


def check_machine(job: Job, overrides: Sequence[str]) -> None:
    """Refuses a job that this machine cannot run: for its size, its precision or the Python that trains; ValueError."""
    capacity.check_capacity(job, ROOT)
    facts = host.device_facts(job.machine.root)
    fits = host.is_match(job.device.match, facts)
    device = job.device if fits else local_device_overrides(job.device, overrides)
    check_precision(job.precision, is_gpu=trains_on_gpu(device, facts))
    launch.check_interpreter(device.python)


def check_precision(precision: Precision, *, is_gpu: bool) -> None:
    """Refuse a precision that no CPU supports (ValueError); the training process checks those of GPUs."""
    if not is_gpu and precision not in CPU_PRECISIONS:
        how = f"give one of {', '.join(map(str, CPU_PRECISIONS))}"
        raise input_error(f"`precision={precision}` is not available on a CPU", how)


def trains_on_gpu(device: Device, facts: Mapping[str, str | None]) -> bool:
    """Whether a job for this device trains on a GPU of a machine of which these facts are known."""
    return device.accelerator == "cuda" or (device.accelerator == "auto" and bool(facts["gpu"]))


def format_point(point: Sequence[str], more: int, why: str) -> str:
    """A point, how many more are refused for the same, and why: alone where that begins with all that it would name."""
    others = f" (and {more} more)" if more else ""
    which = f"{' '.join(point)}{others}: "
    return why if why.startswith(f"`{which.removesuffix(': ')}`") else which + why


def process_ranks(strategy: Strategy) -> int:
    """Ranks that are processes, each with batches of its own."""
    return (strategy.ranks or 1) if strategy.has_processes else 1


def training_samples(job: Job) -> int | None:
    """How many there are to train on; None where that is not known before the dataset is made, or looked through."""
    dataset = job.dataset
    manifest = peek_manifest(dataset, job.storage, ROOT)
    if not manifest or manifest.maker != without_secrets(dataset.make):
        return None  # of a user's folder the note may be older than what lies there
    return manifest.splits["train"] if manifest.version == dataset.version else None


def check_constructible(job: Job, overrides: Sequence[str]) -> None:
    """Refuses names that only what trains knows: a classifier of torchvision's, keys that were added; ValueError.

    Nothing is asked where none was typed, as what conf/ has is tested.
    """
    typed = {override.partition("=")[0] for override in overrides}
    added = {key.lstrip("+~").partition(".")[0] for key in typed if key.startswith(("+", "~"))}
    added |= {key.removesuffix("._target_") for key in typed if key.endswith("._target_")}
    specs: dict[str, Any] = {group: getattr(job, group).to_dict() for group in INSTANTIATED_GROUPS if group in added}
    if typed & {"model.name", "model.architecture"} and "architecture" in job.model.spec:
        specs.setdefault("model", {"architecture": job.model.spec["architecture"]})
    if specs and (why := construction_error(job.device.python or sys.executable, json.dumps(specs, sort_keys=True))):
        raise ValueError(why)


@cache
def construction_error(python: str, specs: str) -> str:
    """Why the worker of this interpreter would not build these; empty where it would, or cannot be asked."""
    interpreter = shutil.which(python)
    if interpreter is None:
        return ""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [interpreter, "-m", "epochmeter.worker.check_spec", specs],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
