"""Sweeper for grids: `-m batch=8,16,32 power_limit=100,130 sweep.sample=3 sweep.repeats=3 sweep.order=random`.

Hydra takes its plugins from the namespace package `hydra_plugins` only, and imports them whenever it starts.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from epochmeter.config import errors
from epochmeter.config.arguments import warn_of_old_names
from epochmeter.config.validation import problems_of
from epochmeter.shared.problem import InputError, input_error
from epochmeter.shared.renamed import Renamed, current_choices
from epochmeter.sweep import sweep_folder
from epochmeter.sweep.compose import SweepLoader
from epochmeter.sweep.grid import as_typed, check_size, draw_sample, shuffle_points
from epochmeter.sweep.sweep_folder import REPEAT, REPEATS, key_of, repeats_override


class ConfigDropper(Callback):
    """Drops a run's configuration at its end: Hydra would keep it until the end of the sweep, 0.2 MB per run."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **keys: Any) -> None:
        job_return.cfg = job_return.hydra_cfg = None


class ProjectSweeper(BasicSweeper):
    """Hydra's sweeper, with a fast loader for many configurations; the base of the sweepers."""

    config: Any  # set by `setup`, like the next two attributes
    hydra_context: Any
    launcher: Any

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from epochmeter.machine.host import device_of

        is_remote = config.hydra.runtime.choices["hydra/launcher"] == "slurm"  # each node resolves `device=auto` itself
        assert isinstance(hydra_context.config_loader, ConfigLoaderImpl)
        loader = SweepLoader(hydra_context.config_loader, None if is_remote else device_of)
        context = replace(hydra_context, config_loader=loader)
        context.callbacks.callbacks.insert(0, ConfigDropper())  # called after those of the user
        super().setup(hydra_context=context, task_function=task_function, config=config)

    def use_current_names(self) -> None:
        """Let the parameters of a file have the new names of keys and options, with a warning per old one."""
        found: dict[Renamed, None] = {}
        self.params = current_choices(self.params, found.setdefault)
        warn_of_old_names(found)

    def launch_one(self, number: int, overrides: Sequence[str]) -> None:
        """Execute one run under a number; an error that the run did not handle itself is raised."""
        (done,) = self.launcher.launch([overrides], initial_job_idx=number)
        _ = done.return_value

    def check_configurations(self, points: Sequence[Sequence[str]]) -> None:
        """End the command with an error for each configuration that is invalid."""
        from epochmeter.run.preflight import validate_sweep

        try:
            validate_sweep(points, partial(self.hydra_context.config_loader.load_sweep_config, self.config))
        except ValueError as error:
            errors.refuse(error)


class GridSweeper(ProjectSweeper):
    """Hydra's sweeper, with samples, repeats and random order.

    The same grid, `sample`, `repeats`, `order` and `seed` give the same runs with the same numbers.
    """

    def __init__(
        self, params: dict[str, str] | None, sample: int | None, repeats: int | None, order: Enum, seed: int
    ) -> None:
        super().__init__(None, params)
        self.sample, self.repeats, self.order, self.seed = sample, repeats, order.name, seed

    def sweep(self, arguments: list[str]) -> object:
        self.use_current_names()
        keys = {"sample": self.sample, "repeats": self.repeats, "seed": self.seed}
        if problems := [problem for key, value in keys.items() for problem in problems_of(f"sweep.{key}", value)]:
            raise InputError(*problems)
        if self.config.sweep.prior:
            raise input_error("`sweep.prior=` is for searches", "add hydra/sweeper=optuna, or leave it out")
        listed = [argument for argument in arguments if key_of(argument) == REPEAT]
        is_given = any(key_of(argument) == REPEATS for argument in arguments)  # not by an experiment
        if listed and is_given and self.repeats is not None:
            message = f"`{listed[0]}` and `sweep.repeats={self.repeats}` both set the repeats"
            raise input_error(message, "give only one of them")
        if self.repeats is not None and not listed:
            values = repeats_override(self.repeats).partition("=")[2]
            self.params = {REPEAT: values, **self.params}  # first, so that each repeat is a round of all configurations
        return super().sweep(arguments)

    def split_arguments(  # type: ignore[override]  # static in Hydra
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        """Return the points in one batch; all of them are checked before the first run."""
        check_size(overrides, self.sample, self.repeats)
        (grid,) = BasicSweeper.split_arguments(overrides, None)
        points = draw_sample(grid, self.sample, self.seed)
        if self.order == "random":
            points = shuffle_points(points, self.seed)
        points = [list(map(as_typed, point)) for point in points]
        self.check_configurations(points)
        sweep_folder.write_points(Path(self.config.hydra.sweep.dir), points)
        return [points]

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Do nothing: `split_arguments` has checked all points."""
