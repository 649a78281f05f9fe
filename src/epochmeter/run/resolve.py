"""Resolve the plan of a run in five steps, which change nothing: detect, compose, preflight, claim, settings."""

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from epochmeter.config.errors import input_error
from epochmeter.config.identity import affects_measurement
from epochmeter.config.installation import ROOT
from epochmeter.config.request import RunRequest, local_device_overrides
from epochmeter.config.schema import Job
from epochmeter.config.script import filled_command
from epochmeter.config.secrets import redact_override
from epochmeter.config.validation import check_all_values
from epochmeter.datasets.ready import check_storage, dataset_checksum, training_folder
from epochmeter.machine import host
from epochmeter.machine.disk import disk_of, satisfies
from epochmeter.machine.gpus import find_gpus, select_gpus
from epochmeter.power.knobs.knob import Knob
from epochmeter.power.knobs.requests import NO_KNOB_MESSAGES, refuse_unrestored, requested_knobs, target_of
from epochmeter.run.nodes import Node, current_node
from epochmeter.run.plan import Plan, command_line, identity_of, now, open_restore_journal
from epochmeter.run.preflight import check_accelerator, check_capacity, usable_cores, validate_job, worker_count
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record

GPU_METERS = ("none", "nvml", "amd")  # meters whose energy includes nothing of this machine but the GPUs used


def resolve_plan(request: RunRequest) -> Plan:
    """Return the plan for a requested run; ValueError or RuntimeError if it is not valid, or not possible here."""
    return find_settings(claim(preflight(compose(detect(request)))))


def detect(request: RunRequest) -> Plan:
    """Step 1: detect which device this machine is, and which node of the run."""
    check_all_values(request.job.to_dict())
    facts = host.device_facts(request.job.machine.root)
    return Plan(
        request=request,
        job=request.job,
        facts=facts,
        detected=host.detect_device(facts),
        node=Node() if request.job.measure.command else current_node(os.environ),  # a script has a run per node
        record=Record(request.folder),
        journal=open_restore_journal(request),
    )


def compose(plan: Plan) -> Plan:
    """Step 2: compose the job for the detected device if `device=auto`; adapt a job for another machine to this one."""
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
    if plan.node.nodes > 1 and not job.strategy.has_processes:
        problem = f"strategy={job.strategy.name} trains on one node, and srun started {plan.node.nodes}"
        raise input_error(problem, "set `strategy=ddp`, or use srun -N1")
    validate_job(job, plan.request.choices, plan.request.overrides)
    check_accelerator(job, is_gpu=plan.on_gpu)
    check_capacity(job, ROOT)
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


def find_settings(plan: Plan) -> Plan:
    """Step 5: find the device settings to change, or the reasons why the run is a rehearsal and changes none."""
    job, knobs = plan.job, None
    if plan.is_requested_device and job.rehearse is not True:
        knobs = requested_knobs(job.device_settings, plan.on_gpu, plan.used_gpus, plan.journal)
    rehearsal = rehearsal_reasons(plan, knobs)
    changed = {key: knob for key, knob in (knobs or {}).items() if knob and not rehearsal}
    targets = {key: (knob, target_of(knob, job.device_settings[key])) for key, knob in changed.items()}
    if targets and not job.measure.lock:
        raise input_error(f"`measure.lock=false` does not allow `{next(iter(targets))}=`", "omit one of the two")
    refuse_unrestored([knob for knob, _ in targets.values()], plan.journal)
    plan = replace(plan, targets=targets)
    plan.run = _initial_metadata(plan, rehearsal)
    return plan


def rehearsal_reasons(plan: Plan, knobs: Mapping[str, Knob | None] | None) -> list[str]:
    """Return why a run is a rehearsal: it requests another machine, or hardware that this machine lacks.

    `knobs` are the requested device settings by key; None: none may be changed. ValueError with `rehearse=false`.
    """
    job, choices = plan.job, plan.request.choices
    other_device = f"device={choices['device']} requested, this machine is device={plan.detected}"
    missing = [key for key, knob in (knobs or {}).items() if not knob]
    reasons = [*([] if plan.is_requested_device else [other_device]), *_storage_mismatch(job, choices["storage"])]
    reasons += _missing_gpus(plan)
    reasons += [f"{key}={job.device_settings[key]}: this machine has {NO_KNOB_MESSAGES[key]}" for key in missing]
    if reasons or knobs is None:
        unapplied = {key: value for key, value in job.device_settings.items() if key not in missing}
        reasons += [f"{key}={value} requested, not applied" for key, value in unapplied.items()]
    if reasons and job.rehearse is False:
        raise ValueError(f"{'; '.join(reasons)}\n  hint: `rehearse=false` does not allow this; omit it for a rehearsal")
    return [*reasons, "rehearse=true"] if job.rehearse is True else reasons


def _storage_mismatch(job: Job, choice: str) -> list[str]:
    """Return where the dataset would be if that is not the requested storage; ValueError without its folder."""
    medium = job.storage.medium
    folder = training_folder(job.dataset, job.storage, ROOT)
    if medium is None or folder is None:
        return []
    check_storage(job.storage, ROOT)
    disk = disk_of(folder)
    return [] if satisfies(medium, disk) else [f"storage={choice} requested, {folder} is on {disk.medium}"]


def _missing_gpus(plan: Plan) -> list[str]:
    """Return the message that a strategy has more ranks than GPUs, if so. Rank processes may share a CPU."""
    strategy = plan.request.job.strategy
    # The GPU of a Jetson exists although no driver lists it.
    ranks, count = strategy.ranks, max(1, len(plan.used_gpus)) if plan.on_gpu else 0
    if ranks == 1 or count >= (ranks or 2) or (count == 0 and strategy.has_processes):
        return []
    requested = f"strategy={strategy.name}" + (f" strategy.ranks={ranks}" if ranks else "")
    return [f"{requested} requested, this machine has {count or 'no'} GPU{'s' if count > 1 else ''}"]


def _initial_metadata(plan: Plan, rehearsal: list[str]) -> dict[str, object]:
    """Return the metadata of a run that has not begun."""
    job, request = plan.job, plan.request
    return {
        "record_id": uuid.uuid4().hex,
        "sweep_id": request.folder.parent.name,
        "number": request.number,
        "of_sweep": request.of_sweep,
        "name": _display_name(request),
        "identity": identity_of(plan, dataset_checksum(job.dataset, job.storage, ROOT)),
        "choices": request.choices,
        "overrides": request.overrides,
        "command": command_line(),
        "started": now(),
        **this_process()._asdict(),  # of this machine, also if another one is replayed
        "rehearsal": rehearsal,
        "energy": {"source": "none", "covers": None, "domains": [], "reason": "no meter was opened"},
        **dict.fromkeys(("power_limit_applied", "power_limit_w", "power_limit_max_w", "power_limit_devices")),
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
    messages = [target.note for _, target in plan.targets.values() if target.note]
    workers, ranks, cores = worker_count(plan.job.workers), plan.ranks or 1, usable_cores()
    is_override = any(text.startswith("workers=") and text != "workers=auto" for text in plan.run["overrides"])
    if is_override and workers * ranks > cores:
        of_ranks = f" for each of {ranks} ranks" if ranks > 1 else ""
        messages.append(f"warning: workers={workers} DataLoader workers{of_ranks} are more than the {cores} cores.")
    return messages
