"""Resolve the plan of a run: its configuration, devices and settings on this machine, which nothing here changes."""

import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import shorten

from epochmeter.config.identity import affects_measurement
from epochmeter.config.installation import ROOT
from epochmeter.config.request import RunRequest
from epochmeter.config.schema import Job, Strategy
from epochmeter.config.script import ATTACHED, recorded_command
from epochmeter.config.secrets import conceal_tree
from epochmeter.config.validation import check_all_values
from epochmeter.datasets.ready import check_storage, dataset_checksum, training_folder
from epochmeter.machine import host
from epochmeter.machine.cores import usable_cores
from epochmeter.machine.disk import satisfies
from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.machine.gpus import Gpu, find_gpus, select_gpus
from epochmeter.machine.recorded.root import find_recording, root_folder, storage_of
from epochmeter.power.knobs.device_settings import NO_KNOB_MESSAGES, requested_knobs, target_of
from epochmeter.power.knobs.knob import Knob, SettingTarget
from epochmeter.power.knobs.restore import refuse_unrestored
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.results.run_info import Energy, RunInfo
from epochmeter.results.validation import facts_of
from epochmeter.run import replaying
from epochmeter.run.interpreters import choose_python
from epochmeter.run.nodes import Node, current_node, script_node
from epochmeter.run.plan import Plan, command_line, identity_of, now, open_restore_journal
from epochmeter.run.preflight import device_here, preflight, thread_count, trains_on_gpu, worker_count
from epochmeter.run.validated import find_validation
from epochmeter.shared.problem import InputError, input_error
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.protocol import REPLAYED_ON_NODES
from epochmeter.shared.record import Record

MAX_COMMAND = 60  # characters of the command of a running process in the name of its run
GPU_METERS = ("none", "nvml", "amd")  # meters whose energy includes nothing of this machine but the GPUs used


def resolve_plan(request: RunRequest) -> Plan:
    """Return the plan for a requested run; ValueError or RuntimeError if it is not valid, or not possible here."""
    check_all_values(request.job.to_dict())
    facts = host.device_facts(request.job.machine.root)
    request, other_device = compose(request, facts)
    on_gpu = trains_on_gpu(request.job.device, facts)
    node = Node() if request.job.measure.command else current_node(os.environ)  # a script has a run per node
    job = preflight(request, node, on_gpu=on_gpu)
    gpus = select_gpus(find_gpus(root_folder(job.machine.root)), os.environ, count=job.strategy.ranks) if on_gpu else []
    mismatches = [*other_device, *_storage_mismatch(job, request.choices["storage"])]
    mismatches += _missing_gpus(job.strategy, gpus, on_gpu=on_gpu)
    journal, may_set = open_restore_journal(request), not other_device and job.rehearse is not True
    knobs = requested_knobs(job.device_settings, on_gpu, gpus, journal) if may_set else None
    rehearsal = rehearsal_reasons(job, mismatches, knobs)
    targets = {} if rehearsal else find_targets(job, knobs or {}, journal)
    if job.strategy.ranks is None:
        job = replace(job, strategy=replace(job.strategy, ranks=max(1, len(gpus))))
    job = replace(job, threads=thread_count(job, os.environ))
    devices = devices_to_lock(job, gpus, on_gpu=on_gpu, is_jetson=bool(facts["tegra"]))
    digest = dataset_checksum(job.dataset, job.storage, ROOT)
    record, run = Record(request.folder), initial_run(request, rehearsal)
    plan = Plan(request, job, node, on_gpu, gpus, devices, targets, record, journal, digest, run)
    plan.validation = find_validation(job.machine)
    run.validation = facts_of(plan.validation, {}) if plan.validation else None
    if request.job.measure.command and ATTACHED not in os.environ:
        plan.script_node = script_node(os.environ, ROOT / "multirun")
        if job.measure.replay and plan.script_node.nodes > 1:
            raise InputError(REPLAYED_ON_NODES)
    run.identity = identity_of(plan, digest)
    return plan


def compose(request: RunRequest, facts: Mapping[str, str | None]) -> tuple[RunRequest, list[str]]:
    """Return a request composed for the detected device if `device=auto`, or adapted to this machine.

    The second value has the reasons for a rehearsal: the request is for another device, or a recording is replayed.
    """
    detected = host.detect_device(facts)
    if request.choices["device"] == "auto":
        request = request.with_device(detected)
    replayed = replayed_machine(request.job.machine.root)
    device = device_here(request.job.device, facts, request.overrides, is_replayed=bool(replayed))
    if device is request.job.device:
        return request, []
    is_other = not host.is_match(request.job.device.match, facts)
    other = [f"device={request.choices['device']} requested, this machine is device={detected}"] if is_other else []
    return replace(request, job=replace(request.job, device=device)), [*replayed, *other]


def replayed_machine(root: str) -> list[str]:
    """Return the reason for a rehearsal if `machine.root` is a recording."""
    recording = find_recording(root)
    if recording is None:
        return []
    here = f", and this machine is {platform.machine()}" if recording.other_architecture else ""
    return [f"machine.root={recording.name} is a recording of another machine ({recording.origin}){here}"]


def devices_to_lock(job: Job, gpus: Sequence[Gpu], *, on_gpu: bool, is_jetson: bool) -> list[str]:
    """Return the devices that no other run may use: those that train, and those whose energy the meter includes."""
    devices = [f"gpu-{gpu['bus']}" for gpu in gpus] or ["gpu" if on_gpu else "cpu"]
    if is_jetson:
        return ["module", *devices]  # the power rails measure all that the module does
    return ["cpu", *devices] if job.meter.name not in GPU_METERS and devices != ["cpu"] else devices


