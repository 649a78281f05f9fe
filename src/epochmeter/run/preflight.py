"""Checks of a job before it waits for a device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

from omegaconf import DictConfig
from rich.progress import track

from epochmeter.config.errors import input_error
from epochmeter.config.installation import python_path
from epochmeter.config.job import ROOT, local_device_overrides, split_config
from epochmeter.config.schema import INSTANTIATED_GROUPS, Dataset, Device, Job, Storage
from epochmeter.config.script import is_program
from epochmeter.config.suggestions import check_overrides
from epochmeter.config.validation import check_values
from epochmeter.datasets.manifest import without_secrets
from epochmeter.datasets.ready import dataset_checksum, peek_manifest, training_folder
from epochmeter.machine import host
from epochmeter.results.footprint import check_footprint
from epochmeter.results.throughput import check_length
from epochmeter.run import launch
from epochmeter.tracking.client import check as check_store
from epochmeter.tracking.tensorboard import check_installed as check_events

MAX_SHOWN = 10
CHECK_LIMIT_S = 60.0
PROGRESS_DELAY_S = 1.0
"""Time after which the first line of progress is printed."""
CPU_PRECISIONS = ("fp32", "bf16")
"""The numeric precisions of a CPU, as in `worker.precision`, which needs torch."""
BLOCK_BYTES = 4096
"""Smallest disk space of a file, in bytes."""
PROCESSES_PER_CORE = 16
MIN_PROCESSES = 64
"""Number of processes that is allowed on any machine, so that a sweep may include more workers than cores."""
MAX_AUTO_WORKERS = 4
"""Most DataLoader workers per rank that `workers=auto` starts."""


def validate_job(job: Job, choices: Mapping[str, str], overrides: Sequence[str], nodes: int = 1) -> None:
    """Refuse a job whose values are not valid, by themselves or for its dataset; ValueError."""
    check_overrides(overrides, choices)
    check_values(job)
    check_footprint(job.footprint)
    check_store(job.tracking.to_dict())
    check_events(job.tracking.to_dict())
    if count := training_samples(job):
        strategy = job.strategy
        processes = (strategy.ranks or 1) if strategy.has_processes else 1  # each loads its own batches
        check_length(job, count, processes * nodes)
    check_constructible(job, overrides)


def validate_sweep(points: Sequence[Sequence[str]], composed: Callable[[list[str]], DictConfig]) -> None:
    """Raise ValueError with each reason why configurations of a sweep, which are lists of overrides, are not valid."""
    reasons: dict[str, list[Sequence[str]]] = {}
    for point in track_points(points):
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
        name = " ".join(override for override in first if override not in common)
        name += f" (and {len(more)} more)" if more else ""
        lines.append(reason if reason.startswith(f"`{name}`") else f"{name}: {reason}")
    if len(reasons) > MAX_SHOWN:
        lines.append(f"... and {len(reasons) - MAX_SHOWN} more reasons.")
    raise ValueError("\n".join(lines))


def track_points(points: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yield configurations and show their number: live in a terminal, else in a few lines at doubling intervals."""
    what, due_s = "Composing configurations", (begun_s := time.monotonic()) + PROGRESS_DELAY_S
    if sys.stdout.isatty():
        yield from track(points, what, transient=True)
        return
    for count, point in enumerate(points):
        if (now_s := time.monotonic()) >= due_s:
            print(f"{what} {count}/{len(points)}", flush=True)
            due_s = now_s + (now_s - begun_s)
        yield point


def check_machine(job: Job, overrides: Sequence[str]) -> None:
    """Refuse a job that this machine cannot run: its size, its precision or its Python interpreter; ValueError."""
    check_capacity(job, ROOT)
    facts = host.device_facts(job.machine.root)
    fits = host.is_match(job.device.match, facts)
    device = job.device if fits else local_device_overrides(job.device, overrides)
    check_accelerator(job, is_gpu=trains_on_gpu(device, facts))
    if not is_program(job.measure.command):
        launch.check_interpreter(device.python)


def trains_on_gpu(device: Device, facts: Mapping[str, str | None]) -> bool:
    """Return whether a device's job trains on a GPU of the machine with these facts."""
    return device.accelerator == "cuda" or (device.accelerator == "auto" and bool(facts["gpu"]))


