"""Metadata of a run, `run` in its job.json: written by the controller from `RunInfo`, and read as one everywhere.

A further fact about runs is a field of `RunInfo`, set where it is measured and written by `Plan.describe`. The training
process, whose Python may be older than dataclasses, reads the JSON itself by `Record.run`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, TypedDict

from epochmeter.config.schema import Job
from epochmeter.machine.energy_codes import EnergyReason
from epochmeter.results import documents
from epochmeter.results.documents import Fields
from epochmeter.shared.problem import Problem
from epochmeter.shared.process_identity import Process
from epochmeter.shared.record import Record
from epochmeter.shared.renamed import current_override
from epochmeter.shared.types import Document
from epochmeter.shared.units import NANOSECOND

NO_ENERGY = "no_energy"  # code of a problem
YAML_VALUES = {"True": "true", "False": "false", "None": "null"}  # as Hydra's sweeps write them -> as YAML
EPOCH_METRICS = (
    *("epoch/e2e_s", "epoch/data_stall_s", "epoch/loader_start_s", "epoch/copy_s", "epoch/compute_s"),
    *("epoch/overhead_s", "epoch/energy_j", "epoch/power_mean_w"),
)
"""The per-epoch metrics that reports use."""
DISTURBED = {
    "gpu_shared": "another process used the GPU",
    "cpu_shared": "other processes used the processor",
    "throttled": "heat or over-current lowered the clocks",
    "energy_disagrees": "two measurements of the energy disagreed",
    "setting_changed": "another program changed a device setting",
    "paused": "the run was paused",
    "concurrent_training": "another thread of the script trained at the same time",
}
"""Possible disturbances of a measurement, by the tags of runs."""
OVERSUBSCRIBED = "oversubscribed"
"""Tag of a run with more threads ready to run than cores: a property of its configuration, not a disturbance."""
PROCESS = "process"
"""Name of the windows of a process that ran already."""
DIVERGED = "diverged"
"""Tag of a run with a loss that is not finite: its times hold, but it trained no model."""


@dataclass(kw_only=True)
class Clock(Fields):
    """One moment by several clocks, which relates the record's times to the time of day."""

    wall_s: float  # Unix time
    monotonic_ns: int
    boottime_ns: int | None = None  # includes suspensions; None in older records

    @property
    def suspended_s(self) -> float | None:
        """How long the machine had been suspended since it booted, in seconds; None if it is not known."""
        return None if self.boottime_ns is None else (self.boottime_ns - self.monotonic_ns) * NANOSECOND

    def unix_s(self, at_ns: float, suspended_s: float = 0.0) -> float:
        """Return the Unix time of a time of the monotonic clock.

        Args:
            suspended_s: How long the machine was suspended between this moment and that time.
        """
        return self.wall_s + (at_ns - self.monotonic_ns) * NANOSECOND + suspended_s

    def change_s(self, now: "Clock") -> float | None:
        """Return by how much the time of day was set from this moment to `now`, in seconds; None if it is not known."""
        if self.boottime_ns is None or now.boottime_ns is None:
            return None
        return now.wall_s - self.wall_s - (now.boottime_ns - self.boottime_ns) * NANOSECOND


@dataclass(kw_only=True)
class Start(Fields):
    """A start of the run: the first, or a resumption."""

    epoch: int  # first epoch that it measures
    started: str = ""  # time of day, in ISO 8601
    clock: Clock | None = None


class EnergyScope(TypedDict):
    """Several domains together."""

    covers: str | None
    domains: list[str]


@dataclass(kw_only=True)
class Energy(Fields):
    """How the run's energy is measured."""

    ALWAYS: ClassVar = ("source", "covers", "domains", "reason")
    source: str | None = None  # counter, sampled, estimated or none
    covers: str | None = None  # devices whose energy is in the total
    domains: list[str] = field(default_factory=list)  # meter's domains in the total
    reason: str | None = None  # why there is no total, or less than was configured
    codes: list[str] = field(default_factory=list)  # of `EnergyCode`, if the energy is absent or doubtful
    hint: str = ""  # what to do about it, if there is advice
    machine: EnergyScope | None = None  # all domains, if they cover more than the total
    limit_w: float | None = None  # the largest power of these domains together, if each has one

    @property
    def is_measured(self) -> bool:
        """Whether the energy is measured, rather than estimated or absent."""
        return self.source in ("counter", "sampled")

    @property
    def missing(self) -> Problem | None:
        """Why the energy is not measured; None if it is."""
        return None if self.is_measured or self.reason is None else Problem(self.reason, self.hint, NO_ENERGY)


