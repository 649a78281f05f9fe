"""Read the state of one run from its folder, again and again, while another process writes to it."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from epochmeter.config.schema import SCRIPT
from epochmeter.console.tables import bottleneck_line
from epochmeter.report.runs.load import typed_keys
from epochmeter.results.footprint import JOULES_PER_KWH
from epochmeter.results.reuse import READ_ERRORS, record_of
from epochmeter.results.run_result import no_energy_reason
from epochmeter.results.run_status import COMPLETED, FAILED, KILLED, recorded_status, status_of
from epochmeter.results.summary import steady_metrics, total_metrics, training_windows, variance_warning
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import is_steady, since_resumed
from epochmeter.shared.units import NANOSECOND
from epochmeter.watch.appended import AppendedFile, RecentSamples
from epochmeter.watch.snapshot import ACTIVE, LastEpoch, Progress, RunView, State

Windows = Sequence[Mapping[str, Any]]
ENDED: Mapping[str, State] = {COMPLETED: "completed", FAILED: "failed", KILLED: "interrupted"}
"""State of the record -> state of the view."""
MIN_STALL_S, STALL_FACTOR = 30.0, 3.0
"""A run stalls if its record does not grow for these seconds, and for this multiple of its longest epoch."""
MAX_LAG = 0.01
"""Fraction of the windows of a run that its metrics may lack, so that a run of thousands of epochs costs little."""


class RunWatcher:
    """Reads one run.

    Args:
        folder: Its run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.record = record_of(folder)
        self._folder = self.record.folder
        self._lines = AppendedFile(self._folder / "epochs.jsonl")
        self._windows: list[Mapping[str, Any]] = []
        self._damaged = 0
        self._metrics: tuple[int, Windows, dict[str, float]] = (-1, (), {})
        """Number of windows, the steady epochs among them, and their metrics."""
        self._power, self._gauges = (RecentSamples(self._folder / name) for name in ("power.csv", "gauges.csv"))

    def read(self, now_s: float) -> RunView:
        """Return the state of the run; `READ_ERRORS` if its job.json or summary.json is damaged."""
        record = self.record
        status = status_of(record)
        status = recorded_status(record) or status  # it may have ended since its process was found to be gone
        description, summary = read_json(self._folder / "job.json"), record.summary() or {}
        job, run = description["job"], description["run"]
        self._read_windows()
        silent_s = max(0.0, now_s - max(map(modified_s, self._folder.iterdir()), default=now_s))
        state, reason = self._state(status, run, summary, silent_s)
        end_s = now_s if state in ACTIVE else recorded_end_s(summary) or now_s - silent_s
        to_unix_s = partial(_unix_s, since_resumed(run, math.inf)["clock"])
        epochs = [window for window in self._windows if window["window"] == "epoch"]
        steady = [epoch for number, epoch in enumerate(epochs) if number >= job["warmup_epochs"] and is_steady(epoch)]
        shown, metrics = (steady, summary["metrics"]) if summary.get("metrics") else self._metrics_so_far(steady, state)
        power, gauges = self._power.read(to_unix_s), self._gauges.read(to_unix_s)
        energy, footprint = run["energy"], job.get("footprint") or {}
        price, no_energy = footprint.get("price"), no_energy_reason(run)
        return RunView(
            folder=str(self._folder),
            number=run["number"],
            name=run["name"],
            overrides=typed_keys(run["overrides"]),
            state=state,
            reason=reason,
            host=run["host"],
            progress=self._progress(job, run, state, metrics, end_s, silent_s),
            last_epoch=_last_epoch(epochs[-1], epochs[-1] in steady) if epochs else None,
            metrics=metrics,
            steady_epochs=[epoch["epoch"] + 1 for epoch in shown],
            verdict=bottleneck_line(metrics, job["dataset"].get("layout") not in ("files", SCRIPT)),
            energy_source=energy["source"],
            no_energy=no_energy,
            cost_per_j=None if no_energy or not price else price * footprint["pue"] / JOULES_PER_KWH,
            currency=footprint.get("currency"),
            power=power,
            no_power="" if power else self._no_samples(energy["reason"] or "its meter reads counters only", state),
            gauges=gauges,
            no_gauges="" if gauges else self._no_samples("the record has no gauges.csv", state),
            throttling=self._gauges.throttling,
            warnings=self._warnings(run, summary, metrics),
            rehearsal=run["rehearsal"],
            failure=(summary.get("failure") or {}).get("message") or "",
        )

    def _read_windows(self) -> None:
        lines, is_new = self._lines.new_lines()
        if is_new:
            self._windows, self._damaged, self._metrics = [], 0, (-1, (), {})
        for line in lines:
            try:
                window = json.loads(line)
                _ = window["window"], window["epoch"] + 0, window["metrics"].items()
                self._windows.append(window)
            except READ_ERRORS:
                self._damaged += 1

    def _state(
        self, status: str, run: Mapping[str, Any], summary: Mapping[str, Any], silent_s: float
    ) -> tuple[State, str]:
        if status in ENDED:
            message = (summary.get("failure") or {}).get("message") or ""
            gone = f"no new record for {format_span(silent_s)}; the process {run['pid']} is gone"
            return ENDED[status], message.partition("\n")[0] or ("" if status == COMPLETED else gone)
        durations_s = [(window["closed_ns"] - window["opened_ns"]) * NANOSECOND for window in self._windows]
        if durations_s and silent_s > max(MIN_STALL_S, STALL_FACTOR * max(durations_s)):
            is_here = run["host"] == platform.node()
            where = f"process is alive ({run['pid']})" if is_here else f"host is {run['host']}"
            return "stalled", f"no new record for {format_span(silent_s)}; its {where}"
        return ("training" if self._windows or run.get("model") else "preparing"), ""

    def _metrics_so_far(self, steady: Windows, state: State) -> tuple[Windows, dict[str, float]]:
        """Return steady epochs, and metrics as the summary will have them, without percentiles of steps."""
        lag = MAX_LAG * len(self._windows) if state in ACTIVE else 0
        if not 0 <= len(self._windows) - self._metrics[0] <= lag:
            windows = training_windows(self._windows)
            totals = total_metrics(windows) if windows else {}
            own = steady_metrics(steady, array("f"))
            self._metrics = len(self._windows), steady, {**own, **{f"total/{name}": totals[name] for name in totals}}
        return self._metrics[1:]

    def _progress(
        self,
        job: Mapping[str, Any],
        run: Mapping[str, Any],
        state: State,
        metrics: Mapping[str, float],
        until_s: float,
        silent_s: float,
    ) -> Progress:
        """Return the progress until now, or until the end of the run."""
        epochs, total = [window for window in self._windows if window["window"] == "epoch"], job.get("epochs")
        recorded, is_active = len(epochs), state in ACTIVE
        progress = Progress(
            epoch=recorded + (is_active and (total is None or recorded < total)),
            recorded=recorded,
            epochs=total,
            steps=int(sum(epoch["metrics"].get("epoch/steps", 0) for epoch in epochs)),
            elapsed_s=max(0.0, until_s - run["clock"]["wall_s"]),
            silent_s=silent_s if is_active else 0.0,
            is_maximum=job.get("target_accuracy") is not None or job.get("target_loss") is not None,
        )
        if not (epochs and total):
            return progress
        if not is_active:
            return replace(progress, fraction=min(1.0, recorded / total))
        start = since_resumed(run, math.inf)
        epoch_s = _epoch_s([window for window in self._windows if window["epoch"] >= start.get("epoch", 0)])
        if not epoch_s:
            return progress
        in_epoch_s = until_s - _unix_s(start["clock"], epochs[-1]["opened_ns"])
        is_evaluating = job.get("evaluate") and self._windows[-1] is epochs[-1]
        first = recorded - 1 if is_evaluating else recorded
        trained = min(total, first + 1, max(first, recorded - 1 + in_epoch_s / epoch_s))
        energy_j = total_energy_j(metrics)
        return replace(
            progress,
            epoch_s=epoch_s,
            fraction=trained / total,
            remaining_s=(total - trained) * epoch_s,
            remaining_j=None if energy_j is None else (total - trained) * energy_j / recorded,
        )

    def _warnings(self, run: Mapping[str, Any], summary: Mapping[str, Any], metrics: Mapping[str, float]) -> list[str]:
        """Return flags and notes, of notes that differ in their numbers the newest."""
        notes = summary.get("notes") or [note for window in self._windows for note in window.get("notes", [])]
        newest = {re.sub(r"\d+", "#", note): note for note in [*notes, *variance_warning(metrics)]}
        damaged = [f"{self._damaged} of the lines of epochs.jsonl cannot be read"] if self._damaged else []
        return [*damaged, *run["flags"].values(), *reversed(newest.values())]

    def _no_samples(self, why: str, state: State) -> str:
        return "samples are recorded at the end of each epoch" if state in ACTIVE and not self._windows else why


