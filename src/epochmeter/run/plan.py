"""The plan of one run: its job made definite on this machine, where its record goes, what it will use."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from epochmeter.config.errors import input_error
from epochmeter.config.job import ROOT, RunRequest, affects_measurement, device_matches, identity
from epochmeter.config.schema import Job
from epochmeter.config.secrets import redact_override, redact_tree
from epochmeter.config.validation import check_all_values
from epochmeter.datasets.ready import check_storage, dataset_checksum, training_folder
from epochmeter.machine import gpus, host
from epochmeter.machine.disk import disk_of, satisfies
from epochmeter.machine.process_identity import boot_id, this_process
from epochmeter.power.knobs.knob import Knob, SettingTarget
from epochmeter.power.knobs.requests import refuse_unrestored, requested_settings, resolve_targets
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.results import reuse
from epochmeter.results.summary import collect_flags
from epochmeter.run import capacity
from epochmeter.run.data_source import is_in_memory
from epochmeter.run.nodes import Node, current_node
from epochmeter.run.nodes import check_strategy as check_nodes
from epochmeter.run.preflight import check_precision, trains_on_gpu, validate_job
from epochmeter.run.rehearsal import for_this_machine, missing_gpus, rehearsal_reasons
from epochmeter.run.resume import KEPT_KEYS, ResumePoint, find_resume_point
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record
from epochmeter.sweep.sweep_folder import reuses_none
from epochmeter.tracking import queue

GPU_METERS = ("none", "nvml", "amd", "replay")
"""The meters that count nothing but the GPUs that are used, or nothing here."""


@dataclass
class Plan:
    job: Job
    run: dict[str, Any]
    """What is known of this run beside its job; it grows as the run goes on."""
    record: Record
    gpus: list[str]
    """UUIDs of the GPUs that are metered."""
    models: list[str]
    """Of the GPUs that are used."""
    devices: list[str]
    """What is locked: the GPUs used, or the CPU."""
    targets: dict[str, tuple[Knob, SettingTarget]]
    """The knobs that are turned for it, and where to, by the keys that ask for it."""
    journal: RestoreJournal
    """Where what was there before they were turned is kept."""
    of_sweep: bool
    node: Node

    @property
    def is_already_completed(self) -> bool:
        """Measured before, and as what it would be now: what was rehearsed is measured once the machine has it."""
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

    @property
    def ranks(self) -> int | None:
        """How many processes torchrun starts on this node; None: it starts none, one process trains."""
        strategy = self.job.strategy
        return strategy.ranks if strategy.launcher == "torchrun" else None

    @property
    def holder(self) -> str:
        """Who holds the locks, for those who wait."""
        return f"pid {os.getpid()} since {self.run['started']}: {command_line()}"

    def open_record(self) -> list[str]:
        """Opens the record: the run goes on from the checkpoint of an earlier attempt, or sets aside what that left.

        What there is to say of it.
        """
        start = {"started": _now(), "clock": {"wall_s": time.time(), "monotonic_ns": time.monotonic_ns()}}
        try:
            with self.record.locked():
                earlier = find_resume_point(self.record, self.job, self.run)
                if earlier.epochs is None:
                    self.record.archive_attempt()
                    self._queue(self.run["record_id"])
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
        """Opens the record as it was after so many epochs; the run stays the one that it is."""
        # Samples of power are timed by a clock that begins with the boot.
        elsewhen = [] if earlier.run["boot_id"] == self.run["boot_id"] else ["power.csv"]
        self.record.truncate_to_epoch(earlier.epochs, also=elsewhen)
        self._describe_host()
        starts = [*earlier.run.get("resumed", []), {"epoch": earlier.epochs, **start}]
        self._queue(earlier.run["record_id"])
        kept = {key: earlier.run[key] for key in KEPT_KEYS}
        self.describe(**kept, flags=collect_flags(self.record.windows()), resumed=starts)

    def _queue(self, record_id: str) -> None:
        """Notes that a run begins; what a node keeps that is not the first is no record."""
        if self.node.is_first:
            queue.enqueue(self.record, record_id)

    def _describe_host(self) -> None:
        """Writes what the machine is as the run begins: to find that out takes a while, and is not for a whole one."""
        write_json(self.record.folder / "host.json", host.describe(self.job.machine.root, ROOT))

    def describe(self, **facts: Any) -> None:
        """Adds to what the record says of this run; what the dataset is, is part of the job's identity."""
        self.run.update(facts)
        if self.run["dataset"]:
            self.run.update(_identities(self.job, self.run["dataset"]["digest"], self.node.nodes, self.models))
        self.record.describe(redact_tree(self.job.to_dict()), redact_tree(self.run))

    def applied(self, found: Mapping[str, str]) -> None:
        """Notes what each knob was found at once it was turned, and what the machine is with that."""
        settings = {key: found[knob.name] for key, (knob, _) in self.targets.items()}
        if limit := settings.get("power_limit"):
            knob, wish = self.targets["power_limit"]
            # A device may round what it is asked for; a power mode has the watts of its name.
            watts = float(limit.removesuffix(" W")) if re.fullmatch(r"[\d.]+ W", limit) else wish.watts
            devices = max(1, len(knob.devices)) * self.node.nodes
            self.run.update(power_limit_applied=limit, power_limit_w=watts, power_limit_max_w=wish.max_w)
            self.run.update(power_limit_devices=devices)  # of each of which these are the watts
        self.describe(applied=settings)
        if settings:
            self._describe_host()

    def set_flags(self, flags: Mapping[str, str]) -> None:
        """Set flags of the run; the first text of each flag is kept."""
        if new := {key: text for key, text in flags.items() if text and key not in self.run["flags"]}:
            self.describe(flags={**self.run["flags"], **new})


