"""The plan of one run: its configuration on this machine, the devices and settings it uses, and its record.

`resolve_plan` makes it in five steps, which change nothing: detect, compose, preflight, claim, settings.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from epochmeter.config.errors import input_error
from epochmeter.config.job import (
    ROOT,
    SCRIPT_KEYS,
    RunRequest,
    affects_measurement,
    device_matches,
    identity,
    local_device_overrides,
)
from epochmeter.config.schema import Job
from epochmeter.config.script import filled_command
from epochmeter.config.secrets import redact_override, redact_tree
from epochmeter.config.validation import check_all_values
from epochmeter.datasets.ready import check_storage, dataset_checksum, training_folder
from epochmeter.machine import host
from epochmeter.machine.disk import disk_of, satisfies
from epochmeter.machine.gpus import Gpu, find_gpus, meter_id, select_gpus
from epochmeter.power.knobs.knob import Knob, SettingTarget
from epochmeter.power.knobs.requests import refuse_unrestored, requested_settings, resolve_targets
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.results import reuse
from epochmeter.results.summary import collect_flags
from epochmeter.run.data_source import is_in_memory
from epochmeter.run.nodes import Node, check_strategy, current_node
from epochmeter.run.preflight import (
    check_accelerator,
    check_capacity,
    trains_on_gpu,
    usable_cores,
    validate_job,
    worker_count,
)
from epochmeter.run.rehearsal import missing_gpus, rehearsal_reasons
from epochmeter.run.resume import KEPT_KEYS, ResumePoint, find_resume_point
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.process_identity import boot_id, this_process
from epochmeter.shared.record import TIME_SERIES, Record
from epochmeter.sweep.sweep_folder import reuses_none
from epochmeter.tracking import queue

GPU_METERS = ("none", "nvml", "amd", "replay")
"""Meters whose energy includes nothing of this machine but the GPUs used."""


@dataclass
class Plan:
    """One run on this machine. Each step of `resolve_plan` adds to it.

    Attributes:
        facts: The facts by which this machine is identified.
        detected: The device that this machine is.
        devices: The devices to lock.
        targets: The device settings to change, by the configuration keys that request them.
        run: The run's metadata, as in its record; it grows during the run.
    """

    request: RunRequest
    job: Job
    facts: Mapping[str, str | None]
    detected: str
    node: Node
    record: Record
    journal: RestoreJournal
    is_requested_device: bool = True
    used_gpus: list[Gpu] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    targets: dict[str, tuple[Knob, SettingTarget]] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)

    @property
    def of_sweep(self) -> bool:
        return self.request.of_sweep

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU trains."""
        return trains_on_gpu(self.job.device, self.facts)

    @property
    def gpus(self) -> list[str]:
        """The GPUs to meter, by the names that their meter uses."""
        return [name for gpu in self.used_gpus if (name := meter_id(gpu))]

    @property
    def ranks(self) -> int | None:
        """The number of processes that torchrun starts on this node; None: one process trains, without torchrun."""
        strategy = self.job.strategy
        return strategy.ranks if strategy.launcher == "torchrun" else None

    @property
    def holder(self) -> str:
        """This process, for the message of a process that waits for its devices."""
        return f"pid {os.getpid()} since {self.run['started']}: {command_line()}"

    @property
    def is_already_completed(self) -> bool:
        """Whether the run is completed, and was a rehearsal for the same reasons, if any."""
        if not self.record.is_completed(self.run["identity"]):
            return False
        return bool(self.record.run()["rehearsal"] == self.run["rehearsal"])

    @property
    def completed_elsewhere(self) -> Record | None:
        """A completed run of the same identity that another command measured; None if there is none to reuse.

        Rehearsals, runs on several nodes and sweeps started with `sweep.again=true` reuse no runs.
        """
        folder = self.record.folder
        if not self.of_sweep or self.run["rehearsal"] or self.node.nodes > 1 or reuses_none(folder.parent):
            return None
        return reuse.find_completed(folder, self.run["identity"], self.run["configuration"], self.job.repeat)

    def open_record(self) -> list[str]:
        """Resume from the checkpoint of an earlier attempt, or archive that attempt; return notes on the resumption."""
        start = {"started": _now(), "clock": {"wall_s": time.time(), "monotonic_ns": time.monotonic_ns()}}
        try:
            with self.record.locked():
                earlier = find_resume_point(self.record, self.job, self.run)
                if earlier.epochs is None:
                    self.record.archive_attempt()
                    self._enqueue(self.run["record_id"])
                    self._describe_host()
                    self.describe(**start)
                else:
                    self._resume_record(earlier, start)
        except OSError as error:
            raise RuntimeError(write_error(error)) from error
        if earlier.reason:
            return [f"the run starts over, because its checkpoint cannot be used: {earlier.reason}."]
        return [] if earlier.epochs is None else [f"resumed from the checkpoint after epoch {earlier.epochs}."]

    def _resume_record(self, earlier: ResumePoint, start: Mapping[str, Any]) -> None:
        """Restore the record as it was at the checkpoint; the run keeps its ID and start time."""
        is_other_boot = earlier.run["boot_id"] != self.run["boot_id"]
        self.record.truncate_to_epoch(earlier.epochs, also=TIME_SERIES if is_other_boot else [])
        self._describe_host()
        starts = [*earlier.run.get("resumed", []), {"epoch": earlier.epochs, **start}]
        self._enqueue(earlier.run["record_id"])
        kept = {key: earlier.run[key] for key in KEPT_KEYS}
        self.describe(**kept, flags=collect_flags(self.record.windows()), resumed=starts)

    def _enqueue(self, record_id: str) -> None:
        if self.node.is_first:
            queue.enqueue(self.record, record_id)

    def _describe_host(self) -> None:
        write_json(self.record.folder / "host.json", host.describe(self.job.machine.root, ROOT))

    def describe(self, **metadata: Any) -> None:
        """Add metadata to the record; the dataset's checksum becomes part of the run's identity."""
        self.run.update(metadata)
        if self.run["dataset"]:
            self.run.update(_identities(self, self.run["dataset"]["digest"]))
        keys = self.job.to_dict()
        if self.job.measure.command:
            of_data = ("cache", "drop_caches") if self.job.measure.data else ()
            keys = {key: keys[key] for key in (*SCRIPT_KEYS, *of_data)}
        self.record.describe(redact_tree(keys), redact_tree(self.run))

    def applied(self, settings: Mapping[str, str]) -> None:
        """Record the values of the applied device settings, by their names, and the machine's state with them."""
        applied = {key: settings[knob.name] for key, (knob, _) in self.targets.items()}
        if limit := applied.get("power_limit"):
            knob, target = self.targets["power_limit"]
            # A device may round the requested value; a power mode has the watts of its name.
            watts = float(limit.removesuffix(" W")) if re.fullmatch(r"[\d.]+ W", limit) else target.watts
            self.run.update(
                power_limit_applied=limit,
                power_limit_w=watts,  # of each device
                power_limit_max_w=target.max_w,
                power_limit_devices=max(1, len(knob.devices)) * self.node.nodes,
            )
        self.describe(applied=applied)
        if applied:
            self._describe_host()

    def set_flags(self, flags: Mapping[str, str]) -> None:
        """Set flags of the run, each with its reason; the first reason of each flag is kept, empty ones are ignored."""
        if new := {key: text for key, text in flags.items() if text and key not in self.run["flags"]}:
            self.describe(flags={**self.run["flags"], **new})


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

    It gets the accelerator and Python of this machine, unless overrides set them.
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


