"""The typed configuration, as the controller reads it; defaults and comments of the keys are in conf/train.yaml.

`Schema` has the same keys as a structured config of Hydra, in which groups are open: an option's file or an override
may add keys to them.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from epochmeter.config.errors import input_error

if TYPE_CHECKING:
    from typing_extensions import Self

SCRIPT = "script"  # name of the options of a measured script: its model, data and training recipe are its own
INSTANTIATED_GROUPS = ("model", "optimizer", "scheduler", "task", "profiler")
"""Groups of objects that the training process constructs."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Keys below one name of the configuration, all of which are declared."""

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any], prefix: str = "") -> "Self":
        """Return the section of plain keys, without undeclared ones; InputError if a required one is missing."""
        kinds = get_type_hints(cls)
        values = {}
        for entry in fields(cls):
            key = prefix + entry.name
            if entry.name in keys:
                kind, value = kinds[entry.name], keys[entry.name]
                values[entry.name] = kind.from_dict(value, f"{key}.") if _is_section(kind) else value
            elif entry.default is MISSING:
                raise input_error(f"`{key}` is missing", f"set it: `{key}=` (docs/extending.md)")
        return cls(**values)

    def to_dict(self) -> dict[str, object]:
        """Return plain keys for JSON; the inverse of `from_dict`."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
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
        own = {entry.name: getattr(self, entry.name) for entry in fields(self)
               if entry.name in self.spec or getattr(self, entry.name) != entry.default}  # fmt: skip
        return {**self.spec, **{name: value for name, value in own.items() if name != "spec"}}


@dataclass(frozen=True, kw_only=True)
class Device(Group):
    title: str = ""  # name for people, such as `Jetson Nano`
    match: Mapping[str, str] | None = None  # host fact -> regular expression; null: never detected
    accelerator: Literal["auto", "cpu", "cuda"]  # where training runs; auto: on a GPU if the machine has one
    python: str | None  # interpreter of the training process; null: the controller's own
    slurm: Mapping[str, Any] | None = None  # options of sbatch for a node of this kind, such as `constraint`


@dataclass(frozen=True, kw_only=True)
class Dataset(Group):
    """The samples: how they are made, where they are and how the training process opens them."""

    layout: str  # files: read from storage in every epoch; memory: read once, at the start; tensors: synthetic
    open: Mapping[str, Any] | None  # one specification, or one per layout; null: synthetic tensors
    root: str | None = None  # folder, relative to the project; null: none, or not set yet by the user
    make: Mapping[str, Any] | None = None  # function that makes the dataset; null: it is not made here
    adopt: Mapping[str, Any] | None = None  # function that examines a folder of the user's
    on_bad: str | None = None  # error: an unreadable sample fails the run; skip: it is left out
    preprocess: str = "resize"  # resize, crop, pad, or the dotted path of a function
    space_bytes: int | None = None  # disk space needed to make it; null: count x file_bytes, or unknown
    count: int | None = None  # number of generated samples
    classes: int | None = None  # null: the samples have no classes, or not set yet by the user
    channels: int | None = None  # channels of the images; null: the samples are not images
    version: int = 1  # version of the files that `make` writes; a new version has them made again


@dataclass(frozen=True, kw_only=True)
class Storage(Group):
    root: str  # folder for datasets; an absolute path must exist
    medium: str | None  # required kind of storage device, such as `ssd`; null: any


@dataclass(frozen=True, kw_only=True)
class Strategy(Group):
    """How training is distributed over devices."""

    ranks: int | None  # ranks per node; null, with strategy=dp only: all visible GPUs
    launcher: str | None = None  # torchrun: each rank is a process; null: one process trains

    @property
    def has_processes(self) -> bool:
        """Whether ranks are processes, each with batches of its own."""
        return "launcher" in self.spec


@dataclass(frozen=True, kw_only=True)
class Meter(Group):
    """The energy meter: `_target_` and its arguments are in `spec`."""

    idle_s: float  # seconds for which idle power is measured, before and after training; 0: not measured


@dataclass(frozen=True, kw_only=True)
class Profiler(Group):
    """The profiler that records a few steps after the last epoch."""

    program: str | None = None  # program of NVIDIA Nsight, under which some steps are trained again; null: none
    start: int = 0  # first of these steps, counted from 0
    stop: int = 1  # first step after these steps
    timeout_s: float = 600.0  # time limit of this training in seconds


@dataclass(frozen=True, kw_only=True)
class Tracking(Group):
    experiment: str  # name of the experiment in MLflow
    uri: str | None = None  # address of an MLflow server; null: the project's database, or MLFLOW_TRACKING_URI
    tensorboard: bool = False  # whether event files for TensorBoard are written too


@dataclass(frozen=True, kw_only=True)
class Throughput(Section):
    """The steps between which throughput is measured, counted from 0 over all epochs."""

    start: int | None
    stop: int | None
    exit: bool


@dataclass(frozen=True, kw_only=True)
class Roofline(Section):
    peaks: Literal["cached", "again", "none"]
    flops: Literal["counted", "6n", "megatron", "torchtitan"]


@dataclass(frozen=True, kw_only=True)
class Footprint(Section):
    intensity: float | str | None  # grams of CO2e per kWh, a country of three letters, or an hourly CSV file
    price: float | None  # price of a kWh, in `currency`
    currency: str | None  # currency of the price, such as EUR
    pue: float  # power usage effectiveness: energy of the data center / energy of its computers
    embodied_g: float | None  # part of the hardware's embodied emissions per run, in grams of CO2e; only for SCI


@dataclass(frozen=True, kw_only=True)
class Auto(Section):
    """The search of `power_limit=auto`."""

    objective: Literal["energy", "time", "edp", "eta"]
    eta: float
    max_slowdown: float | None
    power_budget: float | None
    confidence: float
    recheck_epochs: int | None


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Section):
    every: int | None


@dataclass(frozen=True, kw_only=True)
class Measure(Section):
    """A user's training script, in place of the training loop of this project."""

    command: list[str] | None = None  # of src/measure.py, with placeholders; null: this project trains
    digest: str | None = None  # checksum of the script's code and folder
    data: str | None = None  # file or folder that the script reads; null: not known
    lock: bool = True  # whether runs on the same device wait for each other
    steps_per_window: int


