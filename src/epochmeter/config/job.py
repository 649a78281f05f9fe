"""What one asks for: a job, the order for one, and its identity."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from epochmeter.config import validation
from epochmeter.config.errors import InputError, input_error
from epochmeter.config.schema import Device, Job, Schema

ROOT = Path(__file__).resolve().parents[3]
"""The project's root, found from this file, whatever the working directory."""

GROUPS = (
    *("device", "model", "dataset", "task", "storage", "optimizer", "scheduler", "strategy"),
    *("meter", "profiler", "tracking"),
)
NON_MEASUREMENT_KEYS = (
    *("tracking", "sweep", "machine.lock_dir", "machine.state_dir"),
    *(
        f"{keys}.{key}"
        for keys in ("hydra.launcher", "device.slurm")
        for key in ("account", "qos", "time", "setup", "python", "poll_s")
    ),
)
"""Keys that change no measurement. What else is asked of Slurm, such as a partition, is what a run is made on."""

SWEEP_ONLY_KEYS = tuple(f"sweep.{key}" for key in ("sample", "repeats", "order", "seed", "cooldown_s", "max_failures"))
"""Keys that say nothing of a single run."""


@dataclass(frozen=True)
class RunRequest:
    """One run as it was ordered: its configuration, and where its record goes."""

    job: Job
    choices: dict[str, str]
    """What stands for each group: `device` -> `nano`."""
    overrides: list[str]
    folder: Path
    of_sweep: bool
    remote: bool = False
    """Whether a node of a cluster makes it, rather than this process."""

    @property
    def number(self) -> int:
        return int(self.folder.name)

    def with_device(self, device: str) -> RunRequest:
        """The same order composed once more for a device, which may pick its own meter."""
        typed = [*config_search_path(), *self.overrides]
        others = [override for override in typed if override.partition("=")[0] != "device"]
        config = compose("train", overrides=[*others, f"device={device}"])
        choices = {**self.choices, "device": device, "meter": config.meter.name}
        return replace(self, job=composed_job(config), choices=choices)


def local_device_overrides(device: Device, overrides: Sequence[str]) -> Device:
    """Return another machine's device with the accelerator and Python of this one, except where overrides set them."""
    keys = {override.partition("=")[0] for override in overrides}
    here: dict[str, Any] = {"accelerator": "auto", "python": None}
    return replace(device, **{key: value for key, value in here.items() if f"device.{key}" not in keys})


def config_search_path() -> list[str]:
    """The overrides that add folders to where Hydra looks for the files of conf/."""
    of_hydra = HydraConfig.get().overrides.hydra if HydraConfig.initialized() else []
    return [override for override in of_hydra if override.lstrip("+").startswith("hydra.searchpath=")]


def register(sweep_folder: Callable[[list[str], bool, bool], Path], found: Callable[[str], str] | None = None) -> None:
    """Makes the schema and the resolvers known to Hydra; once, before it composes.

    `sweep_folder` gives the folder for a command, told whether it is a sweep's and is to be measured again, as a single
    run is unless it is to be resumed. Its first answer stands for the whole process: Hydra asks again for each job of
    a sweep, and then tells of that job alone.
    `found` gives the device that the machine below a root is, for what a study sets by board before that is looked for.
    """
    answer: list[str] = []

    def folder(*, _root_: DictConfig) -> str:
        if not answer:
            many = _root_.hydra.mode == RunMode.MULTIRUN
            again = _root_.sweep.again or not (many or _root_.sweep.resume)
            typed = _root_.hydra.overrides
            # A search and a grid number their runs by rules of their own, a fleet makes them elsewhere, and on what
            # it is asked for: each has a folder of its own.
            own = ("hydra/sweeper=", "hydra/launcher=", "hydra.launcher.")
            how = [override for override in typed.hydra if override.lstrip("+").startswith(own)]
            answer.append(str(sweep_folder([*typed.task, *how], many, again)))
        return answer[0]

    ConfigStore.instance().store("schema", Schema)
    OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
    OmegaConf.register_new_resolver("sweep_folder", folder, replace=True)
    OmegaConf.register_new_resolver("of_board", partial(value_for_board, found=found), replace=True)
    OmegaConf.register_new_resolver("number_in_sweep", number_in_sweep, replace=True)


def current_request(config: DictConfig) -> RunRequest:
    """The order that Hydra is at."""
    hydra = HydraConfig.get()
    sent = hydra.runtime.choices["hydra/launcher"] == "slurm"
    many = hydra.mode == RunMode.MULTIRUN
    if sent and not many:
        raise input_error("hydra/launcher=slurm needs a sweep", "add -m, also for a single run")
    if hydra.job.chdir:
        raise input_error("`hydra.job.chdir=true` would change the meaning of relative paths", "leave it out")
    if not many and OmegaConf.is_missing(hydra.job, "num"):  # nor is it a node's part of a sweep
        forbid_sweep_keys(hydra.overrides.task)
    return RunRequest(
        job=composed_job(config),
        choices=group_choices(hydra),
        overrides=list(hydra.overrides.task),
        folder=Path(hydra.runtime.output_dir),
        of_sweep=many,
        remote=sent,
    )


