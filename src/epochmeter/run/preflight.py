"""Checks of a job before it waits for a device."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from omegaconf import DictConfig, flag_override

from epochmeter.config.installation import ROOT
from epochmeter.config.job import split_config
from epochmeter.config.request import RunRequest
from epochmeter.config.schema import SCRIPT, Dataset, Device, Job, Measure
from epochmeter.config.script import is_program
from epochmeter.config.secrets import redact_tree
from epochmeter.config.suggestions import check_overrides
from epochmeter.config.validation import check_values, flatten, format_value
from epochmeter.datasets.ready import peek_manifest, training_folder
from epochmeter.machine import host
from epochmeter.machine.cores import physical_cores, usable_cores
from epochmeter.machine.recorded.root import find_recording
from epochmeter.results.budget import check_budget
from epochmeter.results.footprint import check_footprint
from epochmeter.results.throughput import check_length
from epochmeter.run.interpreters import check_interpreter, choose_python, find_interpreter
from epochmeter.run.nodes import Node, check_node_count
from epochmeter.shared.problem import InputError, Problem, input_error, problems_of
from epochmeter.tracking.client import check_address
from epochmeter.tracking.export_process import check_exporters
from epochmeter.tracking.tensorboard import check_tensorboard

MAX_SHOWN = 10
PROCESSES_PER_CORE = 16
MIN_PROCESSES = 64
"""Number of processes that is allowed on any machine, so that a sweep may include more workers than cores."""
MAX_AUTO_WORKERS = 4  # most DataLoader workers per rank that `workers=auto` starts
CPU_PRECISIONS = ("fp32", "bf16")  # as in `worker.precision`, which needs torch


def preflight(request: RunRequest, node: Node, *, on_gpu: bool) -> Job:
    """Refuse a job that cannot run here, before it waits for a device; return it with the values for `auto`."""
    job = request.job
    if node.nodes > 1 and not job.strategy.has_processes:
        problem = f"strategy={job.strategy.name} trains on one node, and srun started {node.nodes}"
        raise input_error(problem, "set `strategy=ddp`, or use srun -N1")
    check_node_count(job.nodes, os.environ)
    validate_job(job, request.choices, request.overrides)
    check_accelerator(job, is_gpu=on_gpu)
    check_capacity(job, ROOT)
    device = replace(job.device, python=choose_python(job, request.overrides).python)
    return replace(job, workers=worker_count(job.workers), device=device)


def validate_job(job: Job, choices: Mapping[str, str], overrides: Sequence[str]) -> None:
    """Refuse a job whose values are not valid; ValueError."""
    check_overrides(overrides, choices)
    check_values(job)
    check_script_keys(job)
    if "meter=estimate" in overrides and job.meter.spec.get("tdp_w") is None:
        raise input_error("`meter=estimate` needs the CPU's rated power", "give it in watts: `meter.tdp_w=65`")
    check_footprint(job.footprint)
    check_budget(job)
    check_address(job.tracking.to_dict())
    check_tensorboard(job.tracking.to_dict())
    check_exporters(job.tracking.to_dict())


def check_script_keys(job: Job) -> None:
    """Refuse keys of measured scripts if this project trains, as they would have no effect; InputError."""
    if job.measure.command:
        return
    unset = Measure().to_dict()
    changed = {key: value for key, value in job.measure.to_dict().items() if value != unset[key]}
    changed_keys = [*flatten(job.script, "script."), *flatten(changed, "measure.")]
    if job.strategy.launcher == SCRIPT:
        changed_keys.append(("strategy.launcher", SCRIPT))
    for key, value in changed_keys:
        hint = "use `python src/measure.py SCRIPT ARGUMENTS`, or leave it out"
        raise input_error(f"`{key}={format_value(value)}` has no effect: it is for measured scripts", hint)


def validate_sweep(points: Sequence[Sequence[str]], composed: Callable[[list[str]], DictConfig]) -> None:
    """Raise ValueError with each reason why configurations of a sweep, which are lists of overrides, are not valid."""
    common = set.intersection(*map(set, points)) if len(points) > 1 else set()
    refused: dict[tuple[Problem, ...], list[str]] = {}
    listed: Iterable[Sequence[str]] = points
    if sys.stdout.isatty():
        from rich.progress import track

        listed = track(points, "Composing configurations", transient=True)
    for point in listed:
        try:
            config = composed(list(point))
            hydra = config.hydra
            with flag_override(config, ["struct", "readonly"], False):
                del config["hydra"]  # as in the configuration that Hydra gives to a run
            job, choices, overrides = split_config(config, hydra)
            validate_job(job, choices, overrides)
            if hydra.runtime.choices["hydra/launcher"] != "slurm":
                check_machine(job, overrides)
        except ValueError as error:
            name = " ".join(override for override in point if override not in common)
            refused.setdefault(problems_of(error), []).append(name)
    if not refused:
        return
    count = sum(map(len, refused.values()))
    shown = [Problem(f"Nothing is trained: {count} of {len(points)} configurations are refused")]
    for problems, (name, *more) in islice(refused.items(), MAX_SHOWN):
        title = name + (f" (and {len(more)} more)" if more else "")
        shown += [each if _is_about(each, title) else each.within(title) for each in problems]
    if len(refused) > MAX_SHOWN:
        shown.append(Problem(f"... and {len(refused) - MAX_SHOWN} more reasons"))
    raise InputError(*shown)


def _is_about(problem: Problem, title: str) -> bool:
    """Return whether a configuration differs from others by the key of a problem only, whose message then names it."""
    key, _, value = title.partition("=")
    return key == problem.where.key and " " not in value


def check_machine(job: Job, overrides: Sequence[str]) -> None:
    """Refuse a job that this machine cannot run, or whose prepared dataset is too small; ValueError."""
    check_node_count(job.nodes, os.environ)
    check_capacity(job, ROOT)
    facts = host.device_facts(job.machine.root)
    is_replayed = find_recording(job.machine.root) is not None
    device = device_here(job.device, facts, overrides, is_replayed=is_replayed)
    check_accelerator(job, is_gpu=trains_on_gpu(device, facts))
    manifest = peek_manifest(job.dataset, job.storage, ROOT)
    if manifest and manifest.maker == redact_tree(job.dataset.make):
        check_length(job, manifest.splits["train"], job.strategy.processes)
    if not is_program(job.measure.command):
        check_interpreter(find_interpreter(choose_python(replace(job, device=device), overrides).python))


def check_accelerator(job: Job, *, is_gpu: bool) -> None:
    """Refuse configurations that no CPU supports; InputError. The training process checks its GPU."""
    ranks = job.strategy.ranks
    if not is_gpu and job.precision not in CPU_PRECISIONS:
        hint = f"give one of {', '.join(CPU_PRECISIONS)}"
        raise input_error(f"`precision={job.precision}` is not available on a CPU", hint)
    if not is_gpu and job.strategy.name == "dp" and ranks:
        hint = f"give `strategy=ddp strategy.ranks={ranks}` for processes on the CPU"
        raise input_error(f"`strategy=dp strategy.ranks={ranks}` needs GPUs, and this machine has none", hint)


def device_here(
    device: Device, facts: Mapping[str, str | None], overrides: Sequence[str], *, is_replayed: bool = False
) -> Device:
    """Return a device; another machine's with this one's accelerator and Python, except where overrides set them.

    If the machine with these facts is replayed (`is_replayed`), its device is another machine's too.
    """
    if host.is_match(device.match, facts) and not is_replayed:
        return device
    keys = {override.partition("=")[0] for override in overrides}
    accelerator = device.accelerator if "device.accelerator" in keys else "auto"
    return replace(device, accelerator=accelerator, python=device.python if "device.python" in keys else None)


def trains_on_gpu(device: Device, facts: Mapping[str, str | None]) -> bool:
    """Return whether a device's job trains on a GPU of the machine with these facts."""
    return device.accelerator == "cuda" or (device.accelerator == "auto" and bool(facts["gpu"]))


