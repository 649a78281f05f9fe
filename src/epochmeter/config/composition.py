"""Compose the configuration of a single run once: its mode, which a recipe may set, and the run need the same one.

Hydra 1.3 composes twice, which takes a tenth of a second of each start. Hydra 1.4 does not see the mode of a recipe.
Two of Hydra's methods are replaced while a command starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.utils import configure_log
from hydra.types import RunMode
from omegaconf import DictConfig

from epochmeter.config.versions import ADDED_TO_RUNS, COMPOSED_FOR_JOBS


@contextmanager
def composed_once() -> Iterator[None]:
    """Let Hydra, in this context, run with the configuration that has shown that it is no sweep."""
    get_mode, compose_config = Hydra.get_mode, Hydra.compose_config
    composed: dict[tuple[str | None, ...], DictConfig] = {}

    def mode_of(self: Hydra, config_name: str | None, overrides: list[str], **parsed: Any) -> Any:
        with suppress(Exception):  # such as values to sweep over: as Hydra does it
            config = compose_config(self, config_name, overrides, RunMode.RUN, **COMPOSED_FOR_JOBS, **parsed)
            if config.hydra.mode is None:
                as_run = (config_name, *overrides, *ADDED_TO_RUNS)
                composed[as_run] = config
                return None
        with suppress(Exception):  # raised again when Hydra composes for the mode of the command line
            config = compose_config(
                self, config_name, overrides, RunMode.MULTIRUN, validate_sweep_overrides=False, **parsed
            )
            return config.hydra.mode
        return None

    def compose(
        self: Hydra, config_name: str | None, overrides: list[str], run_mode: RunMode, **options: Any
    ) -> DictConfig:
        config = composed.pop((config_name, *overrides), None) if run_mode == RunMode.RUN else None
        if config is None or config.hydra.verbose:  # of which Hydra prints details as it composes
            return compose_config(self, config_name, overrides, run_mode, **options)
        if options.get("with_log_configuration"):
            configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        config.hydra.mode = RunMode.RUN
        config.hydra.overrides.hydra.extend(ADDED_TO_RUNS)
        return config

    Hydra.get_mode, Hydra.compose_config = mode_of, compose  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Hydra.get_mode, Hydra.compose_config = get_mode, compose_config  # type: ignore[method-assign]
