"""Resolve the plan of a run in five steps, which change nothing: detect, compose, preflight, claim, settings."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

from epochmeter.config.errors import input_error
from epochmeter.config.job import ROOT, RunRequest, affects_measurement, device_matches, local_device_overrides
from epochmeter.config.schema import Job
from epochmeter.config.script import filled_command
from epochmeter.config.secrets import redact_override
from epochmeter.config.validation import check_all_values
from epochmeter.datasets.ready import check_storage, training_folder
from epochmeter.machine import host
from epochmeter.machine.disk import disk_of, satisfies
from epochmeter.machine.gpus import find_gpus, select_gpus
from epochmeter.power.knobs.knob import Knob, SettingTarget
from epochmeter.power.knobs.requests import refuse_unrestored, requested_settings, resolve_targets
from epochmeter.run.data_source import is_in_memory
from epochmeter.run.nodes import Node, check_strategy, current_node
from epochmeter.run.plan import Plan, command_line, identities, now, open_restore_journal
from epochmeter.run.preflight import (
    check_accelerator,
    check_capacity,
    dataset_digest,
    usable_cores,
    validate_job,
    worker_count,
)
from epochmeter.run.rehearsal import missing_gpus, rehearsal_reasons
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record

GPU_METERS = ("none", "nvml", "amd", "replay")
"""Meters whose energy includes nothing of this machine but the GPUs used."""


def resolve_plan(request: RunRequest) -> Plan:
    """Return the plan for a requested run; nothing is written and no setting is changed.

    Raises:
        ValueError: A value is not valid or, with `rehearse=false`, this machine is not the requested one.
        RuntimeError: This machine has a requested setting but cannot change it, for example without a reboot.
    """
    return settings(claim(preflight(compose(detect(request)))))


def detect(request: RunRequest) -> Plan:
    """Step 1: detect which device this machine is, and which node of the run."""
    check_all_values(request.job.to_dict())
    facts = host.device_facts(request.job.machine.root)
    return Plan(
        request=request,
        job=request.job,
        facts=facts,
        detected=host.detect_device(device_matches(), facts),
        node=Node() if request.job.measure.command else current_node(os.environ),  # a script has a run per node
        record=Record(request.folder),
        journal=open_restore_journal(request),
    )


def compose(plan: Plan) -> Plan:
    """Step 2: compose the job for the detected device if `device=auto`; adapt a job for another machine to this one.

    An adapted job gets the accelerator and Python of this machine, unless overrides set them.
    """
    request = plan.request
    if request.choices["device"] == "auto":
        request = request.with_device(plan.detected)
    is_requested = host.is_match(request.job.device.match, plan.facts)
    if not is_requested:
        device = local_device_overrides(request.job.device, request.overrides)
        request = replace(request, job=replace(request.job, device=device))
    return replace(plan, request=request, job=request.job, is_requested_device=is_requested)


def preflight(plan: Plan) -> Plan:
    """Step 3: refuse a job that cannot run here, before it waits for a device; replace `workers=auto` by its number."""
    job = plan.job
    check_strategy(job.strategy, plan.node)
    validate_job(job, plan.request.choices, plan.request.overrides, plan.node.nodes)
    check_capacity(job, ROOT)
    check_accelerator(job, is_gpu=plan.on_gpu)
    return replace(plan, job=replace(job, workers=worker_count(job.workers)))


def claim(plan: Plan) -> Plan:
    """Step 4: select the GPUs that train and the devices to lock; replace `strategy.ranks=null` by the GPUs' number."""
    job, strategy = plan.job, plan.job.strategy
    used = select_gpus(find_gpus(Path(job.machine.root)), os.environ, count=strategy.ranks) if plan.on_gpu else []
    devices = [f"gpu-{gpu['bus']}" for gpu in used] or ["gpu" if plan.on_gpu else "cpu"]
    if plan.facts["tegra"]:
        devices.insert(0, "module")  # the power rails measure all that the module does
    elif job.meter.name not in GPU_METERS and devices != ["cpu"]:
        devices.insert(0, "cpu")
    if strategy.ranks is None:
        job = replace(job, strategy=replace(strategy, ranks=max(1, len(used))))
    return replace(plan, job=job, used_gpus=used, devices=devices)