def open_restore_journal(request: RunRequest) -> RestoreJournal:
    """Return the journal that keeps the original values of device settings while they are changed."""
    machine = request.job.machine
    return RestoreJournal(machine.state_dir, root=machine.root, boot_id=boot_id(), command=command_line())


def remove_empty_folders(request: RunRequest) -> None:
    """Remove the folders of a refused run, if they are empty."""
    for folder in (request.folder, request.folder.parent):
        with suppress(OSError):
            folder.rmdir()


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


def write_error(error: OSError) -> str:
    """Return the message for a run folder that cannot be written."""
    hint = "free disk space or fix the permissions, then run the command again"
    return f"cannot write the run folder: {error}\n  hint: {hint}"


def command_line() -> str:
    """Return the command that started this process."""
    program, *arguments = sys.argv  # src/train.py, or `epochmeter train`
    words = program.split() if program.startswith("epochmeter ") else [os.path.basename(sys.executable), program]
    return shlex.join([*words, *map(redact_override, arguments)])


def _identities(plan: Plan, digest: str | None) -> dict[str, str]:
    """Return the identities of the run and of the first repeat of its configuration."""
    models = [gpu.get("model", "") for gpu in plan.used_gpus]
    return {
        "identity": identity(plan.job, digest, plan.node.nodes, models),
        "configuration": identity(replace(plan.job, repeat=0), digest, plan.node.nodes, models),
    }


def _initial_metadata(plan: Plan, rehearsal: list[str]) -> dict[str, object]:
    """Return the metadata of a run that has not begun."""
    job, request = plan.job, plan.request
    return {
        "record_id": uuid.uuid4().hex,
        "sweep_id": request.folder.parent.name,
        "number": request.number,
        "of_sweep": request.of_sweep,
        "name": _display_name(request),
        **_identities(plan, dataset_checksum(job.dataset, job.storage, ROOT)),
        "choices": request.choices,
        "overrides": request.overrides,
        "command": command_line(),
        "started": _now(),
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


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _display_name(request: RunRequest) -> str:
    """Return the run's name: the overrides that affect the measurement, model, dataset, device."""
    groups = ("model", "dataset", "device")
    if command := filled_command(request.job):
        others = [override for override in request.overrides if not override.startswith("script.")]
        return " ".join([os.path.basename(command[0]), *command[1:], *map(redact_override, others)])
    keys = [(override.partition("=")[0], override) for override in request.overrides]
    first = [text for key, text in keys if key not in (*groups, "machine.root") and affects_measurement(key)]
    return " ".join([*map(redact_override, first), *(request.choices[group] for group in groups)])