@dataclass(frozen=True, kw_only=True)
class Machine(Section):
    root: str
    lock_dir: str | None = None
    state_dir: str | None
    gauges_period_s: float | None = 1.0


@dataclass(frozen=True, kw_only=True)
class Sweep(Section):
    again: bool
    resume: bool
    sample: int | None
    repeats: int | None
    order: Literal["grid", "random"]
    seed: int
    cool_below_c: float | None
    cool_wait_s: float
    timeout_s: float | None
    hung_after_s: float | None
    prior: str | list[str] | None


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
    meter: Meter
    profiler: Profiler
    tracking: Tracking
    batch: int
    epochs: int
    seed: int
    repeat: int
    workers: int | Literal["auto"]
    prefetch: int
    pin_memory: bool | Literal["auto"]
    persistent_workers: bool
    power_limit: float | str | None
    auto: Auto
    clocks: Literal["keep", "locked"]
    fan: Literal["keep", "max"]
    cache: Literal["keep", "cold", "cold_each_epoch", "warm"]
    drop_caches: bool
    synthetic_batches: bool
    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    compile: bool
    channels_last: bool
    cudnn_benchmark: bool
    deterministic: bool
    drop_last: bool
    lr_scaling: Literal["none", "linear", "sqrt"]
    lr_batch: int
    timing: Literal["deferred", "synchronous"]
    warmup_epochs: int
    evaluate: bool
    target_accuracy: float | None
    target_loss: float | None
    throughput: Throughput
    roofline: Roofline
    footprint: Footprint
    checkpoint: Checkpoint
    log_loss: bool
    rehearse: bool | Literal["auto"]
    save_model: bool
    script: dict[str, Any]  # placeholder in the script's command -> value
    measure: Measure
    machine: Machine
    sweep: Sweep

    @property
    def device_settings(self) -> dict[str, str | float]:
        """The device settings that the run requests, by key; without those that stay as they are."""
        unchanged = {"power_limit": None, "clocks": "keep", "fan": "keep"}
        return {key: value for key, kept in unchanged.items() if (value := getattr(self, key)) != kept}


@dataclass(frozen=True, kw_only=True)
class Examination(Section):
    """The configuration of doctor.py."""

    device: Device
    meter: Meter
    dataset: Dataset
    storage: Storage
    machine: Machine
    format: Literal["table", "json"]


CHOICE: Any = Enum  # its words are not known to type checkers


def _is_section(kind: object) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _structured(section: type[Section], name: str) -> type:
    kinds = get_type_hints(section)
    return make_dataclass(name, [_key(entry, kinds[entry.name]) for entry in fields(section)])


def _key(entry: Field[Any], kind: object) -> tuple[str, Any, Any]:
    """Return a field for `make_dataclass`. Flags (Hydra takes 2 as true) and unions are checked by `validation`."""
    if _is_section(kind) and issubclass(kind, Group):
        return entry.name, dict[str, Any], field(default_factory=dict)
    if _is_section(kind):
        nested = _structured(kind, kind.__name__)
        return entry.name, nested, field(default_factory=nested)
    if get_origin(kind) is Literal:
        kind = CHOICE(entry.name, {word: word for word in get_args(kind)})
    elif kind is bool or (get_origin(kind) in (Union, UnionType) and len({*get_args(kind)} - {type(None)}) > 1):
        kind = Any
    return entry.name, kind, field(default="???" if entry.default is MISSING else entry.default)


Schema: Any = _structured(Job, "Schema")
"""`Job` as Hydra's structured config: keys and types, against which overrides are checked."""
