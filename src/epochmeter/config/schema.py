"""The typed configuration, as the controller reads it; the defaults are in conf/train.yaml.

`Schema` has the same keys as a structured config of Hydra, in which groups are open: an option's file or an override
may add keys to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

INSTANTIATED_GROUPS = ("model", "optimizer", "scheduler", "task", "profiler")
"""Groups of objects that the training process constructs."""

SectionType = TypeVar("SectionType", bound="Section")
GroupType = TypeVar("GroupType", bound="Group")


class Choice(Enum):
    """One of a few words, by which it is set and completed by shells."""

    def __str__(self) -> str:
        return self.name


class Cache(Choice):
    keep = "keep"
    cold = "cold"
    cold_each_epoch = "cold_each_epoch"
    warm = "warm"


class Precision(Choice):
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"


class LrScaling(Choice):
    none = "none"
    linear = "linear"
    sqrt = "sqrt"


class Timing(Choice):
    deferred = "deferred"
    synchronous = "synchronous"


class Clocks(Choice):
    keep = "keep"
    locked = "locked"


class Fan(Choice):
    keep = "keep"
    max = "max"


class GridOrder(Choice):
    grid = "grid"
    random = "random"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Keys below one name of the configuration, all of which are declared."""

    @classmethod
    def from_dict(cls: type[SectionType], keys: Mapping[str, Any]) -> SectionType:
        """Return the section of plain keys, as OmegaConf and JSON have them.

        Values are not validated: `validation.check` does that. Keys that are not declared are ignored.

        Raises:
            KeyError: A key without a default is missing.
        """
        return cls(**{name: _typed(kind, keys[name]) for name, kind in _kinds(cls).items()
                      if name in keys or not _has_default(cls, name)})  # fmt: skip

    def to_dict(self) -> dict[str, object]:
        """Return plain keys for JSON; the inverse of `from_dict`."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Group(Section):
    """A group of conf/, such as `dataset`: the keys that the controller reads, and all others in `spec`."""

    spec: Mapping[str, Any]
    """All keys as composed; where a declared field has another value, the field's counts."""
    name: str
    """Name of the choice, such as `digits`: the name of its file unless it was set."""

    @classmethod
    def from_dict(cls: type[GroupType], keys: Mapping[str, Any]) -> GroupType:
        """Return the group of plain keys, none of which is dropped."""
        declared = {name: keys[name] for name in _kinds(cls)
                    if name != "spec" and (name in keys or not _has_default(cls, name))}  # fmt: skip
        return cls(spec=keys, **declared)

    def to_dict(self) -> dict[str, object]:
        """Return all keys, in the order in which they were composed."""
        declared = {entry.name: (getattr(self, entry.name), entry.default)
                    for entry in fields(self) if entry.name != "spec"}  # fmt: skip
        own = {name: value for name, (value, default) in declared.items() if name in self.spec or value != default}
        return {**self.spec, **own}


@dataclass(frozen=True, kw_only=True)
class Spec(Group):
    """An object that the training process constructs: `_target_` and its arguments are in `spec`."""


@dataclass(frozen=True, kw_only=True)
class Device(Group):
    """The machine to train on."""

    title: str = ""
    """Name for people, such as `Jetson Nano`."""
    match: Mapping[str, str] | None = None
    """Facts of the host -> regular expressions that identify the device; null: never identified."""
    accelerator: Literal["auto", "cpu", "cuda"]
    """Where training runs; auto: on a GPU if the machine has one."""
    python: str | None
    """Interpreter of the training process; null: the controller's own."""
    slurm: Mapping[str, Any] | None = None
    """Options of sbatch for a node of this kind, such as `constraint`."""


@dataclass(frozen=True, kw_only=True)
class Dataset(Group):
    """The samples: how they are made, where they are and how the training process opens them."""

    layout: str
    """files: read from storage in every epoch; memory: read once, at the start; tensors: synthetic."""
    open: Mapping[str, Any] | None
    """How the training process opens it: one specification, or one for each layout; null: synthetic tensors."""
    root: str | None = None
    """Folder, relative to the project; null: the dataset has no files, or the user has yet to name the folder."""
    make: Mapping[str, Any] | None = None
    """Specification of the function that makes the dataset; null: it is not made here."""
    adopt: Mapping[str, Any] | None = None
    """Specification of the function that examines a folder of the user's."""
    on_bad: str | None = None
    """error: an unreadable sample fails the run; skip: it is left out."""
    preprocess: str = "resize"
    """resize, crop, pad, or the dotted path of a function."""
    space_bytes: int | None = None
    """Disk space needed to make the dataset, in bytes; null: estimated from `count`, or unknown."""
    count: int | None = None
    """Number of generated samples."""
    classes: int | None = None
    """Number of classes; null: the samples have no classes, or the user has yet to give their number."""
    channels: int | None = None
    """Channels of the images; null: the samples are not images."""
    length: int | None = None
    """Words per sentence, for generated sentence pairs."""
    version: int = 1
    """Version of the files that `make` writes; a new version has them made again."""