def settings(plan: Plan) -> Plan:
    """Step 5: find the device settings to change, or the reasons why the run is a rehearsal and changes none."""
    job, request = plan.job, plan.request
    requests = None
    if plan.is_requested_device and job.rehearse is not True:
        requests = requested_settings(
            job.device_settings,
            trains_on_gpu=plan.on_gpu,
            gpus=plan.used_gpus,
            root=job.machine.root,
            journal=plan.journal,
        )
    # The GPU of a Jetson exists although no driver lists it.
    gpu_count = max(1, len(plan.used_gpus)) if plan.on_gpu else 0
    rehearsal = rehearsal_reasons(
        request,
        None if plan.is_requested_device else plan.detected,
        _storage_mismatch(job),
        requests,
        missing_gpus(request.job.strategy, gpu_count),
    )
    targets: dict[str, tuple[Knob, SettingTarget]] = {}
    if requests and not rehearsal:
        targets = dict(zip((setting.key for setting in requests), resolve_targets(requests), strict=True))
    if targets and not job.measure.lock:
        raise input_error(f"`measure.lock=false` does not allow `{next(iter(targets))}=`", "omit one of the two")
    refuse_unrestored([knob for knob, _ in targets.values()], plan.journal)
    plan = replace(plan, targets=targets)
    plan.run = _initial_metadata(plan, rehearsal)
    return plan


def _storage_mismatch(job: Job) -> str | None:
    """Return where the dataset would be if that is not the requested storage; ValueError without its folder."""
    medium = job.storage.medium
    folder = training_folder(job.dataset, job.storage, ROOT)
    if medium is None or folder is None:
        return None
    check_storage(job.storage, ROOT)
    disk = disk_of(folder)
    return None if satisfies(medium, disk) else f"{folder} is on {disk.medium}"


def _initial_metadata(plan: Plan, rehearsal: list[str]) -> dict[str, object]:
    """Return the metadata of a run that has not begun."""
    job, request = plan.job, plan.request
    return {
        "record_id": uuid.uuid4().hex,
        "sweep_id": request.folder.parent.name,
        "number": request.number,
        "of_sweep": request.of_sweep,
        "name": _display_name(request),
        **identities(plan, dataset_digest(job)),
        "choices": request.choices,
        "overrides": request.overrides,
        "command": command_line(),
        "started": now(),
        **this_process()._asdict(),  # of this machine, also if another one is replayed
        "rehearsal": rehearsal,
        "energy": {"source": "none", "covers": None, "domains": [], "reason": "no meter was opened"},
        "power_limit_applied": None,
        "power_limit_w": None,
        "power_limit_max_w": None,
        "power_limit_devices": None,
        "flags": {},
        "dataset": None,
    }


def _display_name(request: RunRequest) -> str:
    """Return the run's name: the overrides that affect the measurement, model, dataset, device."""
    groups = ("model", "dataset", "device")
    if command := filled_command(request.job):
        others = [override for override in request.overrides if not override.startswith("script.")]
        return " ".join([os.path.basename(command[0]), *command[1:], *map(redact_override, others)])
    keys = [(override.partition("=")[0], override) for override in request.overrides]
    first = [text for key, text in keys if key not in (*groups, "machine.root") and affects_measurement(key)]
    return " ".join([*map(redact_override, first), *(request.choices[group] for group in groups)])


def plan_warnings(plan: Plan) -> list[str]:
    """Return messages on the configuration, for a person, before the run."""
    job = plan.job
    messages = [target.note for _, target in plan.targets.values() if target.note]
    if job.compile:
        messages.append("note: epoch 1 includes the compilation of the model, which may take minutes")
    cores, ranks = usable_cores(), plan.ranks or 1
    overrides = (override.partition("=") for override in plan.run["overrides"])
    is_override = any(key == "workers" and value.isdecimal() for key, _, value in overrides)
    if is_override and worker_count(job.workers) * ranks > cores:
        of_ranks = f" for each of {ranks} ranks" if ranks > 1 else ""
        messages.append(f"warning: workers={job.workers} DataLoader workers{of_ranks} are more than the {cores} cores.")
    if is_in_memory(job) and not job.measure.command:
        what = "synthetic_batches" if job.synthetic_batches else f"dataset.layout={job.dataset.layout}"
        messages.append(f"note: {what} keeps the samples in memory; storage and page cache are not used")
    return messages
