"""The keys of a training run. Each is declared here once: its type, its default, its rule and its effect.

The rule follows from the type (`config/rules.py`). conf/train.yaml has the same defaults and effects, and is written
from these declarations (CONTRIBUTING.md). Keys of groups have their defaults and effects in the options' files: here,
the default of such a key is for options that leave it out.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, TypeVar, get_type_hints

from epochmeter.config import rules
from epochmeter.config.rules import (
    AnyMapping,
    Constructed,
    Count,
    Fraction,
    Intensity,
    Location,
    NotNegative,
    PositiveCount,
    PositiveSeconds,
    Rule,
    Seconds,
    Seed,
    Watts,
)
from epochmeter.shared.problem import input_error

if TYPE_CHECKING:
    from typing_extensions import Self

Value = TypeVar("Value")
_kinds_of: Any = cache(get_type_hints)  # once per class: a report makes many jobs
SCRIPT = "script"  # name of the options of a measured script: its model, data and training recipe are its own
DEVICE_SETTINGS = ("power_limit", "gpu_clock", "memory_clock", "clocks", "fan")
INSTANTIATED_GROUPS = ("model", "optimizer", "scheduler", "task", "profiler")
"""Groups of objects that the training process constructs."""
Medium = Literal["nvme", "ssd", "ssd_usb", "hdd", "hdd_usb", "sd", "emmc", "ram", "network", "virtual", "unknown"]
"""Kinds of storage devices that `machine.disk.Disk` can have."""


def key(default: Value, effect: str = "", *, new_paragraph: bool = False) -> Value:
    """Declare a key that is in the file of its command in conf/, with its effect as a comment.

    A new paragraph of the file begins with an empty line.
    """
    metadata = {"effect": effect, "new_paragraph": new_paragraph}
    if isinstance(default, dict | list):
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Keys below one name of the configuration, all of which are declared."""

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any], prefix: str = "") -> "Self":
        """Return the section of plain keys, without undeclared ones; absent ones have their defaults.

        Raises:
            InputError: A key without a default is missing.
        """
        kinds: dict[str, Any] = _kinds_of(cls)
        values = {}
        for declared in fields(cls):
            path = prefix + declared.name
            if declared.name in keys:
                kind, value = kinds[declared.name], keys[declared.name]
                values[declared.name] = kind.from_dict(value, f"{path}.") if is_section(kind) else value
            elif declared.default is MISSING and declared.default_factory is MISSING:
                raise input_error(f"`{path}` is missing", f"set it: `{path}=` (docs/extending.md)")
        return cls(**values)

    def to_dict(self) -> dict[str, object]:
        """Return plain keys for JSON; the inverse of `from_dict`."""
        values = {declared.name: getattr(self, declared.name) for declared in fields(self)}
        return {name: value.to_dict() if isinstance(value, Section) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Group(Section):
    """A group of conf/, such as `dataset`: the keys that the controller reads, and all others in `spec`.

    For an object that the training process constructs, such as a model, these are `_target_` and its arguments.
    """

    spec: Mapping[str, Any]  # all keys as composed; where a declared field has another value, the field's counts
    name: str  # name of the choice, such as `digits`: the name of its file unless it was set

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any], prefix: str = "") -> "Self":
        """Return the group of plain keys, none of which is dropped."""
        return super().from_dict({**keys, "spec": keys}, prefix)

    def to_dict(self) -> dict[str, object]:
        """Return all keys, in the order in which they were composed."""
        values = {declared.name: getattr(self, declared.name) for declared in fields(self)
                  if declared.name in self.spec or getattr(self, declared.name) != declared.default}  # fmt: skip
        return {**self.spec, **{name: value for name, value in values.items() if name != "spec"}}


def is_section(kind: object) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def rules_of(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Rule]]:
    """Yield the rules of a section's keys, by their dotted names."""
    for name, kind in get_type_hints(section, include_extras=True).items():
        if is_section(kind):
            yield prefix + name, rules.MAPPING
            yield from rules_of(kind, f"{prefix}{name}.")
        elif rule := rules.rule_of(kind):
            yield prefix + name, rule


