"""A composed configuration as a typed job, the request for one run, and the identity of its measurement."""

import hashlib
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from epochmeter.config import installation
from epochmeter.config.app import problem_by_text
from epochmeter.config.errors import InputError, input_error
from epochmeter.config.schema import SCRIPT, Device, Job, Schema
from epochmeter.config.script import script_job
from epochmeter.config.suggestions import entry_keys, list_choices, option_content, unknown_key_problem
from epochmeter.config.validation import problems_of

ROOT = installation.ROOT
GROUPS = (
    *("device", "model", "dataset", "task", "storage", "optimizer", "scheduler", "strategy"),
    *("meter", "profiler", "tracking"),
)
SLURM_KEYS = ("account", "qos", "time", "setup", "python", "poll_s")
NON_MEASUREMENT_KEYS = (
    *("tracking", "sweep", "roofline", "footprint"),
    *("machine.lock_dir", "machine.state_dir", "machine.gauges_period_s"),
    *(f"{keys}.{key}" for keys in ("hydra.launcher", "device.slurm") for key in SLURM_KEYS),
)
"""Keys that affect no measurement. Other options of Slurm, such as the partition, decide where a run is measured."""

SCRIPT_GROUPS = ("model", "optimizer", "scheduler", "task", "profiler")
"""Groups whose option is the measured script itself."""
SCRIPT_KEYS = (
    *(*SCRIPT_GROUPS, "device", "dataset", "meter", "tracking", "machine", "script", "measure", "strategy", "storage"),
    *("power_limit", "auto", "clocks", "fan", "sweep", "warmup_epochs", "rehearse", "repeat", "roofline", "throughput"),
    "footprint",
)
"""Keys in the record of a measured script; all others configure the training of this project."""
SWEEP_ONLY_KEYS = tuple(f"sweep.{key}" for key in ("sample", "repeats", "order", "seed", "prior"))
"""Keys that apply to sweeps only."""


@dataclass(frozen=True)
class RunRequest:
    """The request for one run: its configuration, and the folder of its record."""

    job: Job
    choices: dict[str, str]  # group -> the choice: `device` -> `nano`
    overrides: list[str]
    folder: Path
    of_sweep: bool
    remote: bool = False  # whether a node of a cluster runs it, not this process

    @property
    def number(self) -> int:
        return int(self.folder.name)

    def with_device(self, device: str) -> "RunRequest":
        """Return the request composed for another device, which may select its own meter."""
        config = compose_for_device("train", device, self.overrides)
        choices = {**self.choices, "device": device, "meter": config.meter.name}
        return replace(self, job=composed_job(config, self.overrides), choices=choices)


def compose_for_device(entry: str, device: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a command's configuration again, with another device, and with the search path of the present command.

    Raises InputError for a key that the meter of this device does not have.
    """
    own = search_path(HydraConfig.get()) if HydraConfig.initialized() else []
    others = [override for override in overrides if override.partition("=")[0] != "device"]
    try:
        return compose(entry, overrides=[*own, *others, f"device={device}"])
    except ConfigCompositionException as error:
        raise InputError(problem_by_text(error, entry)) from error


def search_path(hydra: Any) -> list[str]:
    """Return the overrides of the search path in a configuration of Hydra itself."""
    return [override for override in hydra.overrides.hydra if override.lstrip("+").startswith("hydra.searchpath=")]


def local_device_overrides(device: Device, overrides: Sequence[str]) -> Device:
    """Return another machine's device with the accelerator and Python of this one, except where overrides set them."""
    keys = {override.partition("=")[0] for override in overrides}
    accelerator = device.accelerator if "device.accelerator" in keys else "auto"
    python = device.python if "device.python" in keys else None
    return replace(device, accelerator=accelerator, python=python)


def register(
    sweep_folder: Callable[[list[str], bool, bool], Path],
    detect: Callable[[str], str] | None = None,
    command: Sequence[str] = (),
) -> None:
    """Register the schema and the resolvers with Hydra, before it composes a configuration.

    Args:
        sweep_folder: Returns the folder for a command's overrides, given whether it is a sweep and whether it measures
            again.
        detect: Returns the device of the machine below a root, for recipes with values per board.
        command: The script to measure, with its arguments; empty: this project trains.
    """
    resolved: list[str] = []

    def folder(*, _root_: DictConfig) -> str:
        if not resolved:  # Hydra resolves the folder for each run, then with that run's overrides only
            many = _root_.hydra.mode == RunMode.MULTIRUN
            again = _root_.sweep.again or not (many or _root_.sweep.resume)
            # Searches number their runs differently from grids, and clusters measure on other hosts: each sweeper,
            # grid and launcher has its own folders.
            prefixes = ("hydra/sweeper=", "hydra.sweeper.params", "hydra/launcher=", "hydra.launcher.")
            overrides = _root_.hydra.overrides
            how = [override for override in overrides.hydra if override.lstrip("+").startswith(prefixes)]
            resolved.append(str(sweep_folder([*overrides.task, *how], many, again)))
        return resolved[0]

    escaped = [re.sub(r"(\\*)\$\{", r"\1\1\\${", argument) for argument in command]  # not for OmegaConf to resolve
    schema = OmegaConf.merge(Schema, {"script": {}, **({"measure": {"command": escaped}} if command else {})})
    OmegaConf.set_struct(schema.script, False)  # its names are those of the command
    ConfigStore.instance().store("schema", schema)
    OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
    OmegaConf.register_new_resolver("sweep_folder", folder, replace=True)
    OmegaConf.register_new_resolver("of_board", partial(value_for_board, detect=detect), replace=True)
    OmegaConf.register_new_resolver("number_in_sweep", number_in_sweep, replace=True)


def current_request(config: DictConfig) -> RunRequest:
    """Return the request for the run that Hydra starts now; InputError if it is not possible."""
    hydra = HydraConfig.get()
    remote = hydra.runtime.choices["hydra/launcher"] == "slurm"
    many = hydra.mode == RunMode.MULTIRUN
    if remote and not many:
        raise input_error("hydra/launcher=slurm needs a sweep", "add -m, also for a single run")
    if hydra.job.chdir:
        raise input_error("`hydra.job.chdir=true` would change the meaning of relative paths", "leave it out")
    if not many and OmegaConf.is_missing(hydra.job, "num"):  # `num` is set for a sweep's run on a node
        forbid_sweep_keys(hydra.overrides.task)
    job, choices, overrides = split_config(config, hydra)
    return RunRequest(job, choices, overrides, Path(hydra.runtime.output_dir), of_sweep=many, remote=remote)


def forbid_sweep_keys(overrides: Sequence[str]) -> None:
    """Refuse keys of sweeps for a single run; raises InputError."""
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in SWEEP_ONLY_KEYS and value != "null":
            raise input_error(f"`{override}` is for sweeps, and this is a single run", f"add -m, or leave {key} out")


def split_config(config: DictConfig, hydra: Any = None) -> tuple[Job, dict[str, str], list[str]]:
    """Return job, choice of each group, and overrides of a composed configuration."""
    hydra = hydra or config.hydra
    overrides = list(hydra.overrides.task)
    job = composed_job(OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]), overrides)
    choices = {group: str(hydra.runtime.choices[group]) for group in GROUPS}
    if job.measure.command:
        choices |= {**dict.fromkeys((*SCRIPT_GROUPS, "dataset"), SCRIPT), "profiler": job.profiler.name}
    return job, choices, overrides


