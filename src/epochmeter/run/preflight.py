"""Checks of a job before it waits for a device: everything that can be refused without training."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

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
"""The numeric precisions of a CPU, as in `worker.precision`, which needs torch."""


def validate_job(job: Job, choices: Mapping[str, str], overrides: Sequence[str], nodes: int = 1) -> None:
    """Refuse a job whose values are not valid, by themselves or for its dataset; ValueError."""
    check_overrides(overrides, choices)
    check_values(job)
    check_store(job.tracking.to_dict())
    check_events(job.tracking.to_dict())
    if count := training_samples(job):
        check_length(job, count, process_ranks(job.strategy) * nodes)
    check_constructible(job, overrides)


def validate_sweep(points: Sequence[Sequence[str]], composed: Callable[[list[str]], DictConfig]) -> None:
    """Refuse a sweep if any of its configurations is not valid.

    Args:
        points: The overrides of each configuration.
        composed: Composes a configuration from its overrides.

    Raises:
        ValueError: Lists each reason with the configurations that have it.
    """
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
    common = set.intersection(*map(set, points)) if len(points) > 1 else set()
    count = sum(map(len, reasons.values()))
    lines = [f"Nothing is trained: {count} of {len(points)} configurations are refused"]
    for reason, (first, *more) in islice(reasons.items(), MAX_SHOWN):
        lines.append(format_point([override for override in first if override not in common], len(more), reason))
    if len(reasons) > MAX_SHOWN:
        lines.append(f"... and {len(reasons) - MAX_SHOWN} more reasons.")
    raise ValueError("\n".join(lines))


def check_machine(job: Job, overrides: Sequence[str]) -> None:
    """Refuse a job that this machine cannot run: its size, its precision or its Python interpreter; ValueError."""
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
    """Return whether a device's job trains on a GPU of the machine with these facts."""
    return device.accelerator == "cuda" or (device.accelerator == "auto" and bool(facts["gpu"]))


def format_point(point: Sequence[str], more: int, reason: str) -> str:
    """Return a line: a configuration, how many more have the same reason, and the reason if it does not name it."""
    name = " ".join(point) + (f" (and {more} more)" if more else "")
    return reason if reason.startswith(f"`{name}`") else f"{name}: {reason}"


def process_ranks(strategy: Strategy) -> int:
    """Return the number of rank processes, each of which loads its own batches."""
    return (strategy.ranks or 1) if strategy.has_processes else 1


def training_samples(job: Job) -> int | None:
    """Return the number of training samples; None if it is not known before the dataset is prepared."""
    dataset = job.dataset
    manifest = peek_manifest(dataset, job.storage, ROOT)
    if not manifest or manifest.version != dataset.version or manifest.maker != without_secrets(dataset.make):
        return None
    return manifest.splits["train"]


def check_constructible(job: Job, overrides: Sequence[str]) -> None:
    """Refuse names that only the training process can check: torchvision's models and added keys; ValueError.

    Only overrides are checked: the tests cover the values in conf/.
    """
    keys = {override.partition("=")[0] for override in overrides}
    added = {key.lstrip("+~").partition(".")[0] for key in keys if key.startswith(("+", "~"))}
    added |= {key.removesuffix("._target_") for key in keys if key.endswith("._target_")}
    specs: dict[str, object] = {group: getattr(job, group).to_dict() for group in INSTANTIATED_GROUPS if group in added}
    if keys & {"model.name", "model.architecture"} and "architecture" in job.model.spec:
        specs.setdefault("model", {"architecture": job.model.spec["architecture"]})
    if specs and (error := construction_error(job.device.python or sys.executable, json.dumps(specs, sort_keys=True))):
        raise ValueError(error)


@cache
def construction_error(python: str, specs: str) -> str:
    """Return why this interpreter cannot construct the objects; empty if it can, or does not answer."""
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
