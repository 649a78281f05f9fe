"""The plan of one run: its configuration on this machine, the devices and settings it uses, and its record."""

import math
import os
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from epochmeter.config.arguments import undefer_key
from epochmeter.config.identity import identity, key_differences
from epochmeter.config.installation import ROOT
from epochmeter.config.job import SCRIPT_KEYS
from epochmeter.config.request import RunRequest
from epochmeter.config.schema import Job
from epochmeter.config.script import ATTACHED
from epochmeter.config.secrets import conceal_tree
from epochmeter.machine import host
from epochmeter.machine.gpus import Gpu, meter_id
from epochmeter.machine.suspension import suspended_ns
from epochmeter.power.knobs.knob import Knob, SettingTarget
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.results.quantities import span
from epochmeter.results.run_info import Clock, RunInfo, Start, read_run
from epochmeter.results.summary import collect_flags
from epochmeter.results.validation import Validation
from epochmeter.run.moments import ended_attempt
from epochmeter.run.nodes import Node, ScriptNode
from epochmeter.run.validated import stored_responses
from epochmeter.shared.atomic_files import append_to, write_json
from epochmeter.shared.problem import MachineError, Place, Problem
from epochmeter.shared.record import CHECKPOINT, HOST_FILE, JOB_FILE, TIME_SERIES, Record, before_checkpoint
from epochmeter.shared.types import Document
from epochmeter.tracking import queue

MAX_CLOCK_ERROR_S = 60.0  # smallest change of the clock in a run that means that somebody set it


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
    digest: str | None  # the dataset's checksum; None: it must be made, or a user's folder inspected, first
    run: RunInfo  # the run's metadata, as in its record
    validation: Validation | None = None  # of this machine
    script_node: ScriptNode = field(default_factory=ScriptNode)  # this node of a script, whose `node` is a single one
    is_durable: bool = False  # whether job.json and host.json are on disk, as what replaces them has to be then
    identity_digest: str | None = None  # checksum of the dataset with which `describe` last computed run.identity

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
        started, clock = now(), read_clock()
        try:
            if self.job.measure.command:
                with suppress(PermissionError):  # of a file system without permissions
                    self.record.folder.chmod(0o700)
            with self.record.locked():
                earlier = find_resume_point(self.record, self.job, self.run)
                if earlier.run is None:
                    self.record.archive_attempt()
                    self.run.started, self.run.clock = started, clock
                else:
                    attempt = ended_attempt(self.record, earlier.run, earlier.epochs, self.run, clock)
                    self.run.attempts = [*earlier.run.attempts, attempt]
                    is_other_boot = earlier.run.boot_id != self.run.boot_id
                    self.record.truncate_to_epoch(earlier.epochs, also=TIME_SERIES if is_other_boot else [])
                    self._continue(earlier.run, Start(epoch=earlier.epochs, started=started, clock=clock))
                if self.node.is_first and self.script_node.is_first:
                    queue.enqueue(self.record, self.run.record_id)
                self._describe_host()
                self.describe(durably=False)
        except OSError as error:
            raise MachineError(write_problem(error)) from error
        if earlier.reason:
            return [f"the run starts over, because its checkpoint cannot be used: {earlier.reason}."]
        return [] if earlier.run is None else [f"resumed from the checkpoint after epoch {earlier.epochs}."]

    def _continue(self, earlier: RunInfo, start: Start) -> None:
        """Set the metadata of a resumed run as they were at the checkpoint."""
        self.run.record_id, self.run.started, self.run.clock = earlier.record_id, earlier.started, earlier.clock
        self.run.power_limit_search = earlier.power_limit_search
        self.run.flags = collect_flags(self.record.windows())
        self.run.resumed = [*earlier.resumed, start]
        self.is_durable = True

    def _describe_host(self) -> None:
        described = host.describe(self.job.machine.root, ROOT)
        write_json(self.record.folder / HOST_FILE, described, durably=self.is_durable)

    def describe(self, *, durably: bool = True) -> None:
        """Write configuration and metadata to the record; the dataset's checksum becomes part of the run's identity.

        Args:
            durably: Wait until they are on disk, and the host's description with them. Before the first epoch, there
                is nothing yet that could be lost.
        """
        digest = self.run.dataset["digest"] if self.run.dataset else None
        if digest != self.identity_digest:
            self.run.identity, self.identity_digest = identity_of(self, digest), digest
        if durably and not self.is_durable and (host_file := self.record.folder / HOST_FILE).exists():
            with append_to(host_file):
                self.is_durable = True
        self.record.describe(self._recorded_keys, conceal_tree(self.run.document()), durably or self.is_durable)

    @cached_property
    def _recorded_keys(self) -> Document:
        """The configuration without secrets, and of a script without keys that it does not read."""
        keys = self.job.to_dict()
        if self.job.measure.command:
            of_data = ("cache", "drop_caches") if self.job.measure.data else ()
            keys = {key: keys[key] for key in (*SCRIPT_KEYS, *of_data)}
        concealed: Document = conceal_tree(keys)
        return concealed

    def correct_start(self) -> list[str]:
        """Give the start of this attempt by the present clock if that was set since then; return a note, if so."""
        attempt = self.run.start_of(math.inf)
        before = attempt.clock
        if before is None:  # the record was not opened
            return []
        set_s = before.change_s(read_clock())
        if set_s is None or abs(set_s) <= MAX_CLOCK_ERROR_S:
            return []
        started = (datetime.fromisoformat(attempt.started) + timedelta(seconds=round(set_s))).isoformat()
        clock = replace(before, wall_s=before.wall_s + set_s)
        if self.run.resumed:
            self.run.resumed[-1] = replace(attempt, started=started, clock=clock)
        else:
            self.run.started, self.run.clock = started, clock
        self.describe()
        change, direction = span(abs(set_s)), "forward" if set_s > 0 else "back"
        return [f"the clock was set {direction} by {change} during the run: its start is given by the new clock."]

    def record_settings(self, settings: Mapping[str, str]) -> None:
        """Record the values of the applied device settings, by their names, and the machine's state with them."""
        applied = {key: settings[knob.name] for key, (knob, _) in self.targets.items()}
        if limit := applied.get("power_limit"):
            knob, target = self.targets["power_limit"]
            # A device may round the requested value; a power mode has the watts of its name.
            applied_w = knob.watts_of(limit)
            self.run.power_limit_applied = limit
            self.run.power_limit_w = target.watts if applied_w is None else applied_w
            self.run.power_limit_max_w = target.max_w
            self.run.power_limit_devices = max(1, len(knob.devices)) * self.node.nodes
        self.run.applied = applied
        self.describe(durably=False)
        if applied:
            self._describe_host()

    def set_flags(self, flags: Mapping[str, str]) -> None:
        """Set flags of the run, each with its reason; the first reason of each flag is kept, empty ones are ignored."""
        if new := {key: text for key, text in flags.items() if text and key not in self.run.flags}:
            self.run.flags |= new
            self.describe()


