"""Sweepers that search for the Pareto front of energy and time, or for the largest batch that fits into memory.

They are selected by `-m hydra/sweeper=optuna batch=8,16,32` and `experiment=memory/largest_batch model=resnet50`.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from epochmeter.config.arguments import undefer_key
from epochmeter.config.installation import install_command
from epochmeter.results.reuse import record_of
from epochmeter.results.run_info import read_run
from epochmeter.results.sweep_files import SEARCH_FILE
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import input_error, read_problem
from epochmeter.sweep.grid import as_typed
from epochmeter.sweep.sweep_folder import is_sweep_override, key_of
from hydra_plugins.grid import ProjectSweeper

if TYPE_CHECKING:
    from epochmeter.sweep.search import Point, SearchSpec, TrialResult
    from epochmeter.sweep.search_space import SearchDimension

TOLERANCE = 0.02  # accuracy of the largest batch, as a fraction of it


class SearchSweeper(ProjectSweeper):
    """Run one point after another, each chosen by Optuna from the records of those before.

    The same command resumes the search, also with other `trials`.
    """

    def __init__(self, params: dict[str, str] | None, trials: int, seed: int) -> None:
        super().__init__(None, params)
        self.trials, self.seed = trials, seed

    def sweep(self, arguments: list[str]) -> None:
        if find_spec("optuna") is None:
            raise input_error(
                "hydra/sweeper=optuna: Optuna is not installed", f"install it: `{install_command('optuna')}`"
            )
        from epochmeter.console.console import Terminal
        from epochmeter.sweep import search, search_space

        self.use_current_names()
        overrides = [*(f"{key}={value}" for key, value in self.params.items()), *map(undefer_key, arguments)]
        parsed = OverridesParser.create(config_loader=self.hydra_context.config_loader).parse_overrides(overrides)
        last = {override.get_key_element(): override for override in parsed}
        swept = [override for override in last.values() if override.is_sweep_override()]
        fixed = [as_typed(f"{key}={override.get_value_element_as_str()}")
                 for key, override in last.items() if not override.is_sweep_override()]  # fmt: skip
        spec = self.make_spec(self.config, [search_space.make_dimension(override) for override in swept])
        self.check_configurations(search_space.probe_points(spec.dimensions, fixed))
        if prior := self.config.sweep.prior:
            keys = {dimension.key for dimension in spec.dimensions}
            groups = [group for group in search.PRIOR_GROUPS if group not in keys]
            choices = {group: str(self.config.hydra.runtime.choices[group]) for group in groups}
            folders = [Path(path) for path in ([prior] if isinstance(prior, str) else prior)]
            spec = search.with_prior(spec, folders, choices, Terminal().info)
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        earlier = search.earlier_points(folder, spec)
        runs = search.planned_runs(spec, earlier)
        write_json(folder / SEARCH_FILE, {"runs": runs})

        def measure(number: int, point: "Point") -> "TrialResult":
            self.launch_one(number, [*fixed, *point])
            return search.trial_result(folder / str(number))

        search.run_search(spec, earlier, measure, Terminal().info)

    def make_spec(self, config: DictConfig, dimensions: "Sequence[SearchDimension]") -> "SearchSpec":
        """Return the settings of the search; SearchError if they are invalid."""
        from epochmeter.sweep.search import STEADY, TO_TARGET, SearchSpec
        from epochmeter.sweep.search_space import SearchError

        if type(self.trials) is not int or self.trials < 1:
            raise SearchError(f"`hydra.sweeper.trials={self.trials}` is not valid", "give a whole number, 1 or more")
        if config.sweep.sample is not None or config.sweep.repeats is not None:
            raise SearchError("`sweep.sample` and `sweep.repeats` are for grids", "give hydra.sweeper.trials")
        if not dimensions:
            example = "batch=8,16 'optimizer.lr=interval(0.001, 0.1)'"
            raise SearchError("there is nothing to search", f"give several values: `{example}`")
        to_target = config.target_accuracy is not None or config.target_loss is not None
        return SearchSpec(dimensions, TO_TARGET if to_target else STEADY, self.trials, self.seed)


class BisectionSweeper(ProjectSweeper):
    """Double the batch until a run is out of memory, then bisect; the same command skips completed runs."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(None)

    def sweep(self, arguments: list[str]) -> None:
        from epochmeter.console.console import Terminal

        if listed := [text for text in arguments if is_sweep_override(text) or key_of(text) == "batch"]:
            cause = f"`{listed[0]}` is not valid: the batch size is searched, for one configuration"
            raise input_error(cause, "omit `batch=`, and give one value per key")
        if self.config.sweep.prior:
            raise input_error("`sweep.prior=` is for searches with Optuna", "leave it out")
        folder, samples = Path(self.config.hydra.sweep.dir), 0
        tries: list[int] = []

        def fits(batch: int) -> bool:
            nonlocal samples
            self.launch_one(len(tries), [*arguments, f"batch={batch}"])
            record = record_of(folder / str(len(tries)))
            tries.append(batch)
            summary = record.summary() or {}
            failure = read_problem(summary.get("failure"))
            if summary.get("state") != "completed" and (failure is None or failure.code != "oom"):
                cause = f"the run with batch={batch} failed, but not for lack of memory"
                raise input_error(cause, "correct its error, and run the same command again")
            samples = read_run(record).training_samples or 0
            return bool(summary["state"] == "completed")

        largest, too_large = find_largest(fits, lambda: samples)
        bound = f"batch={too_large} is out of memory" if too_large else "a batch of all training samples"
        Terminal().info(f"Largest batch per rank that fits: {largest} ({bound}; {len(tries)} tries).", style="bold")


def find_largest(fits: Callable[[int], bool], limit: Callable[[], int]) -> tuple[int, int | None]:
    """Return the largest batch that fits, within `TOLERANCE`, and the smallest that does not; None at the `limit`."""
    largest, too_large, batch = 0, None, 1
    while too_large is None or too_large - largest > max(1, TOLERANCE * largest):
        if fits(batch):
            largest = batch
        else:
            too_large = batch
        if largest >= limit() > 0:
            return largest, None
        batch = min(2 * batch, limit()) if too_large is None else (largest + too_large) // 2
    return largest, too_large