def resolve_plan(order: RunRequest) -> Plan:
    """The plan for an order: the device found where none was named, values checked, rehearsals told.

    Raises ValueError for a job that is out of range or, with rehearse=false, for another machine, and RuntimeError
    for what this machine has but does not let be done, such as a power mode that takes a reboot.
    """
    check_all_values(order.job.to_dict())
    root = order.job.machine.root
    facts = host.device_facts(root)
    found = host.detect_device(device_matches(), facts)
    if order.choices["device"] == "auto":
        order = order.with_device(found)
    fits = host.is_match(order.job.device.match, facts)
    here = order if fits else for_this_machine(order)
    on_gpu = trains_on_gpu(here.job.device, facts)
    strategy = here.job.strategy
    among = current_node(os.environ)
    check_nodes(strategy, among)
    validate_job(here.job, order.choices, order.overrides, among.nodes)
    here = replace(here, job=replace(here.job, workers=capacity.worker_count(here.job.workers)))
    capacity.check_capacity(here.job, ROOT)
    check_precision(here.job.precision, is_gpu=on_gpu)
    used = gpus.select_gpus(gpus.find_gpus(Path(root)), os.environ, count=strategy.ranks) if on_gpu else []
    if strategy.name == "dp" and strategy.ranks and not on_gpu:
        raise input_error(
            f"`strategy=dp strategy.ranks={strategy.ranks}` needs GPUs, and this machine has none to train on",
            f"use strategy=ddp strategy.ranks={strategy.ranks} for processes on the CPU, or leave it out",
        )
    journal = open_restore_journal(order)
    touched = fits and here.job.rehearse is not True
    demands = (
        requested_settings(here.job, trains_on_gpu=on_gpu, gpus=used, root=root, journal=journal) if touched else None
    )
    # A GPU that no driver lists, as a Jetson's, is there all the same.
    fewer = missing_gpus(strategy, max(1, len(used)) if on_gpu else 0)
    rehearsal = rehearsal_reasons(order, None if fits else found, _medium_mismatch(here.job), demands, fewer)
    turns = [] if rehearsal else resolve_targets(demands or [])
    refuse_unrestored([knob for knob, _ in turns], journal)
    if strategy.ranks is None:  # all there are: how many that is tells one measurement from another
        here = replace(here, job=replace(here.job, strategy=replace(strategy, ranks=max(1, len(used)))))
    models = [gpu.get("model", "") for gpu in used]
    trained_on = [f"gpu-{gpu['bus']}" for gpu in used] or ["gpu" if on_gpu else "cpu"]
    return Plan(
        job=here.job,
        run=_run_metadata(here, rehearsal, among.nodes, models),
        record=Record(order.folder),
        gpus=[name for gpu in used if (name := gpus.meter_id(gpu))],
        models=models,
        devices=list(dict.fromkeys(_shared_devices(order, facts) + trained_on)),
        targets={demand.key: turn for demand, turn in zip(demands or [], turns, strict=bool(turns))},
        journal=journal,
        of_sweep=order.of_sweep,
        node=among,
    )