class ResumePoint(NamedTuple):
    epochs: int = 0  # that are completed
    run: RunInfo | None = None  # metadata of the interrupted run; None: it cannot resume
    reason: str = ""  # why it cannot resume


def find_resume_point(record: Record, job: Job, run: RunInfo) -> ResumePoint:
    """Return where a run can resume; no reason is given if it is completed, or of another configuration."""
    if not (record.folder / CHECKPOINT).exists() or record.is_completed():
        return ResumePoint()
    reason = f"its {JOB_FILE} cannot be read"
    try:
        earlier = read_run(record)
        if earlier.host != run.host:
            return ResumePoint(reason=f"it was measured on another host, {earlier.host}")
        if (earlier.identity, earlier.rehearsal) != (run.identity, run.rehearsal):
            if earlier.overrides != conceal_tree(run.overrides):
                return ResumePoint()
            return ResumePoint(reason="; ".join(recorded_differences(job, run, record.job(), earlier)))
        checkpoint = record.checkpoint(verify=True)
        if checkpoint is None:
            return ResumePoint(reason="the file is damaged")
        if checkpoint["record_id"] != earlier.record_id:
            return ResumePoint(reason="it belongs to another run")
        reason, epochs = "the epochs before it cannot be read", checkpoint["epochs"]
        windows = before_checkpoint(record.windows(), epochs)
        if not record.is_complete(windows, epochs, job.evaluate):
            return ResumePoint(reason="epochs before it are missing")
    except (OSError, ValueError, KeyError):
        return ResumePoint(reason=reason)
    return ResumePoint(epochs, earlier)


def open_restore_journal(request: RunRequest) -> RestoreJournal:
    """Return the journal that keeps the original values of device settings while they are changed."""
    machine = request.job.machine
    return RestoreJournal(machine.state_dir, root=machine.root, command=command_line())


def write_problem(error: OSError) -> Problem:
    """Return the problem of a run folder that cannot be written."""
    what = f"cannot write the run folder: {error.strerror or error}"
    hint = "free disk space or fix the permissions, then run the command again"
    return Problem(what, hint, where=Place(file=str(error.filename or "")))


def command_line() -> str:
    """Return the command that started this process; for a `Meter`, that of its script."""
    program, *arguments = sys.argv  # src/train.py, or `epochmeter train`
    if ATTACHED in os.environ:  # the script's command follows the overrides
        program, *arguments = arguments[arguments.index("--") + 1 :] if "--" in arguments else sys.argv
    words = program.split() if program.startswith("epochmeter ") else [os.path.basename(sys.executable), program]
    return shlex.join([*words, *conceal_tree([*map(undefer_key, arguments)])])


def identity_of(plan: Plan, digest: str | None) -> str:
    """Return the identity of a run with the checksum of its dataset."""
    gpus = [gpu.get("model", "") for gpu in plan.used_gpus]
    responses = stored_responses(plan.validation, plan.job.meter.name)
    return identity(plan.job, digest, plan.node.nodes, gpus, responses=responses)


def recorded_differences(job: Job, run: RunInfo, recorded_keys: Document, recorded_run: RunInfo) -> list[str]:
    """Return why a recorded run does not measure the same as a planned one, although its command is the same."""
    differences = [] if recorded_run.host == run.host else [f"host {recorded_run.host}, now {run.host}"]
    if recorded_run.rehearsal != run.rehearsal:
        differences.append("one of them is a rehearsal" if not (recorded_run.rehearsal and run.rehearsal)
                           else "they are rehearsals for other reasons")  # fmt: skip
    differences += key_differences(Job.from_dict(recorded_keys), job)
    return differences or ["its dataset is not here or has changed, or the GPUs or the version of epochmeter have"]


def read_clock() -> Clock:
    """Return the present time by the clocks that relate the record's times to the time of day."""
    wall_s, monotonic_ns = time.time(), time.monotonic_ns()
    return Clock(wall_s=wall_s, monotonic_ns=monotonic_ns, boottime_ns=monotonic_ns + suspended_ns())


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
