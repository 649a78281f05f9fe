"""What a job scheduler is shown of a run while it trains: the fraction that is done, the rest in seconds, metrics."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from epochmeter.results.metrics import shown_in
from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import read_planned_runs, read_points
from epochmeter.run.plan import Plan
from epochmeter.shared.protocol import WindowOpening
from epochmeter.tracking.kubeflow import TrainerStatus, find_endpoint, status_thread

MAX_FRACTION = 0.99
"""Largest fraction that is done before the end of a run, which saves and analyzes after its last epoch."""


class JobStatus:
    """Follows a run, and sends its status.

    Of a sweep, the fraction is that of all its runs, and the rest is not known.
    """

    def __init__(self, send: Callable[[TrainerStatus], object], *, runs_done: int = 0, runs: int | None = 1) -> None:
        """`runs_done` of the `runs` of a sweep have ended; None: their number is not known."""
        self._send, self._runs_done, self._runs = send, runs_done, runs
        self._fraction: float | None = None
        self._metrics: dict[str, float | None] = {}
        self._ends_s: float | None = None  # forecast, by the monotonic clock

    def forecast(self, remaining_s: float | None) -> None:
        """Note the forecast of the time from now to the end of the last epoch; None if there is none."""
        self._ends_s = None if remaining_s is None or self._runs != 1 else time.monotonic() + remaining_s

    def progress(self, opened: WindowOpening, steps: int) -> None:
        """Send what is done in an open epoch, after so many of its steps."""
        if opened.window == "epoch" and opened.epochs and opened.steps:
            self._set_fraction((opened.epoch + min(1.0, steps / opened.steps)) / opened.epochs)
            self._report()

    def add(self, opened: WindowOpening, line: Mapping[str, Any]) -> None:
        """Send the metrics of an epoch or its evaluation that has ended."""
        if opened.window not in ("epoch", "val"):
            return
        if opened.epochs:
            self._set_fraction((opened.epoch + 1) / opened.epochs)
        shown = {name: line["metrics"][name] for name in shown_in("report") if name in line["metrics"]}
        earlier = self._metrics if opened.window == "val" else {}
        self._metrics = {"epoch": opened.epoch + 1, **earlier, **shown}
        self._report()

    def end(self, result: RunResult) -> None:
        """Send the end of a run: its means, if it was completed."""
        if result.state != "completed":
            return
        names = shown_in("report", "steady")
        means = {name: result.metrics[name] for name in names if name in result.metrics}
        self._metrics = {**self._metrics, **means}
        self._fraction = None if self._runs is None else (self._runs_done + 1) / self._runs
        self._ends_s = time.monotonic() if self._runs == 1 else None
        self._report()

    def _set_fraction(self, of_run: float) -> None:
        if self._runs is not None:
            self._fraction = (self._runs_done + min(of_run, MAX_FRACTION)) / self._runs

    def _report(self) -> None:
        remaining_s = None if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())
        self._send(TrainerStatus(self._fraction, remaining_s, self._metrics))


NOT_SENT = JobStatus(lambda status: None)
"""The status of a run that no job scheduler asks for."""


@contextmanager
def reported_status(plan: Plan, result: RunResult, earlier: Sequence[RunResult]) -> Iterator[JobStatus]:
    """Yield the status of a run, which is sent to the job scheduler that asks for it; its end is sent at the end."""
    endpoint = find_endpoint(os.environ) if plan.job.tracking.kubeflow and plan.script_node.is_first else None
    if endpoint is None:
        yield NOT_SENT
        return
    thread = status_thread(endpoint)
    runs: int | None = 1
    if plan.request.of_sweep:
        sweep = plan.request.folder.parent
        runs = len(read_points(sweep).overrides) or read_planned_runs(sweep) or None
    status = JobStatus(thread.report, runs_done=len(earlier), runs=runs)
    try:
        yield status
    finally:
        status.end(result)
        thread.flush()