class DatasetFacts(TypedDict, total=False):
    """The dataset's manifest (datasets/manifest.py), and the folder to train from."""

    name: str
    digest: str
    splits: dict[str, int | None] | None
    folder: str | None
    source: str | None
    count: float | None
    bytes: float | None
    classes: int | None


class Storage(TypedDict, total=False):
    """The disk of the samples (machine/disk.py)."""

    medium: str | None
    reason: str | None


class GpuFacts(TypedDict, total=False):
    name: str
    uuid: str | None
    memory_bytes: int


class Peaks(TypedDict, total=False):
    """Measured peaks of one device (worker/peaks.py), or why there are none."""

    flop_per_s: float
    bytes_per_s: float
    launch_s: float
    reason: str


class _LoaderClass(TypedDict("_LoaderClass", {"class": str}, total=False)):
    """The fact whose name is a keyword of Python."""


class LoaderFacts(_LoaderClass, total=False):
    """Facts on a loader (agent/facts.py); those that are unknown, or do not apply, are absent or None."""

    windows: list[str]  # of a script: kinds of the windows that its passes were
    batch: int | None
    samples: int | None  # of a pass
    batches: int | None  # of a pass
    workers: int | None
    prefetch: int | None  # batches per worker in advance
    start_method: str | None  # of the workers: `fork`, `spawn` or `forkserver`
    pin_memory: bool | None
    persistent_workers: bool | None
    drop_last: bool | None
    in_order: bool | None  # whether batches are delivered in the order of the sampler
    iterable: bool | None  # whether the dataset is an `IterableDataset`
    dataset: str | None  # class, as the following
    sampler: str | None
    batch_sampler: str | None
    collate: str | None  # the function's name, or else its class


class RankPlace(TypedDict, total=False):
    """Where a rank is."""

    rank: int
    host: str
    device: str  # `cpu`, `cuda:1`
    gpu: str  # UUID


class CountedFlops(TypedDict, total=False):
    """The FLOPs of one step of a script (run/script_flops.py), or why they are not known."""

    flops: float
    recomputed_flops: float  # of forward operators that ran again in the backward pass
    samples: float | None  # of the step; None: not known
    precision: str | None  # of most of the FLOPs; None: not known
    not_counted: dict[str, int]  # calls by the name of what may have further FLOPs
    reason: str


class Training(TypedDict, total=False):
    """Facts that the training process reports (worker/training.py, agent/facts.py)."""

    python: str | None
    torch: str | None
    accelerator: str
    gpu: GpuFacts
    gpus: list[str | None]  # UUID of each rank's GPU
    gpus_here: list[str | None]  # the same on the first node
    ranks: int
    places: list[RankPlace]  # of several ranks, in their order in `of_ranks`
    threads: int  # of torch, per rank
    peaks: Peaks | None
    conventions: dict[str, float]  # FLOPs per sample by the name of a convention
    operators: dict[str, dict[str, float]]  # calls, FLOPs and bytes of a step by the name of an operator
    loaders: list[LoaderFacts]  # of a script's windows; that of the last epoch is the first
    step: CountedFlops  # of a script


class SensorResponse(TypedDict, total=False):
    """The response of the power sensor (power/uncertainty.py)."""

    averaging_s: float | None
    lag_s: float
    renewal_s: float | None
    is_filter: bool


class ValidationFacts(TypedDict, total=False):
    """The validation of the machine with which a run's numbers stand (results/validation.py)."""

    validated: str  # time of day, in ISO 8601
    version: str  # of epochmeter
    driver: str | None  # of the GPU
    passed: int  # number of lines, as the following
    failed: int
    untested: int
    validated_response: dict[str, SensorResponse]  # measured responses that the uncertainty uses, by domain


class TracedSteps(TypedDict, total=False):
    """The steps of the profiler's trace: `protocol.Traced`, and their power or why it is not known."""

    opened_ns: int
    closed_ns: int
    wall_offset_ns: int | None
    loads: list[list[int]]
    energy_uncertainty_j: float
    response: SensorResponse | None
    reason: str | None
    code: str  # of `EnergyCode`, with the reason


class IdlePower(TypedDict):
    power_w: float
    uncertainty_w: float


class Idle(TypedDict, total=False):
    """Idle power around training."""

    before: IdlePower
    after: IdlePower


class Rest(TypedDict, total=False):
    """The wait for a cool device before the run."""

    waited_s: float
    temperature_c: float
    reason: str


