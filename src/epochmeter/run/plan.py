"""The plan of one run: its configuration on this machine, the devices and settings it uses, and its record."""

import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from epochmeter.config.identity import identity
from epochmeter.config.installation import ROOT
from epochmeter.config.job import SCRIPT_KEYS
from epochmeter.config.request import RunRequest
from epochmeter.config.schema import Job
from epochmeter.config.secrets import redact_override, redact_tree
from epochmeter.machine import host
from epochmeter.machine.gpus import Gpu, meter_id
from epochmeter.power.knobs.knob import Knob, SettingTarget
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.results.summary import collect_flags
from epochmeter.run.nodes import Node
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import CHECKPOINT, TIME_SERIES, Record
from epochmeter.tracking import queue

KEPT_ON_RESUME = ("record_id", "started", "clock", "power_limit_search")


@dataclass
class Plan:
    """One run on this machine, as `resolve_plan` (resolve.py) returns it; `run` grows until the run ends."""

    request: RunRequest
    job: Job
    node: Node
    on_gpu: bool  # whether it trains on GPUs
    used_gpus: list[Gpu]
    devices: list[str]  # to lock
    targets: dict[str, tuple[Knob, SettingTarget]]  # by the keys that request them
    record: Record
    journal: RestoreJournal
    run: dict[str, Any] = field(default_factory=dict)  # the run's metadata, as in its record

    @property
    def gpus(self) -> list[str]:
        """The GPUs to meter, by the names that their meter uses."""
        return [name for gpu in self.used_gpus if (name := meter_id(gpu))]

    @property
    def ranks(self) -> int | None:
        """The number of processes that torchrun starts on this node; None: one process trains, without torchrun."""
        strategy = self.job.strategy
        return strategy.ranks if strategy.launcher == "torchrun" else None

    def open_record(self) -> list[str]:
        """Resume from the checkpoint of an earlier attempt, or archive that attempt; return notes on the resumption."""
        start: dict[str, Any] = {
            "started": now(),
            "clock": {"wall_s": time.time(), "monotonic_ns": time.monotonic_ns()},
        }
        try:
            with self.record.locked():
                earlier = find_resume_point(self.record, self.job, self.run)
                if earlier.epochs is None:
                    self.record.archive_attempt()
                    metadata = start
                else:  # the record as it was at the checkpoint; the run keeps its ID, start time and searches
                    is_other_boot = earlier.run["boot_id"] != self.run["boot_id"]
                    self.record.truncate_to_epoch(earlier.epochs, also=TIME_SERIES if is_other_boot else [])
                    metadata = {key: earlier.run[key] for key in KEPT_ON_RESUME if key in earlier.run}
                    metadata["flags"] = collect_flags(self.record.windows())
                    metadata["resumed"] = [*earlier.run.get("resumed", []), {"epoch": earlier.epochs, **start}]
                if self.node.is_first:
                    queue.enqueue(self.record, metadata.get("record_id", self.run["record_id"]))
                self._describe_host()
                self.describe(**metadata)
        except OSError as error:
            raise RuntimeError(write_error(error)) from error
        if earlier.reason:
            return [f"the run starts over, because its checkpoint cannot be used: {earlier.reason}."]
        return [] if earlier.epochs is None else [f"resumed from the checkpoint after epoch {earlier.epochs}."]

    def _describe_host(self) -> None:
        write_json(self.record.folder / "host.json", host.describe(self.job.machine.root, ROOT))

    def describe(self, **metadata: Any) -> None:
        """Add metadata to the record; the dataset's checksum becomes part of the run's identity."""
        self.run.update(metadata)
        if self.run["dataset"]:
            self.run["identity"] = identity_of(self, self.run["dataset"]["digest"])
        keys = self.job.to_dict()
        if self.job.measure.command:
            of_data = ("cache", "drop_caches") if self.job.measure.data else ()
            keys = {key: keys[key] for key in (*SCRIPT_KEYS, *of_data)}
        self.record.describe(redact_tree(keys), redact_tree(self.run))

    def record_settings(self, settings: Mapping[str, str]) -> None:
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


class ResumePoint(NamedTuple):
    epochs: int | None = None  # that are completed; None: the run cannot resume
    run: Mapping[str, Any] = {}  # metadata of the interrupted run
    reason: str = ""  # why it cannot resume


def find_resume_point(record: Record, job: Job, run: Mapping[str, Any]) -> ResumePoint:
    """Return where a run can resume; no reason is given if it is completed, or of another configuration."""
    if not (record.folder / CHECKPOINT).exists() or record.is_completed():
        return ResumePoint()
    reason = "its job.json cannot be read"
    try:
        earlier = record.run()
        if earlier.get("host") != run["host"]:
            return ResumePoint(reason=f"it was measured on another host, {earlier.get('host')}")
        if any(earlier.get(key) != run[key] for key in ("identity", "rehearsal")):
            return ResumePoint()
        checkpoint = record.checkpoint(verify=True)
        if checkpoint is None:
            return ResumePoint(reason="the file is damaged")
        if checkpoint["record_id"] != earlier["record_id"]:
            return ResumePoint(reason="it belongs to another run")
        reason, epochs = "the epochs before it cannot be read", checkpoint["epochs"]
        windows = [window for window in record.windows() if window["epoch"] < epochs]
        if not record.is_complete(windows, epochs, job.evaluate):
            return ResumePoint(reason="epochs before it are missing")
    except (OSError, ValueError, KeyError):
        return ResumePoint(reason=reason)
    return ResumePoint(epochs, earlier)


def open_restore_journal(request: RunRequest) -> RestoreJournal:
    """Return the journal that keeps the original values of device settings while they are changed."""
    machine = request.job.machine
    return RestoreJournal(machine.state_dir, root=machine.root, command=command_line())


def write_error(error: OSError) -> str:
    """Return the message for a run folder that cannot be written."""
    hint = "free disk space or fix the permissions, then run the command again"
    return f"cannot write the run folder: {error}\n  hint: {hint}"


def command_line() -> str:
    """Return the command that started this process."""
    program, *arguments = sys.argv  # src/train.py, or `epochmeter train`
    words = program.split() if program.startswith("epochmeter ") else [os.path.basename(sys.executable), program]
    return shlex.join([*words, *map(redact_override, arguments)])


def identity_of(plan: Plan, digest: str | None) -> str:
    """Return the identity of a run with the checksum of its dataset."""
    return identity(plan.job, digest, plan.node.nodes, [gpu.get("model", "") for gpu in plan.used_gpus])


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
