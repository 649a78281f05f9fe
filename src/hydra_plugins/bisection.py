"""Sweeper that finds the largest batch that fits into memory: `experiment=memory/largest_batch model=resnet50`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from epochmeter.config.errors import input_error
from epochmeter.results.reuse import record_of
from epochmeter.sweep.sweep_folder import is_sweep_override, key_of
from hydra_plugins.search import SearchSweeper

TOLERANCE = 0.02  # accuracy of the result, as a fraction of the batch size


class BisectionSweeper(SearchSweeper):
    """Double the batch until a run is out of memory, then bisect; the same command skips completed runs."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(params=None, trials=1, objectives=None, seed=0)

    def sweep(self, arguments: list[str]) -> None:
        from epochmeter.console.console import Terminal

        assert self.config is not None
        if listed := [text for text in arguments if is_sweep_override(text) or key_of(text) == "batch"]:
            cause = f"`{listed[0]}` is not valid: the batch size is searched, for one configuration"
            raise input_error(cause, "omit `batch=`, and give one value per key")
        if self.config.sweep.prior:
            raise input_error("`sweep.prior=` is for searches with Optuna", "leave it out")
        folder = Path(self.config.hydra.sweep.dir)
        tries: list[int] = []

        def fits(batch: int) -> bool:
            (done,) = self.launcher.launch([[*arguments, f"batch={batch}"]], initial_job_idx=len(tries))
            _ = done.return_value  # raises an error that the run did not handle itself
            record = record_of(folder / str(len(tries)))
            tries.append(batch)
            summary = record.summary() or {}
            if summary.get("state") != "completed" and (summary.get("failure") or {}).get("kind") != "oom":
                cause = f"the run with batch={batch} failed, but not for lack of memory"
                raise input_error(cause, "correct its error, and run the same command again")
            self.samples = record.run()["dataset"]["splits"]["train"]
            return bool(summary["state"] == "completed")

        largest, too_large = find_largest(fits, lambda: self.samples)
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