class IdleWait(TypedDict, total=False):
    """The wait for an idle processor before the run (`sweep.wait_idle`)."""

    waited_s: float
    other_cpu_fraction: float  # of others, at its end
    reason: str  # why it is not known how much others use


class Reason(TypedDict):
    reason: str


class Moments(TypedDict, total=False):
    """When an attempt of a run went from one stage to the next, on the monotonic clock; docs/run-folder.md."""

    command_ns: int  # its command was started; of a run of a sweep, its turn came
    process_ns: int  # the training process, or the script, was started
    imported_ns: int  # it had imported torch
    peaks_ns: list[int]  # begin and end of the measurement of the device's peaks, if there was one
    opened_ns: int  # of a process that ran already: its first window was opened
    saves_ns: list[list[int]]  # begin and end of each file that it saved, as far as they are known
    ended_ns: int  # it had ended
    recorded_ns: int  # the record was complete


@dataclass(kw_only=True)
class Attempt(Fields):
    """An earlier attempt of a resumed run, as far as it counts in the account of the run."""

    moments: Moments  # its end, if it was killed: the last time at which it wrote to the record
    epochs: int  # that are kept: those before the checkpoint from which the next attempt resumed
    gap_s: float | None = None  # from its end until the next command was started; None if that is not known


class StageParts(TypedDict, total=False):
    """What records of earlier versions lack of a `StageEnergy`."""

    parts: dict[str, float]  # of the uncertainty: `Uncertainty` in results/energy_sums.py


class StageEnergy(StageParts):
    """Energy of a stage of a run outside of its windows."""

    energy_j: float
    uncertainty_j: float  # 95 % confidence interval (plus or minus)


class BudgetUse(TypedDict):
    """The use of a budget after some epochs."""

    key: str  # of `budget`
    limit: float
    used: float  # in these epochs and their evaluations
    expected: float  # with one more, by the forecast
    epochs: int


@dataclass(kw_only=True)
class RunInfo(Fields):
    """Metadata of a run, beside its configuration.

    Fields that a record lacks have their defaults, and fields that this version does not know are in `other`.
    """

    ALWAYS: ClassVar = (
        *("of_sweep", "start_ticks", "pid_namespace", "energy", "flags", "dataset"),
        *("power_limit_applied", "power_limit_w", "power_limit_max_w", "power_limit_devices"),
    )
    # What was run
    record_id: str
    sweep_id: str | None = None
    number: int
    of_sweep: bool = False
    name: str = ""  # overrides that affect the measurement, model, dataset, device
    identity: str  # checksum of all that makes runs comparable (config/identity.py)
    choices: dict[str, str] = field(default_factory=dict)  # option of each group of conf/
    overrides: list[str]
    command: str = ""
    # When, where and by which process
    started: str = ""  # time of day, in ISO 8601
    host: str | None = None
    pid: int | None = None
    boot_id: str | None = None
    start_ticks: str | None = None
    pid_namespace: str | None = None
    # Conditions of the measurement
    rehearsal: list[str]  # settings that were not applied; empty: it is no rehearsal
    energy: Energy = field(default_factory=Energy)
    power_limit_applied: str | None = None
    power_limit_w: float | None = None  # of each device
    power_limit_max_w: float | None = None
    power_limit_devices: int | None = None
    flags: dict[str, str] = field(default_factory=dict)  # disturbance -> its first reason
    dataset: DatasetFacts | None = None  # None until it is prepared
    clock: Clock | None = None  # at `started`; None until the record is open
    resumed: list[Start] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)  # before each resumption
    rest: Rest | None = None
    idle_wait: IdleWait | None = None
    settling: dict[str, object] = field(default_factory=dict)  # the warm-up of `sweep.settle`, if it was requested
    usable_cores: int | None = None  # by affinity and quota; None in older records
    applied: dict[str, str] | None = None  # values of the device settings by the keys that request them
    storage: Storage = field(default_factory=Storage)
    # Facts that are measured
    idle: Idle | None = None  # None until it is measured, or was not to be
    model: dict[str, float | None] = field(default_factory=dict)  # statistics by metric name in `model/`
    training: Training = field(default_factory=Training)
    forecast: Reason | None = None  # why there is none
    budget: BudgetUse | None = None  # the first budget that one more epoch would have exceeded
    bleu: float | None = None  # of the trained model's translations of the validation pairs
    no_bleu: str | None = None  # why it is not known, although it was asked for
    power_limit_search: list[dict[str, object]] = field(default_factory=list)
    traced: TracedSteps = field(default_factory=TracedSteps)
    moments: Moments = field(default_factory=Moments)
    stage_energies: dict[str, StageEnergy] = field(default_factory=dict)  # `start`, `between`, `finish`; if known
    stage_energy_reasons: dict[str, list[EnergyReason]] = field(default_factory=dict)  # why those are not known
    slurm_energy_j: float | None = None  # what Slurm's accounting counted for the run's job
    gpu_counters: Reason | None = None  # why there are none
    run_queue: Reason | None = None  # why it is not known how long threads wait for a core
    validation: ValidationFacts | None = None  # None: this machine was not validated

    @property
    def process(self) -> Process:
        """The process that measures or measured the run."""
        return Process(self.host or "", self.pid or 0, self.boot_id, self.start_ticks, self.pid_namespace)

    @property
    def medium(self) -> str | None:
        """What the samples are on; None if it is not known."""
        return self.storage.get("medium")

    def start_of(self, epoch: float) -> Start:
        """Return the start (the first, or a resumption) that measured this epoch; each has its clock."""
        first = Start(epoch=0, started=self.started, clock=self.clock)
        return [first, *(start for start in self.resumed if start.epoch <= epoch)][-1]

    def clock_of(self, epoch: float) -> Clock:
        """Return the clock that timed an epoch; ValueError if the record lacks it."""
        if clock := self.start_of(epoch).clock:
            return clock
        raise ValueError("`run.clock` is missing")

    @property
    def training_samples(self) -> int | None:
        """Number of samples of a pass over the training data; None if it is not known."""
        return ((self.dataset or {}).get("splits") or {}).get("train")


