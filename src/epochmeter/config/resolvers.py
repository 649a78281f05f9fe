"""The schema and the resolvers of conf/, such as `${of_board:{nano: sd}}`, registered before Hydra composes."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from epochmeter.config.installation import ROOT
from epochmeter.config.structured import Schema
from epochmeter.config.versions import REPLACE, register_resolver


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
    ConfigStore.instance().store("schema", schema, **REPLACE)
    register_resolver("root", lambda: str(ROOT))
    register_resolver("sweep_folder", folder)
    register_resolver("of_board", partial(value_for_board, detect=detect))
    register_resolver("data_sources", data_sources)
    register_resolver("number_in_sweep", number_in_sweep)
    register_resolver("sum", lambda *terms: whole_number(sum, terms))
    register_resolver("product", lambda *factors: whole_number(math.prod, factors))
    register_resolver("largest", lambda *values: whole_number(max, values))


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


def data_sources(*, _root_: DictConfig) -> str:
    """Resolve `${data_sources:}`: the data sources that `experiment=stalls` compares, as a list to sweep over.

    A measured script has replayed batches in place of synthetic ones. The page cache can only be prepared if its files
    are known.
    """
    if not _root_.measure.command:
        return "synthetic,cached,storage"
    return "replay,cached,storage" if _root_.measure.data else "replay,unchanged"


def whole_number(function: Callable[[Sequence[float]], float], values: Sequence[Any]) -> int | None:
    """Resolve a default that depends on other keys, such as `${product:5,${.classes}}`; None if one is no number."""
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return None
    return round(function(values))


def number_in_sweep() -> int:
    """Return the run's number in its sweep, from 0; 0 for a single run."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return 0
    return int(HydraConfig.get().job.num)