@dataclass(frozen=True, kw_only=True)
class Device(Group):
    title: str = ""
    match: Annotated[Mapping[str, str], rules.PATTERNS] | None = None
    accelerator: Literal["auto", "cpu", "cuda"]
    python: str | None
    slurm: AnyMapping | None = None


@dataclass(frozen=True, kw_only=True)
class Dataset(Group):
    """The samples: how they are made, where they are and how the training process opens them."""

    layout: str
    open: Annotated[Mapping[str, Any], rules.OPENED] | None
    root: Location | None = None
    make: Constructed | None = None
    adopt: Constructed | None = None
    resumable: bool = False  # whether `make` continues in the folder of an interrupted call
    archives: Location | None = None  # from which `make` unpacks the samples; None also if it has no such key
    on_bad: Literal["error", "skip"] = "error"
    preprocess: str = "resize"
    space_bytes: Annotated[int, rules.BYTES] | None = None
    count: Annotated[int | None, rules.POSITIVE_COUNT] = None  # None only if the option has no such key
    classes: PositiveCount | None = None
    channels: Annotated[int | None, rules.POSITIVE_COUNT] = None  # None only if the samples are not images
    version: Count = 1


@dataclass(frozen=True, kw_only=True)
class Storage(Group):
    root: Location
    medium: Medium | None


@dataclass(frozen=True, kw_only=True)
class Strategy(Group):
    """How training is distributed over devices."""

    ranks: int | None  # its rule depends on the strategy: `validation.rank_problems`
    launcher: Literal["torchrun", "script"] | None = None

    @property
    def has_processes(self) -> bool:
        """Whether ranks are processes, each with batches of its own."""
        return "launcher" in self.spec

    @property
    def processes(self) -> int:
        """Number of training processes of a node; 1 if it is not known yet."""
        return self.ranks or 1 if self.has_processes else 1


@dataclass(frozen=True, kw_only=True)
class MeterSpec(Group):
    """The energy meter: `_target_` and its arguments are in `spec`."""

    idle_s: Seconds


@dataclass(frozen=True, kw_only=True)
class Profiler(Group):
    """The profiler that records a few steps after the last epoch."""

    program: Annotated[str | None, rules.TEXT] = None  # None only if training is not repeated under NVIDIA Nsight
    start: Count = 0
    stop: PositiveCount = 1
    timeout_s: PositiveSeconds = 600.0


@dataclass(frozen=True, kw_only=True)
class Tracking(Group):
    experiment: Annotated[str, rules.EXPERIMENT]
    uri: str | None = None
    tensorboard: bool = False
    also: Annotated[str | list[str] | None, rules.ALSO] = None
    kubeflow: bool = True