@dataclass(frozen=True, kw_only=True)
class Storage(Group):
    """The storage device that the dataset is read from."""

    root: str
    """Folder for datasets; an absolute path must exist."""
    medium: str | None
    """Required kind of storage device, such as `ssd`; null: any. On another kind the run is a rehearsal."""
    reread: bool = False
    """Whether copied datasets are read back from the device and compared."""


@dataclass(frozen=True, kw_only=True)
class Strategy(Group):
    """How training is distributed over devices."""

    ranks: int | None
    """Ranks per node; null, with strategy=dp only: all visible GPUs."""
    launcher: str | None = None
    """torchrun: each rank is a process; null: one process trains."""

    @property
    def has_processes(self) -> bool:
        """Whether ranks are processes, each with batches of its own."""
        return "launcher" in self.spec


@dataclass(frozen=True, kw_only=True)
class Meter(Group):
    """The energy meter: `_target_` and its arguments are in `spec`."""

    idle_s: float
    """Seconds for which idle power is measured, before and after training; 0: not measured."""


@dataclass(frozen=True, kw_only=True)
class Tracking(Group):
    """Where results are published."""

    experiment: str
    """Name of the experiment in MLflow."""
    uri: str | None = None
    """Address of an MLflow server; null: the project's database, or MLFLOW_TRACKING_URI."""
    tensorboard: bool = False
    """Whether event files for TensorBoard are written too."""


@dataclass(frozen=True, kw_only=True)
class Throughput(Section):
    """The steps between which throughput is measured, counted from 0 over all epochs."""

    start: int | None
    """First step of the interval; null: throughput is not measured."""
    stop: int | None
    """Step after the last one of the interval."""
    exit: bool
    """Whether the run ends at `stop`."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Section):
    """Checkpoints to resume a run from."""

    every: int | None
    """Epochs between two checkpoints; null: none are written."""


@dataclass(frozen=True, kw_only=True)
class Machine(Section):
    """The machine that the run is made on."""

    root: str
    """Folder below which the files of the kernel are read; `/`, except for a recorded machine."""
    lock_dir: str | None = None
    """Folder of the device locks; null: /run/lock, or /tmp if that is not writable for all users."""
    state_dir: str | None
    """Folder of the journal of changed device settings; null: ~/.local/state/epochmeter."""


@dataclass(frozen=True, kw_only=True)
class Sweep(Section):
    """Which runs a sweep makes, and when it ends them."""

    again: bool
    """Whether completed runs are measured again."""
    resume: bool
    """Whether a single run resumes from its last checkpoint, as the runs of a sweep do."""
    sample: int | None
    """Number of the grid's configurations to draw at random; null: the whole grid."""
    repeats: int | None
    """Runs per configuration; null: one."""
    order: GridOrder
    """grid: as typed; random: in random order, each repeat as a block."""
    seed: int
    """Random seed of `sample` and `order`."""
    cooldown_s: float
    """Seconds of rest between two runs."""
    cool_below_c: float | None
    """Temperature in degrees Celsius below which a run begins; null: any."""
    cool_wait_s: float
    """Longest wait for that temperature, in seconds."""
    max_failures: int | None
    """Failed runs after which the sweep ends; null: no limit."""
    timeout_s: float | None
    """Seconds after which a run has failed; null: no limit."""
    hung_after_s: float | None
    """Seconds without a completed step after which a run has failed; null: no limit."""