def check_accelerator(job: Job, *, is_gpu: bool) -> None:
    """Refuse what no CPU can do, raises InputError; the training process checks what its GPU can."""
    if not is_gpu and job.precision not in CPU_PRECISIONS:
        how = f"give one of {', '.join(CPU_PRECISIONS)}"
        raise input_error(f"`precision={job.precision}` is not available on a CPU", how)
    ranks = job.strategy.ranks
    if not is_gpu and job.strategy.name == "dp" and ranks:
        raise input_error(
            f"`strategy=dp strategy.ranks={ranks}` needs GPUs, and this machine has none to train on",
            f"use strategy=ddp strategy.ranks={ranks} for processes on the CPU, or leave it out",
        )


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
    try:
        done = subprocess.run(
            [python, "-m", "epochmeter.worker.check_spec", specs],
            env={**os.environ, "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def training_samples(job: Job) -> int | None:
    """Return the number of training samples; None if it is not known before the dataset is prepared."""
    dataset = job.dataset
    manifest = peek_manifest(dataset, job.storage, ROOT)
    if not manifest or manifest.version != dataset.version or manifest.maker != without_secrets(dataset.make):
        return None
    return manifest.splits["train"]


def dataset_digest(job: Job) -> str | None:
    """Return the checksum of a job's dataset; None if it is not known before the dataset is prepared."""
    return dataset_checksum(job.dataset, job.storage, ROOT)


def check_capacity(job: Job, root: Path) -> None:
    """Refuse a job with too many processes, or with a dataset that is missing or too large; raises InputError."""
    check_processes(worker_count(job.workers), job.strategy.ranks or 1, usable_cores())
    check_dataset_exists(job.dataset, root)
    check_dataset_fits(job.dataset, job.storage, root)


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def worker_count(workers: int | str) -> int:
    """Return the number of DataLoader workers per rank; `auto` is one per usable core, at most 4."""
    return min(MAX_AUTO_WORKERS, usable_cores()) if isinstance(workers, str) else workers


def check_processes(workers: int, ranks: int, cores: int) -> None:
    """Refuse too many ranks or DataLoader workers for the number of cores; raises InputError."""
    limit = max(MIN_PROCESSES, PROCESSES_PER_CORE * cores)
    if max(ranks, ranks * workers) <= limit:
        return
    request = f"`workers={workers}`" + (f" for each of {ranks:,} ranks" if ranks > 1 else "")
    most = f"strategy.ranks={limit}" if ranks > limit else f"workers={limit // ranks}"
    raise input_error(
        f"{request} is too many: this machine has {cores} cores; each worker needs tens of MB",
        f"give at most `{most}`; more than one worker per core rarely helps",
    )


def check_dataset_exists(dataset: Dataset, root: Path) -> None:
    """Refuse a dataset in a user's folder that is not given or does not exist; raises InputError."""
    if dataset.make or not dataset.adopt:
        return
    if dataset.root is None:
        raise input_error(f"`dataset={dataset.name}` needs the folder of your data", "set `dataset.root=/folder`")
    if not (root / Path(dataset.root).expanduser()).is_dir():
        remedy = "mount its storage device, or give another folder"
        raise input_error(f"`dataset.root={dataset.root}` is not a folder", remedy)


def check_dataset_fits(dataset: Dataset, storage: Storage, root: Path) -> None:
    """Refuse to create a dataset that is larger than the free disk space; raises InputError."""
    needed, folder = space_bytes(dataset), training_folder(dataset, storage, root)
    if needed is None or folder is None or peek_manifest(dataset, storage, root):
        return
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    if needed > free:
        raise input_error(
            f"`dataset={dataset.name}` needs {needed / 1e9:,.1f} GB; {folder.parent} has {free / 1e9:,.1f} GB free",
            "free disk space, select another disk with `dataset.root=`, or use a smaller dataset",
        )


def space_bytes(dataset: Dataset) -> int | None:
    """Return the disk space that a dataset needs at least, in bytes; None if unknown before it is created."""
    if dataset.space_bytes is not None or dataset.count is None:
        return dataset.space_bytes
    if "file_bytes" in dataset.spec:
        return dataset.count * ((dataset.spec["file_bytes"] or 0) + BLOCK_BYTES)
    return dataset.count * 4 * dataset.length if dataset.length else None  # a line of digits for each pair
