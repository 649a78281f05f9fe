"""What one asks for: the schema of a job, its checks, and its identity."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf

ROOT = Path(__file__).resolve().parents[2]
"""The project's root, found from this file, whatever the working directory."""

GROUPS = ("device", "model", "dataset", "storage", "optimizer", "meter", "profiler", "tracking")
UNMEASURED = ("tracking", "sweep", "machine")
"""Keys that change no measurement, and so are no part of a job's identity."""


class Cache(Enum):
    keep = "keep"
    cold = "cold"
    cold_each_epoch = "cold_each_epoch"
    warm = "warm"


class Timing(Enum):
    deferred = "deferred"
    synchronous = "synchronous"


@dataclass
class Machine:
    root: str = MISSING
    lock_dir: str | None = None


@dataclass
class Sweep:
    again: bool = MISSING


@dataclass
class Schema:
    """The types of the keys; their defaults stand in conf/train.yaml, and groups are open."""

    device: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    storage: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    meter: dict[str, Any] = field(default_factory=dict)
    profiler: dict[str, Any] = field(default_factory=dict)
    tracking: dict[str, Any] = field(default_factory=dict)
    batch: int = MISSING
    epochs: int = MISSING
    seed: int = MISSING
    repeat: int = MISSING
    workers: int = MISSING
    prefetch: int = MISSING
    pin_memory: Any = MISSING
    persistent_workers: bool = MISSING
    power_limit: Any = MISSING
    cache: Cache = MISSING
    timing: Timing = MISSING
    warmup_epochs: int = MISSING
    evaluate: bool = MISSING
    target_accuracy: float | None = MISSING
    target_loss: float | None = MISSING
    rehearse: Any = MISSING
    save_model: bool = MISSING
    machine: Machine = field(default_factory=Machine)
    sweep: Sweep = field(default_factory=Sweep)


@dataclass(frozen=True)
class Order:
    """One run as it was ordered: its job, composed and plain, and where its record goes."""

    job: dict[str, Any]
    choices: dict[str, str]
    """What stands for each group: `device` -> `nano`."""
    overrides: list[str]
    folder: Path
    of_sweep: bool

    @property
    def number(self) -> int:
        return int(self.folder.name)

    def on(self, device: str) -> Order:
        """The same order composed once more for a device, which may pick its own meter."""
        others = [override for override in self.overrides if override.partition("=")[0] != "device"]
        config = compose("train", overrides=[*others, f"device={device}"])
        choices = {**self.choices, "device": device, "meter": config.meter.name}
        return replace(self, job=plain(config), choices=choices)


def register(sweep_folder: Callable[[list[str], bool], Path]) -> None:
    """Makes the schema and the resolvers known to Hydra; once, before it composes.

    `sweep_folder` gives the folder for a command, and is told whether to go on in an earlier one. Its first answer
    stands for the whole process: Hydra asks again for each job of a sweep, and then tells of that job alone.
    """
    answer: list[str] = []

    def folder(*, _root_: DictConfig) -> str:
        if not answer:
            command = list(_root_.hydra.overrides.task)
            resume = _root_.hydra.mode == RunMode.MULTIRUN and "sweep.again=true" not in command
            answer.append(str(sweep_folder(command, resume)))
        return answer[0]

    ConfigStore.instance().store("schema", Schema)
    OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
    OmegaConf.register_new_resolver("sweep_folder", folder, replace=True)


def order(config: DictConfig) -> Order:
    """The order that Hydra is at."""
    hydra = HydraConfig.get()
    return Order(
        job=plain(config),
        choices={group: str(hydra.runtime.choices[group]) for group in GROUPS},
        overrides=list(hydra.overrides.task),
        folder=Path(hydra.runtime.output_dir),
        of_sweep=not OmegaConf.is_missing(hydra.job, "num"),
    )


def matches() -> dict[str, Any]:
    """Each device of conf/device and the facts that it matches."""
    files = sorted((ROOT / "conf" / "device").glob("*.yaml"))
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)).get("match") for file in files}  # type: ignore


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, interpolations resolved, the power limit in one form."""
    job: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return {**job, "power_limit": normalized(job["power_limit"])}


def normalized(power_limit: Any) -> int | float | str | None:
    """Watts as one number (15, 15.0 and "15" are one); a text is a power mode."""
    if power_limit is None:
        return None
    try:
        watts = float(power_limit)
    except ValueError:
        return str(power_limit)
    return int(watts) if watts.is_integer() else watts


def check(job: Mapping[str, Any]) -> None:
    """Refuses values out of range, each with what would be in it; ValueError."""
    least = {"batch": 1, "epochs": 1, "workers": 0, "prefetch": 1, "warmup_epochs": 0, "repeat": 0, "seed": 0}
    wrong = [f"{key}={job[key]}: give {low} or more" for key, low in least.items() if job[key] < low]
    choices = {"pin_memory": ("auto", True, False), "rehearse": ("auto", True, False)}
    wrong += [
        f"{key}={job[key]}: give one of {', '.join(map(_typed, known))}"
        for key, known in choices.items()
        if job[key] not in known
    ]
    if isinstance(job["power_limit"], (int, float)) and not 0 < job["power_limit"] < math.inf:
        wrong.append(f"power_limit={job['power_limit']}: give watts above 0, a power mode, or null")
    accuracy = job["target_accuracy"]
    if accuracy is not None and not 0 < accuracy <= 1:
        wrong.append(f"target_accuracy={accuracy}: give a share above 0 and up to 1")
    if job["target_loss"] is not None and not 0 < job["target_loss"] < math.inf:
        wrong.append(f"target_loss={job['target_loss']}: give a loss above 0")
    if wrong:
        raise ValueError("; ".join(wrong) + ".")


def identity(job: Mapping[str, Any], digest: str | None) -> str:
    """The hash of all that affects the measurement: the job, the host, and the dataset's digest."""
    measured = {key: value for key, value in job.items() if key not in UNMEASURED}
    return digest_of([measured, platform.node(), digest])


def hints(arguments: Sequence[str]) -> str:
    """A line for each override that names no key or group there is, with what it may have meant."""
    known = [*GROUPS, "experiment", *(entry.name for entry in fields(Schema))]
    lines = []
    for argument in arguments:
        name = argument.partition("=")[0].partition(".")[0]
        if "=" in argument and name.isidentifier() and name not in {*known, "hydra"}:
            near = "".join(f" Did you mean {match}=?" for match in get_close_matches(name, known, 1))
            lines.append(f"There is no key {name}.{near} The keys are: {', '.join(dict.fromkeys(known))}.\n")
    return "".join(lines)


def digest_of(value: Any) -> str:
    """16 hexadecimal digits of a plain value's hash."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _typed(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value))