class Schema(TypedDict, total=False):
    schema: int


class Description(Schema):
    """`job.json`."""

    job: Job
    run: RunInfo


class _Described(TypedDict):
    run: RunInfo


def read_run(record: Record) -> RunInfo:
    """Return the metadata of a run with its texts as recorded; OSError, or ValueError if it is damaged."""
    described: _Described = documents.check({"run": record.run()}, _Described)
    return described["run"]


def training_facts(facts: Document) -> Training:
    """Return the facts that a training process has sent; ValueError if the record could not be read with them."""
    checked: Training = documents.check(dict(facts), Training)
    return checked


def typed_keys(overrides: Iterable[str]) -> dict[str, str]:
    """Return overrides as typed, by key without a leading plus sign: `+note=mine` -> `note`: `mine`.

    Keys have their new names.
    """
    pairs = (current_override(override).partition("=") for override in overrides)
    return {key.lstrip("+"): YAML_VALUES.get(value, value) for key, _, value in pairs}


def device_count(job: Document, training: Training) -> int | None:
    """Return the number of training devices: as reported by the training process, else as configured."""
    if "gpus" in training and "ranks" not in training:
        return len(training["gpus"]) or 1
    ranks = training.get("ranks", (job.get("strategy") or {}).get("ranks"))
    return None if ranks is None else int(ranks)


def platform_info(
    hostname: str | None, host: Document, training: Training, validation: ValidationFacts | None = None
) -> dict[str, str]:
    """Return the run's platform by readable names; unknown values are absent."""
    cpu, git, mode = (host.get(name) or {} for name in ("cpu", "git", "power_mode"))
    memory_bytes = host.get("memory_bytes")
    gpus = Counter(gpu["model"] for gpu in host.get("gpus") or [] if gpu.get("model"))
    values = {
        "host": hostname,
        "board": (host.get("board") or {}).get("model"),
        "CPU": ", ".join(filter(None, [cpu.get("model"), f"{cpu['cores']} cores" if cpu.get("cores") else None])),
        "GPU": ", ".join(f"{count} x {model}" if count > 1 else model for model, count in gpus.items()),
        "memory": f"{memory_bytes / 2**30:.1f} GiB" if memory_bytes else None,
        "OS": host.get("os"),
        "kernel": host.get("kernel"),
        "driver": host.get("driver"),
        "torch": training.get("torch"),
        "Python that trains": training.get("python"),
        "git commit": git.get("commit", "")[:12] + (", changed since" if git.get("dirty") else ""),
        "governor": ", ".join(host.get("governors") or []),
        "power mode": mode.get("name") or mode.get("id"),
        "validated": (validation or {}).get("validated", "")[:10],
    }
    return {name: str(value) for name, value in values.items() if value not in (None, "")}