def check_capacity(job: Job, root: Path) -> None:
    """Refuse a job with too many processes, or a dataset without its folder or disk space; raises InputError.

    A script starts its own processes, of which only the ranks are known.
    """
    if not job.measure.command:
        check_processes(worker_count(job.workers), job.strategy.ranks or 1, usable_cores())
    if isinstance(job.threads, int):
        check_threads(job.threads, job.strategy.processes, usable_cores())
    dataset, folder = job.dataset, training_folder(job.dataset, job.storage, root)
    needed = dataset.space_bytes or (dataset.count or 0) * (dataset.spec.get("file_bytes") or 0)
    if needed and folder and not peek_manifest(dataset, job.storage, root):
        free = shutil.disk_usage(next(path for path in folder.parents if path.exists())).free
        if needed > free:
            space = f"needs {needed / 1e9:,.1f} GB; {folder.parent} has {free / 1e9:,.1f} GB free"
            raise input_error(f"`dataset={dataset.name}` {space}", "free disk space, or give another `dataset.root=`")
    is_unpacked = "archives" in (dataset.make or {})  # from files that the user has to name
    is_made = is_unpacked and peek_manifest(dataset, job.storage, root)
    if dataset.adopt and (is_unpacked or not dataset.make) and not is_made:
        check_users_folder(dataset, root, is_unpacked)