def _shared_devices(order: RunRequest, facts: Mapping[str, str | None]) -> list[str]:
    """What else a run's energy is that of: a Jetson's rails and a CPU's counters are those of all that it does."""
    if facts["tegra"]:
        return ["module"]
    return [] if order.job.meter.name in GPU_METERS else ["cpu"]


def _medium_mismatch(job: Job) -> str | None:
    """What the data would lie on where that is not the storage asked for; ValueError where there is none."""
    folder, asked = training_folder(job.dataset, job.storage, ROOT), job.storage.medium
    if asked is None or folder is None:
        return None
    check_storage(job.storage, ROOT)
    disk = disk_of(folder)
    return None if satisfies(asked, disk) else f"{folder} is on {disk.medium}"


def open_restore_journal(order: RunRequest) -> RestoreJournal:
    """Where what knobs were at is kept while they are turned."""
    machine = order.job.machine
    return RestoreJournal(machine.state_dir, root=machine.root, boot_id=boot_id(), command=command_line())


def remove_empty_folders(order: RunRequest) -> None:
    """Removes the folders that were made for an order that is refused, where nothing is in them."""
    for folder in (order.folder, order.folder.parent):
        with suppress(OSError):
            folder.rmdir()


def plan_warnings(plan: Plan) -> list[str]:
    """What a person should know before the run: none of it stops it."""
    job = plan.job
    said = [wish.note for _, wish in plan.targets.values() if wish.note]
    if job.compile:
        said.append("note: epoch 1 includes the compilation of the model, which may take minutes")
    cores, ranks = capacity.usable_cores(), plan.ranks or 1
    typed = (override.partition("=") for override in plan.run["overrides"])
    is_typed = any(key == "workers" and value.isdecimal() for key, _, value in typed)
    if is_typed and capacity.worker_count(job.workers) * ranks > cores:
        each = f" for each of {ranks} ranks" if ranks > 1 else ""
        said.append(f"warning: workers={job.workers} DataLoader workers{each} are more than the {cores} cores.")
    if ranks > 1 and "cpu" in plan.devices:
        said.append(f"note: {ranks} ranks share the {cores} cores of the CPU")
    if job.log_loss and any(name.startswith("gpu") for name in plan.devices):
        said.append("`log_loss=true` synchronizes with the GPU up to twice per second, which is included in the times")
    if is_in_memory(job):
        what = "synthetic_batches" if job.synthetic_batches else f"dataset.layout={job.dataset.layout}"
        said.append(f"note: {what} keeps the samples in memory; storage and page cache are not used")
    return said


def write_error(error: OSError) -> str:
    hint = "free disk space or fix the permissions, then run the command again"
    return f"cannot write the run folder: {error}\n  hint: {hint}"


def command_line() -> str:
    """The command that this process was started by."""
    return shlex.join([os.path.basename(sys.executable), *map(redact_override, sys.argv)])


def _identities(job: Job, dataset: str | None, nodes: int, models: list[str]) -> dict[str, str]:
    """The identity of a run, and that of the first repeat of its configuration."""
    return {
        "identity": identity(job, dataset, nodes, models),
        "configuration": identity(replace(job, repeat=0), dataset, nodes, models),
    }


def _run_metadata(order: RunRequest, rehearsal: list[str], nodes: int, models: list[str]) -> dict[str, Any]:
    job = order.job
    return {
        "record_id": uuid.uuid4().hex,
        "sweep_id": order.folder.parent.name,
        "number": order.number,
        "of_sweep": order.of_sweep,
        "name": _display_name(order),
        **_identities(job, dataset_checksum(job.dataset, job.storage, ROOT), nodes, models),
        "choices": order.choices,
        "overrides": order.overrides,
        "command": command_line(),
        "started": _now(),
        # Whose process this is, for those who ask whether it still lives: never that of a machine replayed.
        **this_process()._asdict(),
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


def _display_name(order: RunRequest) -> str:
    """A run's name in lists, which cut it short: what was typed that changes the measurement, then what it trains."""
    last = ("model", "dataset", "device")
    typed = [(override.partition("=")[0], override) for override in order.overrides]
    first = [text for key, text in typed if key not in (*last, "machine.root") and affects_measurement(key)]
    return " ".join([*map(redact_override, first), *(order.choices[group] for group in last)])
