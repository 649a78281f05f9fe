"""A search of a space for the points that none other betters, by Optuna: `-m hydra/sweeper=optuna batch=8,16,32
'optimizer.lr=tag(log, interval(0.001, 0.1))'`.

Hydra takes its plugins from the namespace package `hydra_plugins` alone, and imports them whenever it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from epochmeter.results.reuse import read_reference, record_of
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record
from epochmeter.sweep.search import (
    SAMPLERS,
    SEARCH_FILE,
    Point,
    SearchError,
    SearchSpec,
    TrialResult,
    resolve_objectives,
    run_search,
)
from epochmeter.sweep.search_space import FloatDimension, IntDimension, SearchDimension, categorical_dimension
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS
from hydra_plugins.grid import MAX_RUNS, check_configurations, value_count, with_sweep_loader

GRID_ONLY_KEYS = {
    "sample": "give hydra.sweeper.trials, the points to measure",
    "repeats": f"Measure its best points again in a grid: -m {RECOMMENDED_REPEATS} with their overrides",
}
"""Keys that say nothing of a search, and what to do in their place."""


class SearchSweeper(Sweeper):
    """Runs one after another, each of the point that those before it let expect the most of.

    What a run gave is read from its record, and so is which points were tried: the same command goes on with the
    search, with as many `trials` and by whatever `objectives` and `sampler` it then asks for.
    """

    def __init__(
        self,
        params: dict[str, str] | None,
        trials: int,
        objectives: list[str] | None,
        sampler: str,
        seed: int,
    ) -> None:
        self.params = params or {}
        self.trials, self.objectives, self.sampler, self.seed = trials, objectives, sampler, seed

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.hydra_context = with_sweep_loader(hydra_context, config)
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        assert self.config is not None
        assert self.hydra_context is not None
        launcher: Any = self.launcher
        typed = [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
        parsed = OverridesParser.create(config_loader=self.hydra_context.config_loader).parse_overrides(typed)
        last = {override.get_key_element(): override for override in parsed}
        fixed = [f"{key}={one.get_value_element_as_str()}" for key, one in last.items() if not one.is_sweep_override()]
        asked = self.search_spec(
            self.config, [make_dimension(override) for override in last.values() if override.is_sweep_override()]
        )
        if not asked.axes:
            raise SearchError("there is nothing to search", "give several values: batch=8,16 lr=interval(0.001,0.1)")
        check_configurations(probe_points(asked.axes, fixed), self)
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SEARCH_FILE, {"objectives": list(asked.objectives), "optional": list(asked.optional)})

        def measure(number: int, point: Point) -> TrialResult:
            (done,) = launcher.launch([[*fixed, *point]], initial_job_idx=number)
            _ = done.return_value  # raises an error that the run did not handle itself
            return trial_result(folder / str(number))

        run_search(asked, earlier_points(folder, asked), measure, print_line)

    def search_spec(self, config: DictConfig, axes: Sequence[SearchDimension]) -> SearchSpec:
        """What is searched; SearchError for what cannot be."""
        if find_spec("optuna") is None:
            raise SearchError("Optuna is not installed", "make optuna, or pip install 'optuna>=5'")
        if type(self.trials) is not int or self.trials < 1:
            raise SearchError(f"`hydra.sweeper.trials={self.trials}` is not valid", "give a whole number, 1 or more")
        if not isinstance(self.objectives, Sequence | None) or isinstance(self.objectives, str):
            raise SearchError(f"`hydra.sweeper.objectives={self.objectives}` is not a list", "give [steady/energy_j]")
        if self.sampler not in SAMPLERS:
            raise SearchError(
                f"`hydra.sweeper.sampler={self.sampler}` is not valid", f"give one of {', '.join(SAMPLERS)}"
            )
        for key, instead in GRID_ONLY_KEYS.items():
            if config.sweep.get(key) is not None:
                raise SearchError(f"`sweep.{key}={config.sweep[key]}` is for a grid", instead)
        to_target = any(config[key] is not None for key in ("target_accuracy", "target_loss"))
        objectives, optional = resolve_objectives(self.objectives, to_target)
        return SearchSpec(axes, objectives, optional, self.trials, self.sampler, self.seed)


def make_dimension(override: Override) -> SearchDimension:
    """The axis that a sweep over one key is; SearchError for an interval that is none."""
    key, swept, values = override.get_key_element(), override.value(), value_count(override)
    if not 0 < values <= MAX_RUNS and not isinstance(swept, IntervalSweep):
        raise SearchError(
            f"`{override.input_line}` has {values:,} values",
            f"give 1 to {MAX_RUNS:,} values, or {key}=interval(low, high)",
        )
    if not isinstance(swept, IntervalSweep):
        return categorical_dimension(key, override.sweep_string_iterator())
    low, high, log = swept.start, swept.end, "log" in swept.tags
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if low > high or (log and low <= 0):
        least = " above 0" if log else ""
        raise SearchError(
            f"`{key}=interval({low}, {high})` is empty",
            f"give a lower end{least} and an upper end that is not below it",
        )
    if isinstance(low, int) and isinstance(high, int):
        return IntDimension(key, low, high, log)
    return FloatDimension(key, float(low), float(high), log)


def probe_points(axes: Sequence[SearchDimension], fixed: Sequence[str]) -> list[tuple[str, ...]]:
    """Points that tell whether a job can be made of each value: one axis is gone through, the others stay."""
    first = [axis.boundary_values()[0] for axis in axes]
    points = [(*fixed, *first[:place], probe, *first[place + 1 :])
              for place, axis in enumerate(axes) for probe in axis.boundary_values()]  # fmt: skip
    return list(dict.fromkeys(points))


def earlier_points(folder: Path, asked: SearchSpec) -> dict[int, Point | None]:
    """What the runs that have a number are of, in the order of these; None of what is no point of this search."""
    runs = [run for run in folder.iterdir() if run.name.isdecimal()]
    numbers = sorted(int(run.name) for run in runs if (run / "job.json").exists() or read_reference(run))
    return {number: point_of(folder / str(number), asked) for number in numbers}


def point_of(folder: Path, asked: SearchSpec) -> Point | None:
    try:
        return asked.point_of((read_reference(folder) or Record(folder).run())["overrides"])
    except (OSError, ValueError, KeyError):  # it was cut short, or is of another form
        return None


def trial_result(folder: Path) -> TrialResult:
    """What the run of a folder tells."""
    record = record_of(folder)
    summary = record.summary()
    if summary is None or summary["state"] != "completed":
        return TrialResult()
    metrics = summary["metrics"]
    return TrialResult(metrics, None if "total/energy_j" in metrics else record.run()["energy"]["reason"])


def print_line(text: str) -> None:
    from epochmeter.console.console import Terminal

    Terminal().info(text)