def check_users_folder(dataset: Dataset, root: Path, is_unpacked: bool) -> None:
    """Refuse a dataset without its folder, or the folder of the archives from which it `is_unpacked`; InputError."""
    if dataset.archives is not None:
        if not (root / Path(dataset.archives).expanduser()).is_dir():
            problem = f"`dataset.archives={dataset.archives}` is not a folder"
            raise input_error(problem, "mount its storage device, or give another folder", key="dataset.archives")
        return
    if dataset.root is None:
        raise input_error(f"`dataset={dataset.name}` needs the folder of your data", "set `dataset.root=/folder`")
    if not (root / Path(dataset.root).expanduser()).is_dir():
        remedy = "mount its storage device, or give another folder"
        remedy += ", or that of its archives with `dataset.archives=/downloads`" if is_unpacked else ""
        raise input_error(f"`dataset.root={dataset.root}` is not a folder", remedy)


def worker_count(workers: int | str) -> int:
    """Return the number of DataLoader workers per rank; `auto` is one per usable core, at most 4."""
    return min(MAX_AUTO_WORKERS, usable_cores()) if isinstance(workers, str) else workers


def thread_count(job: Job, environment: Mapping[str, str]) -> int | None:
    """Return the number of torch's threads per rank of a job whose number of ranks is known; None: torch's default.

    `auto` leaves one core to each DataLoader worker, and uses no second hardware threads, which torch does not use
    either. Without a number, that of `OMP_NUM_THREADS` is part of the job, as it affects the measurement.
    """
    if job.measure.command:
        return None
    if job.threads is None:
        named = environment.get("OMP_NUM_THREADS", "")
        return int(named) if named.isdecimal() and int(named) else None
    if isinstance(job.threads, int):
        return job.threads
    ranks, workers = job.strategy.processes, worker_count(job.workers) if job.has_loader else 0
    return max(1, min(physical_cores() // ranks, usable_cores() // ranks - workers))


def check_threads(threads: int, ranks: int, cores: int) -> None:
    """Refuse too many threads for the number of cores; raises InputError."""
    most = max(MIN_PROCESSES, PROCESSES_PER_CORE * cores) // ranks
    if threads > most:
        raise input_error(f"`threads={threads}` is too many: this machine has {cores} cores", "give `threads=auto`")


def check_processes(workers: int, ranks: int, cores: int) -> None:
    """Refuse too many ranks or DataLoader workers for the number of cores; raises InputError."""
    limit = max(MIN_PROCESSES, PROCESSES_PER_CORE * cores)
    if max(ranks, ranks * workers) > limit:
        request = f"`workers={workers}`" + (f" for each of {ranks:,} ranks" if ranks > 1 else "")
        most_ranks = max(1, limit // max(1, workers))
        most = f"strategy.ranks={most_ranks}" if ranks > limit else f"workers={limit // ranks}"
        raise input_error(f"{request} is too many: this machine has {cores} cores", f"give at most `{most}`")