def find_targets(
    job: Job, knobs: Mapping[str, Knob | None], journal: RestoreJournal
) -> dict[str, tuple[Knob, SettingTarget]]:
    """Return the device settings to change by the keys that request them; ValueError or RuntimeError if not allowed."""
    targets = {key: (knob, target_of(knob, job.device_settings[key], key)) for key, knob in knobs.items() if knob}
    if targets and not job.measure.lock:
        raise input_error(f"`measure.lock=false` does not allow `{next(iter(targets))}=`", "omit one of the two")
    refuse_unrestored([knob for knob, _ in targets.values()], journal)
    return targets


def rehearsal_reasons(job: Job, mismatches: Sequence[str], knobs: Mapping[str, Knob | None] | None) -> list[str]:
    """Return why a run is a rehearsal: the `mismatches` of machine and request, and settings that it does not have.

    `knobs` are the requested device settings by key; None: none may be changed. ValueError with `rehearse=false`.
    """
    missing = [key for key, knob in (knobs or {}).items() if not knob]
    reasons = [*mismatches]
    reasons += [f"{key}={job.device_settings[key]}: this machine has {NO_KNOB_MESSAGES[key]}" for key in missing]
    if reasons or knobs is None:
        unapplied = {key: value for key, value in job.device_settings.items() if key not in missing}
        reasons += [f"{key}={value} requested, not applied" for key, value in unapplied.items()]
    if reasons and job.rehearse is False:
        raise input_error("; ".join(reasons), "`rehearse=false` does not allow this; omit it for a rehearsal")
    return [*reasons, "rehearse=true"] if job.rehearse is True else reasons


def _storage_mismatch(job: Job, choice: str) -> list[str]:
    """Return where the dataset would be if that is not the requested storage; ValueError without its folder."""
    medium = job.storage.medium
    folder = training_folder(job.dataset, job.storage, ROOT)
    if medium is None or folder is None:
        return []
    check_storage(job.storage, ROOT)
    disk, _ = storage_of(folder, job.machine.root)
    return [] if satisfies(medium, disk) else [f"storage={choice} requested, {folder} is on {disk.medium}"]


def _missing_gpus(strategy: Strategy, gpus: Sequence[Gpu], *, on_gpu: bool) -> list[str]:
    """Return the message that a strategy has more ranks than GPUs, if so. Rank processes may share a CPU."""
    # The GPU of a Jetson exists although no driver lists it.
    ranks, count = strategy.ranks, max(1, len(gpus)) if on_gpu else 0
    if ranks == 1 or count >= (ranks or 2) or (count == 0 and strategy.has_processes):
        return []
    requested = f"strategy={strategy.name}" + (f" strategy.ranks={ranks}" if ranks else "")
    return [f"{requested} requested, this machine has {count or 'no'} GPU{'s' if count > 1 else ''}"]


def initial_run(request: RunRequest, rehearsal: list[str]) -> RunInfo:
    """Return the metadata of a run that has not begun, without its identity."""
    return RunInfo(
        record_id=uuid.uuid4().hex,
        sweep_id=request.folder.parent.name,
        number=request.number,
        of_sweep=request.of_sweep,
        name=_display_name(request),
        identity="",
        choices=request.choices,
        overrides=request.overrides,
        command=command_line(),
        started=now(),
        **this_process()._asdict(),  # of this machine, also if another one is replayed
        rehearsal=rehearsal,
        energy=Energy(source="none", reason="no meter was opened", codes=[EnergyCode.NOT_REQUESTED.value]),
        usable_cores=usable_cores(),
    )


def _display_name(request: RunRequest) -> str:
    """Return the run's name: the overrides that affect the measurement, model, dataset, device."""
    groups = ("model", "dataset", "device")
    keys = [(override.partition("=")[0], override) for override in request.overrides]
    if command := recorded_command(request.job):
        others = [text for key, text in keys if not key.startswith("script.") and affects_measurement(key)]
        if (pid := request.job.measure.pid) is not None:  # whose command may have lines of code
            words = shorten(" ".join([os.path.basename(command[0]), *command[1:]]), MAX_COMMAND, placeholder=" ...")
            return " ".join([f"process {pid}: {words}", *conceal_tree(others)])
        return " ".join([os.path.basename(command[0]), *command[1:], *conceal_tree(others)])
    first = [text for key, text in keys if key not in (*groups, "machine.root") and affects_measurement(key)]
    return " ".join([*conceal_tree(first), *(request.choices[group] for group in groups)])


def plan_warnings(plan: Plan) -> list[str]:
    """Return messages on the configuration, for a person, before the run."""
    messages = [target.note for _, target in plan.targets.values() if target.note]
    if note := choose_python(plan.request.job, plan.run.overrides).note:
        messages.append(f"note: {note}")
    if plan.job.measure.replay:
        messages.append(f"note: {replaying.START}")
    workers, ranks, cores = worker_count(plan.job.workers), plan.ranks or 1, usable_cores()
    is_override = any(text.startswith("workers=") and text != "workers=auto" for text in plan.run.overrides)
    if is_override and workers * ranks > cores:
        of_ranks = f" for each of {ranks} ranks" if ranks > 1 else ""
        messages.append(f"warning: workers={workers} DataLoader workers{of_ranks} are more than the {cores} cores.")
    return messages