def _last_epoch(window: Mapping[str, Any], is_steady: bool) -> LastEpoch:
    metrics = {name.removeprefix("epoch/"): value for name, value in window["metrics"].items()}
    return LastEpoch(window["epoch"] + 1, is_steady, metrics)


def _epoch_s(windows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the median time between the starts of epochs; of a single epoch, the time of its windows."""
    opened_ns: list[int] = [window["opened_ns"] for window in windows if window["window"] == "epoch"]
    if not opened_ns:
        return None
    cycles_ns = [later - earlier for earlier, later in pairwise(opened_ns)] or [windows[-1]["closed_ns"] - opened_ns[0]]
    return float(statistics.median(cycles_ns[1:] or cycles_ns)) * NANOSECOND


def _unix_s(clock: Mapping[str, Any], at_ns: int) -> float:
    """Return the Unix time of a moment of the run's monotonic clock."""
    return float(clock["wall_s"] + (at_ns - clock["monotonic_ns"]) * NANOSECOND)


def recorded_end_s(summary: Mapping[str, Any]) -> float | None:
    """Return the Unix time of a run's end; None if it is not recorded."""
    ended: str | None = summary.get("ended")
    return datetime.fromisoformat(ended).timestamp() if ended else None


def format_span(seconds: float) -> str:
    """Return a duration for people."""
    return f"{seconds:.0f} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


def modified_s(path: Path | os.DirEntry[str]) -> float:
    """Return the Unix time of the last change; 0 if the file is gone."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def total_energy_j(metrics: Mapping[str, float]) -> float | None:
    """Return the energy of a run, or else its estimate."""
    return metrics.get("total/energy_j", metrics.get("total/estimated_energy_j"))