def forbid_sweep_keys(typed: Sequence[str]) -> None:
    """Refuses what says nothing of a single run; ValueError."""
    for override in typed:
        key, _, value = override.lstrip("+").partition("=")
        if key in SWEEP_ONLY_KEYS and value != "null":
            raise input_error(f"`{override}` is for sweeps, and this is a single run", f"add -m, or leave {key} out")


def split_config(config: DictConfig) -> tuple[Job, dict[str, str], list[str]]:
    """The job, the choices and the overrides of a configuration that has Hydra's part in it, as a sweep's points do."""
    job = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return composed_job(job), group_choices(config.hydra), list(config.hydra.overrides.task)


def group_choices(hydra: Any) -> dict[str, str]:
    """What stands for each group."""
    return {group: str(hydra.runtime.choices[group]) for group in GROUPS}


def value_for_board(
    settings: Mapping[str, Any],
    otherwise: Any = None,
    *,
    found: Callable[[str], str] | None = None,
    _root_: DictConfig,
) -> Any:
    """What a study sets on the device that a configuration is for: `${of_board:{nano: sd, agx: ssd}}`."""
    device = _root_.device.name
    if device == "auto" and found:
        device = found(_root_.machine.root)
    return settings.get(device, otherwise)


def number_in_sweep() -> int:
    """Which run of its sweep this is, counted from 0: a seed of its own for each; 0 for a single run."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return 0
    return int(HydraConfig.get().job.num)


@cache
def device_matches() -> dict[str, Any]:
    """Each device of conf/device and the facts that it matches."""
    files = sorted((ROOT / "conf" / "device").glob("*.yaml"))
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)).get("match") for file in files}  # type: ignore


def composed_job(config: DictConfig) -> Job:
    """Return a composed configuration as a typed job, whose values are yet to be validated.

    Raises:
        InputError: A key is unknown, missing, or refers to a missing key.
    """
    keys = to_plain(config)
    validation.check_keys(keys)
    return Job.from_dict(keys)


def recorded_job(keys: Mapping[str, Any]) -> Job:
    """Return the job of a record; keys that its version lacked have their defaults.

    Raises:
        KeyError: A required key of a group is missing.
    """
    sections = {key: {**value, **keys.get(key, {})} for key, value in defaults().items() if isinstance(value, dict)}
    return Job.from_dict({**defaults(), **keys, **sections})


@cache
def defaults() -> dict[str, Any]:
    """Return the default of each key outside groups, as conf/train.yaml has it."""
    keys: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "train.yaml"))
    return {key: value for key, value in keys.items() if key not in ("defaults", "hydra")}


def to_plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, interpolations resolved, the power limit in one form."""
    try:
        job: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    except InterpolationKeyError as error:
        raise missing_reference_error(config, error) from error
    return {**job, "power_limit": normalize_power_limit(job["power_limit"])}


def missing_reference_error(config: DictConfig, error: InterpolationKeyError) -> InputError:
    """The error for a key that refers to a missing key, most often a model's key that refers to one of a dataset."""
    group, _, key = str(error.full_key).partition(".")
    if group != "model":
        return input_error(f"`{error.full_key}` refers to a key that does not exist: {str(error).splitlines()[0]}",
                       f"give `{error.full_key}` a value")  # fmt: skip
    return input_error(
        f"model={config.model.name} does not go with dataset={config.dataset.name}, which has no {key}",
        "use seq2seq or transformer with dataset=pairs, polynomial with dataset=polynomial, other models with images",
    )


def normalize_power_limit(power_limit: Any) -> int | float | str | None:
    """Watts as one number (15, 15.0 and "15" are one); a text is a power mode."""
    if power_limit is None or isinstance(power_limit, bool):
        return power_limit
    try:
        watts = float(power_limit)
    except ValueError:
        return str(power_limit)
    except TypeError:  # a list, say: `validation.check` refuses it
        return power_limit  # type: ignore[no-any-return]
    return int(watts) if watts.is_integer() else watts


def identity(
    job: Job,
    digest: str | None,
    nodes: int = 1,
    gpus: Sequence[str] = (),
    host: str | None = None,
) -> str:
    """The hash of all that affects the measurement: the job, the host and its GPUs that are used, by their models, how
    many nodes, and the dataset's digest.

    The host is this one; "" is none, for what another one makes.
    """
    measured = {key: value for key, value in job.to_dict().items() if key not in NON_MEASUREMENT_KEYS}
    measured["machine"] = {"root": job.machine.root}
    measured["device"] = {key: value for key, value in measured["device"].items() if key != "slurm"}
    if nodes > 1:
        measured["nodes"] = nodes
    if gpus:
        measured["gpus"] = list(gpus)
    return hash_value([measured, platform.node() if host is None else host, digest])


def affects_measurement(key: str) -> bool:
    """Whether an override of this key changes what is measured."""
    plain_key = key.lstrip("+~")
    return not any(plain_key == other or plain_key.startswith(f"{other}.") for other in NON_MEASUREMENT_KEYS)


def hash_value(value: Any) -> str:
    """16 hexadecimal digits of a plain value's hash."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