def value_for_board(
    settings: Mapping[str, Any],
    otherwise: Any = None,
    *,
    detect: Callable[[str], str] | None = None,
    _root_: DictConfig,
) -> Any:
    """Resolve `${of_board:{nano: sd, agx: ssd}}`: the value for the configured device, else `otherwise`."""
    device = _root_.device.name
    if device == "auto" and detect:
        device = detect(_root_.machine.root)
    return settings.get(device, otherwise)


def number_in_sweep() -> int:
    """Return the run's number in its sweep, from 0; 0 for a single run."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return 0
    return int(HydraConfig.get().job.num)


@cache
def device_matches() -> Mapping[str, Mapping[str, str] | None]:
    """Return for each device of conf/device the host facts that identify it; InputError for an invalid pattern."""
    matches = {option: option_content("device", option).get("match") for option in list_choices("device")}
    if problems := [problem for match in matches.values() for problem in problems_of("device.match", match)]:
        raise InputError(*problems)
    return matches


def composed_job(config: DictConfig, overrides: Sequence[str] = ()) -> Job:
    """Return a composed configuration as a typed job, not validated yet; InputError for unknown or missing keys."""
    keys = to_plain(config)
    if unknown := keys.keys() - {entry.name for entry in fields(Job)}:
        raise InputError(unknown_key_problem(min(unknown)))
    job = Job.from_dict(keys)
    return script_job(job, overrides) if job.measure.command else job


def recorded_job(keys: Mapping[str, Any]) -> Job:
    """Return the job of a record; keys that its version lacked have their defaults."""
    sections = {key: {**value, **keys.get(key, {})} for key, value in defaults().items() if isinstance(value, dict)}
    return Job.from_dict({**defaults(), **keys, **sections})


def defaults() -> Mapping[str, object]:
    """Return the default of each key outside groups."""
    return entry_keys("train")[1]


def to_plain(config: DictConfig) -> dict[str, object]:
    """Return a composed configuration as plain values: interpolations resolved, power limit normalized."""
    try:
        job: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    except InterpolationKeyError as error:  # most often a model that refers to a key of the dataset
        hint = f"give `{error.full_key}` a value"
        if str(error.full_key).startswith("model."):
            hint += f", or use a model for dataset={config.dataset.name}, or another dataset"
        what = f"`{error.full_key}` refers to a key that does not exist: {str(error).splitlines()[0]}"
        raise input_error(what, hint) from error
    return {**job, "power_limit": normalize_power_limit(job["power_limit"])}


def normalize_power_limit(power_limit: Any) -> Any:
    """Return watts as a number (15, 15.0 and "15" are equal), and other values, such as a power mode, unchanged."""
    if isinstance(power_limit, bool):
        return power_limit
    try:
        watts = float(power_limit)
    except (TypeError, ValueError, OverflowError):  # the value is refused later if it is invalid
        return power_limit
    return int(watts) if watts.is_integer() else watts


def identity(job: Job, digest: str | None, nodes: int = 1, gpus: Sequence[str] = (), host: str | None = None) -> str:
    """Return the hash of everything that affects the measurement; an empty `host` leaves the host out.

    `digest` is the dataset's checksum, and `gpus` has the models of the GPUs.
    """
    measured = {key: value for key, value in job.to_dict().items() if key not in NON_MEASUREMENT_KEYS}
    measured["machine"] = {"root": job.machine.root}
    measured["device"] = {key: value for key, value in job.device.to_dict().items() if key != "slurm"}
    measured |= {"nodes": nodes} if nodes > 1 else {}
    measured |= {"gpus": list(gpus)} if gpus else {}
    return hash_value([measured, platform.node() if host is None else host, digest])


def affects_measurement(key: str) -> bool:
    plain_key = key.lstrip("+~")
    return not any(f"{plain_key}.".startswith(f"{other}.") for other in NON_MEASUREMENT_KEYS)


def hash_value(value: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