RULES_OF_OPTIONS = (
    ("dataset.seed dataset.make.seed dataset.open.memory.seed", rules.SEED),
    ("profiler.steps", rules.POSITIVE_COUNT),
    ("profiler.warmup_steps", rules.COUNT),
    ("scheduler.step_size scheduler.T_max", rules.POSITIVE_COUNT),
    ("dataset.size dataset.features", rules.POSITIVE_COUNT),
    ("dataset.make.count dataset.open.memory.count dataset.open.memory.features", rules.POSITIVE_COUNT),
    ("model.channels model.words model.length", rules.POSITIVE_COUNT),
    ("model.width model.layers model.heads model.hidden model.in_features model.out_features", rules.POSITIVE_COUNT),
    ("model.padding", rules.either("a whole number, 0 or more, or a text", rules.COUNT, rules.TEXT)),
    ("model.activation model.cell model.norm model.stem task.loss", rules.or_null(rules.TEXT)),
    ("model.architecture meter.reason meter.code", rules.TEXT),
    ("model.classes", rules.or_null(rules.POSITIVE_COUNT)),
    ("dataset.file_bytes", rules.or_null(rules.BYTES)),
    ("dataset.devkit", rules.or_null(rules.LOCATION)),
    ("dataset.train_pairs dataset.make.train_pairs", rules.or_null(rules.POSITIVE_COUNT)),
    ("task.bleu", rules.FLAG),
    ("dataset.length dataset.held_out dataset.make.length", rules.whole_number(2, rules.MAX_INTEGER)),
    ("scheduler.milestones", rules.MILESTONES),
    ("dataset.words dataset.make.words", rules.whole_number(6, 10**6)),  # including four special tokens and a comma
    ("dataset.pixels", rules.whole_number(32, 4096)),
    ("meter.cross_check model.aux_logits", rules.FLAG),
    ("device.slurm.constraint device.slurm.gres device.slurm.python", rules.or_null(rules.TEXT)),
    ("dataset.normalize", rules.NORMALIZATION),
    ("meter.rails device.rails", rules.or_null(rules.MAPPING)),
    ("meter.sensors device.sensors", rules.or_null(rules.SENSORS)),
    ("meter.rails.total device.rails.total", rules.NAMES),
    ("meter.parts", rules.METERS),
    ("strategy.timeout_s meter.period_s", rules.POSITIVE_SECONDS),
    ("optimizer.lr optimizer.momentum optimizer.weight_decay", rules.NOT_NEGATIVE),
    ("scheduler.eta_min task.auxiliary", rules.NOT_NEGATIVE),
    ("scheduler.gamma", rules.positive()),
    ("model.dropout", rules.FRACTION),
    ("meter.tdp_w", rules.or_null(rules.WATTS)),
)
"""Rules of keys that only some options of a group have, and that the controller does not read."""


@dataclass(frozen=True, kw_only=True)
class Throughput(Section):
    start: Count | None = key(
        None, "measure samples per second from this step on, counted from 0 over all epochs; null: not measured"
    )
    stop: PositiveCount | None = key(None, "up to, but excluding, this step")
    exit: bool = key(False, "true: end the run at step stop")


@dataclass(frozen=True, kw_only=True)
class Roofline(Section):
    peaks: Literal["cached", "again", "none"] = key(
        "cached",
        "cached: measured once per device, settings, precision and torch version; again: each run; none: no MFU",
    )
    flops: Literal["counted", "6n", "megatron", "torchtitan"] = key(
        "counted", "convention of the training FLOPs in epoch/mfu: counted, 6n, megatron, torchtitan"
    )


@dataclass(frozen=True, kw_only=True)
class Footprint(Section):
    intensity: Intensity | None = key(
        None, "grams of CO2e per kWh: a number, a country's yearly mean (FRA), or an hourly CSV file; null: no carbon"
    )
    price: NotNegative | None = key(None, "price of a kWh; null: no cost")
    currency: str | None = key(None, "currency of the price, such as EUR")
    pue: Annotated[float, rules.PUE] = key(
        1, "power usage effectiveness: energy of the data center / energy of its computers"
    )
    embodied_g: NotNegative | None = key(
        None, "part of the hardware's embodied emissions per run, in grams of CO2e, for SCI; null: not included"
    )


@dataclass(frozen=True, kw_only=True)
class Budget(Section):
    """What a run may use in its epochs and evaluations."""

    energy_j: Annotated[float, rules.JOULES] | None = key(None, "measured energy in joules; null: no budget")
    time_s: PositiveSeconds | None = key(None, "time in seconds; null: no budget")
    carbon_g: Annotated[float, rules.GRAMS] | None = key(None, "grams of CO2e, by footprint.intensity; null: no budget")
    cost: Annotated[float, rules.PRICE] | None = key(None, "cost of the energy, by footprint.price; null: no budget")
    stop: bool = key(
        False, "for src/measure.py: true: end a script by SIGTERM when its next epoch would exceed a budget"
    )

    @property
    def limits(self) -> dict[str, float]:
        """The budgets that are set, by key."""
        limits = {"energy_j": self.energy_j, "time_s": self.time_s, "carbon_g": self.carbon_g, "cost": self.cost}
        return {name: limit for name, limit in limits.items() if limit is not None}