@dataclass(frozen=True, kw_only=True)
class Job(Section):
    """The configuration of one training run."""

    device: Device
    model: Spec
    dataset: Dataset
    storage: Storage
    optimizer: Spec
    scheduler: Spec
    strategy: Strategy
    task: Spec
    meter: Meter
    profiler: Spec
    tracking: Tracking
    batch: int
    """Samples per batch and rank."""
    epochs: int
    """Passes over the dataset, the warm-up epochs included."""
    seed: int
    """Random seed: weights, shuffling, augmentation."""
    repeat: int
    """Number of this repeat of its configuration, from 0."""
    workers: int | Literal["auto"]
    """DataLoader workers per rank; auto: one per usable core, at most 4."""
    prefetch: int
    """Batches that each DataLoader worker loads in advance."""
    pin_memory: bool | Literal["auto"]
    """Whether batches are loaded into pinned memory; auto: if they are copied to a GPU."""
    persistent_workers: bool
    """Whether DataLoader workers stay from one epoch to the next."""
    power_limit: float | str | None
    """Watts as a number, a power mode as text; null: not changed."""
    clocks: Clocks
    """keep: not changed; locked: no frequency scaling (jetson_clocks)."""
    fan: Fan
    """keep: not changed; max: full speed."""
    cache: Cache
    """Page cache of the dataset: keep, cold (evicted once), cold_each_epoch or warm."""
    drop_caches: bool
    """Whether the kernel drops all its caches too; needs root."""
    synthetic_batches: bool
    """Whether training uses synthetic batches: nothing is read or preprocessed."""
    precision: Precision
    """Numeric precision of training."""
    compile: bool
    """Whether the model is compiled by torch.compile."""
    channels_last: bool
    """Whether images have their channels last in memory."""
    cudnn_benchmark: bool
    """Whether cuDNN times its algorithms and uses the fastest."""
    deterministic: bool
    """Whether only deterministic algorithms are used."""
    drop_last: bool
    """Whether a smaller last batch of an epoch is left out."""
    lr_scaling: LrScaling
    """How the learning rate follows the global batch size: none, linear or sqrt."""
    lr_batch: int
    """Global batch size that `optimizer.lr` is for, if it is scaled."""
    timing: Timing
    """deferred: timestamps are read later; synchronous: the device is waited for after every step."""
    warmup_epochs: int
    """First epochs, which the steady means leave out."""
    evaluate: bool
    """Whether each epoch is followed by an evaluation."""
    target_accuracy: float | None
    """Top-1 accuracy, a fraction, at which training ends; null: no target."""
    target_loss: float | None
    """Loss at which training ends; null: no target."""
    throughput: Throughput
    checkpoint: Checkpoint
    log_loss: bool
    """Whether the progress line shows the loss; reading it waits for the device."""
    rehearse: bool | Literal["auto"]
    """true: change no device setting; false: refuse what this machine lacks; auto: rehearse only then."""
    save_model: bool
    """Whether the weights are saved."""
    machine: Machine
    sweep: Sweep


@dataclass(frozen=True, kw_only=True)
class Examination(Section):
    """The configuration of doctor.py."""

    device: Device
    meter: Meter
    dataset: Dataset
    storage: Storage
    machine: Machine
    format: Literal["table", "json"]
    """Output: a table, or a list of objects."""


def _typed(kind: object, value: Any) -> Any:
    """Return a plain value as its type: a section, a choice, or the value itself."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind.from_dict(value)
    if isinstance(kind, type) and issubclass(kind, Choice) and not isinstance(value, kind):
        return kind[value]
    return value


def _plain(value: object) -> object:
    return value.to_dict() if isinstance(value, Section) else value.name if isinstance(value, Choice) else value


_KINDS: dict[type, Mapping[str, object]] = {}


def _kinds(section: type) -> Mapping[str, object]:
    """Return the type of each field; evaluated once."""
    if section not in _KINDS:
        _KINDS[section] = get_type_hints(section)
    return _KINDS[section]


def _has_default(section: type[Any], name: str) -> bool:
    return next(entry.default for entry in fields(section) if entry.name == name) is not MISSING


def required_keys(section: type[Section], prefix: str = "") -> tuple[str, ...]:
    """Return the dotted keys without a default, those of nested sections included."""
    keys: list[str] = []
    for name, kind in _kinds(section).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            keys += required_keys(kind, f"{prefix}{name}.")
        elif name != "spec" and not _has_default(section, name):
            keys.append(f"{prefix}{name}")
    return tuple(keys)


def _structured(section: type[Section], name: str) -> type:
    """Return a section as a structured config of Hydra, in which groups are open."""
    return make_dataclass(name, [_key(entry, _kinds(section)[entry.name]) for entry in fields(section)])


def _key(entry: Field[Any], kind: object) -> tuple[str, Any, Any]:
    """Return a field for `make_dataclass`. Values of several types are not checked by Hydra, but by `validation`."""
    if isinstance(kind, type) and issubclass(kind, Group):
        return entry.name, dict[str, Any], field(default_factory=dict)
    if isinstance(kind, type) and issubclass(kind, Section):
        nested = _structured(kind, kind.__name__)
        return entry.name, nested, field(default_factory=nested)
    several = get_origin(kind) in (Union, UnionType) and len({*get_args(kind)} - {type(None)}) > 1
    return entry.name, Any if several else kind, field(default="???" if entry.default is MISSING else entry.default)


Schema: Any = _structured(Job, "Schema")
"""`Job` as Hydra's structured config: keys and types, against which overrides are checked."""
