"""The request for one run, from the configuration that Hydra has composed, or composed again for another device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from epochmeter.config.app import problem_by_text
from epochmeter.config.interpreter import ENVIRONMENT
from epochmeter.config.job import composed_job, split_config
from epochmeter.config.schema import Job
from epochmeter.shared.problem import InputError, input_error

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
        if self.job.device.name == device:  # detected before Hydra has composed
            return replace(self, choices={**self.choices, "device": device, "meter": self.job.meter.name})
        config = compose_for_device("train", device, self.overrides)
        choices = {**self.choices, "device": device, "meter": config.meter.name}
        return replace(self, job=composed_job(config, self.overrides), choices=choices)


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


def users_environment() -> dict[str, str]:
    """Return the environment variables that the user has set: for this command, and by `hydra.job.env_set`."""
    of_job = HydraConfig.get().job.env_set if HydraConfig.initialized() else {}
    return {**ENVIRONMENT, **of_job}


def forbid_sweep_keys(overrides: Sequence[str]) -> None:
    """Refuse keys of sweeps for a single run; raises InputError."""
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in SWEEP_ONLY_KEYS and value != "null":
            raise input_error(f"`{override}` is for sweeps, and this is a single run", f"add -m, or leave {key} out")


def compose_for_device(command: str, device: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a command again, with another device and the present search path; InputError for a key it lacks."""
    search_overrides = search_path(HydraConfig.get()) if HydraConfig.initialized() else []
    others = [override for override in overrides if override.partition("=")[0] != "device"]
    try:
        return compose(command, overrides=[*search_overrides, *others, f"device={device}"])
    except ConfigCompositionException as error:
        raise InputError(problem_by_text(error, others, command)) from error


def search_path(hydra: Any) -> list[str]:
    """Return the overrides of the search path in a configuration of Hydra itself."""
    return [override for override in hydra.overrides.hydra if override.lstrip("+").startswith("hydra.searchpath=")]