@dataclass(frozen=True, kw_only=True)
class Auto(Section):
    """The search of `power_limit=auto`."""

    objective: Literal["energy", "time", "edp", "eta"] = key(
        "energy", "cost of a step to minimize: energy, time, edp (energy x time), eta (weighted energy and time)"
    )
    eta: Fraction = key(0.5, "weight of energy in objective eta: eta x energy + (1 - eta) x highest limit x time")
    max_slowdown: Annotated[float, rules.SLOWDOWN] | None = key(
        None,
        "longest time of a step, as a multiple of that with the limit in use before; null: no bound",
    )
    power_budget: Watts | None = key(None, "highest mean power of the metered devices, in watts; null: no bound")
    confidence: Annotated[float, rules.finite_number(0.5, 0.999, "a probability")] = key(
        0.95, "probability with which the choice should be right"
    )
    settle_s: Seconds = key(
        60, "before the first probe, train at most this long until power and clock have settled, in seconds; 0: do not"
    )
    recheck_epochs: PositiveCount | None = key(
        None, "search again after this number of measured epochs; null: only if the step time shifts"
    )


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Section):
    every: PositiveCount | None = key(None, "checkpoint interval in epochs, to resume an interrupted run; null: none")


@dataclass(frozen=True, kw_only=True)
class Measure(Section):
    """A user's training script, in place of the training loop of this project."""

    command: list[str] | None = None  # of src/measure.py, with placeholders; null: this project trains
    digest: str | None = None  # checksum of the script's code and folder
    data: Annotated[str, rules.PATH] | None = key(
        None, "file or folder that the script reads: for `cache`, page-cache residency and disk reads; null: not known"
    )
    loader: Annotated[str, rules.LOADER] | None = key(
        None, "class whose `__iter__` begins a pass over data, MODULE:CLASS; null: torch's DataLoader only"
    )
    events: Annotated[str, rules.FOLDER] | None = key(
        None, "folder of a script that ran without a controller: make the record of its run; null: run a script"
    )
    pid: PositiveCount | None = key(
        None, "process that runs already: its gauges and joules from now on, without time parts; null: start a script"
    )
    duration_s: PositiveSeconds | None = key(
        None, "end the measurement of a running process after this time, in seconds; null: at its end, or on Ctrl-C"
    )
    replay: bool = key(
        False,
        "true: replay the first batches of each loader, for the speed without data stalls; set by data_source=replay",
    )
    replay_precision: Annotated[float, rules.positive("a fraction", 1)] = key(
        0.01, "end a replayed run when the 95 % interval of its mean time per epoch is within this fraction"
    )
    flops: bool = key(
        False, "true: count the FLOPs of one step, for MFU: PyTorch's execution trace observer lists its operators"
    )
    lock: bool = key(True, "false: do not wait for other runs on the same device")
    steps_per_window: PositiveCount = key(500, "steps per window over a DataLoader without a length")
    hide_arguments: bool = key(
        False, "true: record only checksums of the script's arguments, for secrets without a typical form"
    )


OUTPUT = "output: text; json (one document on stdout, all text on stderr), given on the command line"


@dataclass(frozen=True, kw_only=True)
class Host(Section):
    root: Annotated[str, rules.MACHINE_ROOT] = key(
        "/", "root folder of the system's files (/sys, /proc); board.tar.gz of doctor.py record= replays that machine"
    )
    state_dir: Location | None = key(
        None, "folder for settings to restore after a killed run or a power failure; null: ~/.local/state/epochmeter"
    )


@dataclass(frozen=True, kw_only=True)
class LockedHost(Host):
    lock_dir: Location | None = key(
        None, "folder of the device locks; null: /run/lock, or /tmp if not every user may write there"
    )


@dataclass(frozen=True, kw_only=True)
class Machine(LockedHost):
    gauges_period_s: PositiveSeconds | None = key(
        1, "period of the rows of gauges.csv (utilization, temperatures, disk), in seconds; null: no file"
    )


