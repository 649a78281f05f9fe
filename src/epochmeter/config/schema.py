"""The types of a job's keys, against which Hydra holds what is typed; their defaults stand in conf/train.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

BUILT = ("model", "optimizer", "scheduler", "task", "profiler")
"""Groups of objects that the training process constructs."""


class Choice(Enum):
    """A word of a few; written, and completed in a shell, as it is typed."""

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


@dataclass
class Machine:
    root: str = MISSING
    lock_dir: str | None = None
    state_dir: str | None = None


@dataclass
class Throughput:
    start: int | None = None
    stop: int | None = None
    exit: bool = MISSING


@dataclass
class Checkpoint:
    every: int | None = None


@dataclass
class Sweep:
    again: bool = MISSING
    resume: bool = MISSING
    sample: int | None = None
    repeats: int | None = None
    order: GridOrder = MISSING
    seed: int = MISSING
    cooldown_s: float = MISSING
    cool_below_c: float | None = None
    cool_wait_s: float = MISSING
    max_failures: int | None = None
    timeout_s: float | None = None
    hung_after_s: float | None = None


@dataclass
class Schema:
    """The types of the keys; their defaults stand in conf/train.yaml, and groups are open."""

    device: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    storage: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    meter: dict[str, Any] = field(default_factory=dict)
    profiler: dict[str, Any] = field(default_factory=dict)
    tracking: dict[str, Any] = field(default_factory=dict)
    batch: int = MISSING
    epochs: int = MISSING
    seed: int = MISSING
    repeat: int = MISSING
    workers: Any = MISSING
    prefetch: int = MISSING
    pin_memory: Any = MISSING
    persistent_workers: bool = MISSING
    power_limit: Any = MISSING
    clocks: Clocks = MISSING
    fan: Fan = MISSING
    cache: Cache = MISSING
    drop_caches: bool = MISSING
    ready_batches: bool = MISSING
    precision: Precision = MISSING
    compile: bool = MISSING
    channels_last: bool = MISSING
    cudnn_benchmark: bool = MISSING
    deterministic: bool = MISSING
    drop_last: bool = MISSING
    lr_scaling: LrScaling = MISSING
    lr_batch: int = MISSING
    timing: Timing = MISSING
    warmup_epochs: int = MISSING
    evaluate: bool = MISSING
    target_accuracy: float | None = MISSING
    target_loss: float | None = MISSING
    throughput: Throughput = field(default_factory=Throughput)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    show_loss: bool = MISSING
    rehearse: Any = MISSING
    save_model: bool = MISSING
    machine: Machine = field(default_factory=Machine)
    sweep: Sweep = field(default_factory=Sweep)
