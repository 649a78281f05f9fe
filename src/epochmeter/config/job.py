"""A composed configuration as a typed job."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from epochmeter.config.schema import SCRIPT, Job
from epochmeter.config.script import script_job
from epochmeter.config.secrets import reveal
from epochmeter.config.suggestions import unknown_key_problem
from epochmeter.shared.problem import InputError, input_error

GROUPS = (
    *("device", "model", "dataset", "task", "storage", "optimizer", "scheduler", "strategy"),
    *("meter", "profiler", "tracking"),
)
SCRIPT_GROUPS = ("model", "optimizer", "scheduler", "task", "profiler")
"""Groups whose option is the measured script itself."""
SCRIPT_KEYS = (
    *(*SCRIPT_GROUPS, "device", "dataset", "meter", "tracking", "machine", "script", "measure", "strategy", "storage"),
    *("power_limit", "gpu_clock", "memory_clock", "auto", "clocks", "fan", "sweep", "warmup_epochs", "rehearse"),
    *("repeat", "nodes", "roofline", "throughput", "footprint", "budget"),
)
"""Keys in the record of a measured script; all others configure the training of this project."""


CONCEALED_KEYS = ("script", "measure")  # whose secrets only the script's process gets


def split_config(config: DictConfig, hydra: Any) -> tuple[Job, dict[str, str], list[str]]:
    """Return job, choice of each group, and overrides of a composed configuration, whose key `hydra` is apart."""
    overrides = list(hydra.overrides.task)
    job = composed_job(config, overrides)
    choices = {group: str(hydra.runtime.choices[group]) for group in GROUPS}
    if job.measure.command:
        choices |= {**dict.fromkeys((*SCRIPT_GROUPS, "dataset"), SCRIPT), "profiler": job.profiler.name}
    return job, choices, overrides


def composed_job(config: DictConfig, overrides: Sequence[str] = ()) -> Job:
    """Return a composed configuration as a typed job, not validated yet; InputError for unknown or missing keys."""
    keys = {key: value if key in CONCEALED_KEYS else reveal(value) for key, value in to_plain(config).items()}
    if unknown := keys.keys() - {field.name for field in fields(Job)}:
        raise InputError(unknown_key_problem(min(unknown)))
    job = Job.from_dict(keys)
    return script_job(job, overrides) if job.measure.command else job


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