@dataclass(frozen=True, kw_only=True)
class Sweep(Section):
    again: bool = key(False, "true: measure all runs again, including completed ones")
    resume: bool = key(False, "true: resume a single run from its last checkpoint; runs of a sweep always resume")
    sample: PositiveCount | None = key(None, "number of configurations, a random sample of the grid; null: all")
    repeats: Annotated[int, rules.whole_number(1, 1000)] | None = key(None, "runs per configuration; null: one")
    order: Literal["grid", "random"] = key("grid", "order of the runs: grid, random (rounds of all configurations)")
    prior: Annotated[str | list[str], rules.PRIOR] | None = key(
        None, "folders of earlier sweeps from which a search with Optuna learns; null: none"
    )
    seed: Seed = key(0, "random seed of sweep.sample, sweep.order and searches")
    wait_idle: Seconds = key(
        0, "before each run, wait at most this long for other processes to leave the processor idle, in seconds"
    )
    cool_below_c: Annotated[float, rules.CELSIUS] | None = key(
        None,
        "wait before each run until all temperatures are below this, in degrees Celsius; null: do not wait",
    )
    cool_wait_s: Seconds = key(600, "maximum wait for sweep.cool_below_c, in seconds")
    settle: bool = key(False, "true: count epochs as warm-up until the device's power and clock have settled")
    settle_s: Seconds = key(300, "longest duration of this warm-up, in seconds")
    timeout_s: PositiveSeconds | None = key(None, "maximum duration of a run, in seconds; null: no limit")
    hung_after_s: PositiveSeconds | None = key(
        1800, "end a run whose training process reports nothing for this long, in seconds; null: no limit"
    )


