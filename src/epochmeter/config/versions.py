"""Hydra 1.3 with OmegaConf 2.3, and Hydra 1.4 with OmegaConf 2.4: all that differs for this project."""

from collections.abc import Callable
from typing import Any

import omegaconf
from omegaconf import OmegaConf

try:
    from omegaconf._yaml import get_yaml_loader  # type: ignore[import-not-found, unused-ignore]  # 2.4
except ImportError:
    from omegaconf._utils import get_yaml_loader

IS_HYDRA_1_3 = omegaconf.__version__.startswith("2.3.")  # which only Hydra 1.3 accepts, and is imported sooner
DEFAULTS = {"version_base": "1.3"} if IS_HYDRA_1_3 else {}
"""Arguments for the defaults of Hydra 1.3, which are those of 1.4 without this deprecated argument."""
ADDED_TO_RUNS = ("hydra.mode=RUN",) if IS_HYDRA_1_3 else ()
"""Overrides that Hydra adds to those of a run."""
COMPOSED_FOR_JOBS: dict[str, Any] = {} if IS_HYDRA_1_3 else {"activate_config_repository": True}
"""Arguments with which Hydra composes a configuration that jobs will use."""
REPLACE: dict[str, Any] = {} if IS_HYDRA_1_3 else {"replace": True}
"""Arguments for a name that a store of configurations may have already."""


def register_resolver(name: str, function: Callable[..., Any]) -> None:
    """Register a resolver for references in YAML, or replace it."""
    if IS_HYDRA_1_3:
        OmegaConf.register_new_resolver(name, function, replace=True)
    else:
        OmegaConf.register_resolver(name, function, replace=True)  # type: ignore[call-arg, unused-ignore]


def yaml_loader() -> Any:
    """Return OmegaConf's class of YAML loaders."""
    return get_yaml_loader()