@dataclass(frozen=True, kw_only=True)
class Job(Section):
    """The configuration of one training run."""

    device: Device
    model: Group
    dataset: Dataset
    storage: Storage
    optimizer: Group
    scheduler: Group
    strategy: Strategy
    task: Group
    meter: MeterSpec
    profiler: Profiler
    tracking: Tracking

    batch: PositiveCount = key(16, "batch size per rank, in samples")
    epochs: PositiveCount = key(6, "number of training epochs, including warm-up")
    seed: Seed = key(0, "random seed: weights, shuffling, augmentation")
    repeat: Count = key(0, "repeat number of a configuration; set by sweep.repeats")
    nodes: PositiveCount | None = key(
        None, "nodes of a run with hydra/launcher=slurm; null: one, or without the launcher those of srun"
    )

    workers: Annotated[int | Literal["auto"], rules.WORKERS] = key(
        "auto", "DataLoader workers per rank: a number, auto (one per core, at most 4)", new_paragraph=True
    )
    prefetch: PositiveCount = key(2, "batches that each DataLoader worker loads in advance")
    pin_memory: Literal["auto"] | bool = key(
        "auto", "page-locked memory for batches: true, false, auto (only if a GPU trains)"
    )
    persistent_workers: bool = key(True, "keep DataLoader workers between epochs; false: restart them in every epoch")

    threads: Annotated[int | Literal["auto"] | None, rules.THREADS] = key(
        None,
        "threads of torch per rank: a number, auto (usable cores without those of working DataLoader workers), "
        "null (OMP_NUM_THREADS, else torch's default)",
    )

    power_limit: Annotated[float | str, rules.WATTS_OR_MODE] | None = key(
        None,
        "power limit: watts, a power mode (MAXN, MODE_30W, id:2), auto (the best, found while training), "
        "null (unchanged)",
        new_paragraph=True,
    )
    gpu_clock: Annotated[int | Literal["auto"] | None, rules.CLOCK_OR_AUTO] = key(
        None, "locked clock of the GPUs: MHz (src/doctor.py lists them), auto (the best, found while training), null"
    )
    memory_clock: Annotated[int, rules.CLOCK] | None = key(
        None, "locked memory clock of the GPUs: MHz; null: unchanged"
    )
    auto: Auto = key(Auto(), "for power_limit=auto and gpu_clock=auto")
    clocks: Literal["keep", "locked"] = key("keep", "clocks of a Jetson: keep, locked (jetson_clocks: no DVFS)")
    fan: Literal["keep", "max"] = key("keep", "fan of a Jetson: keep, max (full speed)")
    cache: Literal["keep", "cold", "cold_each_epoch", "warm"] = key(
        "cold", "dataset's page cache: keep, cold (evicted once), cold_each_epoch, warm"
    )
    drop_caches: bool = key(False, "true: at each eviction also drop all caches of the kernel, if permitted")
    synthetic_batches: bool = key(
        False, "true: train on synthetic batches of the dataset's shape: no reading, no preprocessing"
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = key(
        "fp32", "numeric precision: fp32, tf32, bf16 or fp16 (autocast)"
    )
    compile: bool = key(False, "true: compile the model by torch.compile, in the first epoch")
    channels_last: bool = key(False, "true: channels-last memory format for images")
    cudnn_benchmark: bool = key(
        False, "true: cuDNN times its convolution algorithms and keeps the fastest; may change results"
    )
    deterministic: bool = key(False, "true: only deterministic algorithms")
    drop_last: bool = key(False, "true: drop an epoch's last batch if it is smaller")
    lr_scaling: Literal["none", "linear", "sqrt"] = key(
        "none", "scaling of the learning rate by the global batch size: none, linear, sqrt"
    )
    lr_batch: PositiveCount = key(256, "global batch size for which optimizer.lr is given; used by lr_scaling")
    timing: Literal["deferred", "synchronous"] = key(
        "deferred", "deferred: no waiting within an epoch; synchronous: wait after every step"
    )
    warmup_epochs: Count = key(1, "first epochs excluded from the steady/ and std/ metrics")
    evaluate: bool = key(True, "evaluate after each epoch, measured separately")
    target_accuracy: Annotated[float, rules.positive("a fraction", 1)] | None = key(
        None, "stop at this top-1 accuracy, a fraction such as 0.65; null: no target"
    )
    target_loss: Annotated[float, rules.positive("a loss")] | None = key(None, "stop at this loss; null: no target")
    throughput: Throughput = key(Throughput(), "samples per second between two steps")
    roofline: Roofline = key(
        Roofline(), "MFU (model FLOPs utilization): training FLOPs / time / the device's measured peak"
    )
    footprint: Footprint = key(Footprint(), "carbon footprint and cost of the measured energy: docs/footprint.md")
    budget: Budget = key(Budget(), "end training before the epoch that would exceed a budget: docs/footprint.md")
    checkpoint: Checkpoint = key(Checkpoint())
    log_loss: bool = key(
        False, "true: show the loss with the progress, twice per second; reading it waits for the device"
    )
    format: Literal["text", "json"] = key("text", OUTPUT)
    log_every: PositiveCount | None = key(
        None, "print the loss after every so many steps; reading it waits for the device; null: never"
    )
    verbose: bool = key(False, "true: print the tables and notes of each run of a sweep, in place of one line")
    rehearse: Literal["auto"] | bool = key(
        "auto", "rehearsal (trains, changes no settings, is marked): auto (if the machine differs), true, false (error)"
    )
    save_model: bool = key(False, "true: keep the trained weights as an artifact")
    script: Annotated[dict[str, Any], rules.MAPPING] = key(
        {}, "values for placeholders in a script's command: `script.lr=0.1` for {script.lr}; for src/measure.py"
    )
    measure: Measure = key(Measure(), "for src/measure.py, which measures your own training script")

    machine: Machine = key(Machine(), new_paragraph=True)
    sweep: Sweep = key(Sweep())

    @property
    def has_loader(self) -> bool:
        """Whether this project reads samples by a DataLoader; synthetic batches need none."""
        return not (self.measure.command or self.synthetic_batches or self.dataset.layout == "tensors")

    @property
    def device_settings(self) -> dict[str, str | float]:
        """The device settings that the run requests, by key; with its default, a setting stays as it is."""
        settings = {name: getattr(self, name) for name in DEVICE_SETTINGS}
        return {name: value for name, value in settings.items() if value != getattr(Job, name)}
