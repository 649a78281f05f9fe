"""Read the state of one run from its folder, again and again, while another process writes to it."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import statistics
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from epochmeter.config.schema import SCRIPT
from epochmeter.console.tables import bottleneck_line, epoch_title, mean_title
from epochmeter.report.runs.load import typed_keys
from epochmeter.results.bottleneck import run_bottleneck
from epochmeter.results.footprint import JOULES_PER_KWH
from epochmeter.results.reuse import READ_ERRORS, record_of
from epochmeter.results.run_result import no_energy_reason
from epochmeter.results.run_status import COMPLETED, FAILED, KILLED, recorded_status, status_of
from epochmeter.results.summary import steady_metrics, total_metrics, training_windows, variance_warning
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import GAUGES, MAX_PROGRESS_BYTES, POWER, PROGRESS, is_steady, since_resumed
from epochmeter.shared.units import NANOSECOND
from epochmeter.watch.appended import AppendedFile, RecentSamples
from epochmeter.watch.snapshot import ACTIVE, Progress, RunView, Split, State

Windows = Sequence[Mapping[str, Any]]
ENDED: Mapping[str, State] = {COMPLETED: "completed", FAILED: "failed", KILLED: "interrupted"}
"""State of the record -> state of the view."""
MIN_STALL_S, STALL_FACTOR = 30.0, 3.0
"""A run is stalled if its record has not grown for these seconds, and for this multiple of `_longest_silence_s`."""
MIN_FREE_BYTES = 2**14
"""Free space below which a disk is full: less than the end of a run needs."""
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
        self._open_epoch = AppendedFile(self._folder / PROGRESS, MAX_PROGRESS_BYTES)
        self._current: Mapping[str, Any] = {}
        """The last line about the current epoch."""
        self._windows: list[Mapping[str, Any]] = []
        self._damaged = 0
        self._metrics: tuple[int, Windows, dict[str, float]] = (-1, (), {})
        """Number of windows, the steady epochs among them, and their metrics."""
        self._power, self._gauges = (RecentSamples(self._folder / name) for name in (POWER, GAUGES))

    def read(self, now_s: float) -> RunView:
        """Return the state of the run; `READ_ERRORS` if its job.json or summary.json is damaged."""
        record = self.record
        status = status_of(record)
        status = recorded_status(record) or status  # it may have ended since its process was found to be gone
        description, summary = read_json(self._folder / "job.json"), record.summary() or {}
        job, run = description["job"], description["run"]
        self._read_windows()
        epochs = [window for window in self._windows if window["window"] == "epoch"]
        self._read_current(len(epochs))
        silent_s = max(0.0, now_s - max(map(modified_s, self._folder.iterdir()), default=now_s))
        state, reason = self._state(status, run, summary, silent_s)
        end_s = now_s if state in ACTIVE else recorded_end_s(summary) or now_s - silent_s
        to_unix_s = partial(_unix_s, since_resumed(run, math.inf)["clock"])
        steady = [epoch for number, epoch in enumerate(epochs) if number >= job["warmup_epochs"] and is_steady(epoch)]
        shown, metrics = (steady, summary["metrics"]) if summary.get("metrics") else self._metrics_so_far(steady, state)
        progress = self._progress(job, run, epochs, total_energy_j(metrics), state in ACTIVE, end_s, silent_s)
        if state == "training" and len(epochs) == progress.epochs and not progress.remaining_s:
            reason = "all epochs are trained; the run ends"
        splits = self._splits(epochs, shown, metrics, job["warmup_epochs"])
        verdict, bottleneck = _bottleneck(splits, job["dataset"].get("layout") not in ("files", SCRIPT))
        power, gauges = self._power.read(to_unix_s), self._gauges.read(to_unix_s)
        footprint = job.get("footprint") or {}
        price = None if no_energy_reason(run) else footprint.get("price")
        return RunView(
            folder=str(self._folder),
            number=run["number"],
            name=run["name"],
            overrides=typed_keys(run["overrides"]),
            state=state,
            reason=reason,
            host=run["host"],
            progress=progress,
            splits=splits,
            metrics=metrics,
            verdict=verdict,
            bottleneck=bottleneck,
            energy_source=run["energy"]["source"],
            cost_per_j=price * footprint["pue"] / JOULES_PER_KWH if price else None,
            currency=footprint.get("currency"),
            power=power,
            gauges=gauges,
            missing=self._missing(run, state, bool(power), bool(gauges)),
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

    def _read_current(self, epoch: int) -> None:
        """Read the state of the current epoch; drop the state of an earlier epoch."""
        for line in self._open_epoch.new_lines()[0][-1:]:
            with suppress(*READ_ERRORS):
                current = json.loads(line)
                _ = current["epoch_steps"] + current["steps"], math.fsum(current["parts"].values())
                self._current = current
        if self._current.get("epoch") != epoch:
            self._current = {}

    def _state(
        self, status: str, run: Mapping[str, Any], summary: Mapping[str, Any], silent_s: float
    ) -> tuple[State, str]:
        if status in ENDED:
            message = (summary.get("failure") or {}).get("message") or ""
            gone = f"no new record for {format_span(silent_s)}; the process {run['pid']} is gone{self._disk_note()}"
            return ENDED[status], message.partition("\n")[0] or ("" if status == COMPLETED else gone)
        if silent_s > max(MIN_STALL_S, STALL_FACTOR * self._longest_silence_s()):
            is_here = run["host"] == platform.node()
            where = f"process is alive ({run['pid']})" if is_here else f"host is {run['host']}"
            return "stalled", f"no new record for {format_span(silent_s)}; its {where}{self._disk_note()}"
        return ("training" if self._windows or self._current or run.get("model") else "preparing"), ""

    def _longest_silence_s(self) -> float:
        """Return the time after which the record should grow: within an epoch the mean step, else the longest epoch."""
        so_far_s = math.fsum(self._current.get("parts", {}).values())
        if so_far_s and self._current["steps"] < self._current["epoch_steps"]:
            return so_far_s / float(self._current["steps"])
        durations_ns = [window["closed_ns"] - window["opened_ns"] for window in self._windows]
        return max(durations_ns, default=math.inf) * NANOSECOND

    def _disk_note(self) -> str:
        """Return a note if the disk of the run folder is full, so that no end could be recorded."""
        with suppress(OSError):
            if shutil.disk_usage(self._folder).free < MIN_FREE_BYTES:
                return "; the disk of the run folder is full"
        return ""

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
        epochs: Windows,
        energy_j: float | None,
        is_active: bool,
        until_s: float,
        silent_s: float,
    ) -> Progress:
        """Return the progress until now, or until the end of the run."""
        total, recorded = job.get("epochs"), len(epochs)
        trained, epoch_s = self._trained(epochs, job, run, until_s) if is_active else (float(recorded), 0.0)
        estimates = {}
        if total and trained is not None:
            rest = max(0.0, total - trained)
            estimates = {"fraction": 1 - rest / total}
            if is_active and epoch_s:
                estimates["remaining_s"] = rest * epoch_s
            if is_active and recorded and energy_j is not None:
                estimates["remaining_j"] = rest * energy_j / recorded
        return Progress(
            epoch=recorded + (is_active and (total is None or recorded < total)),
            recorded=recorded,
            epochs=total,
            steps=int(sum(epoch["metrics"].get("epoch/steps", 0) for epoch in epochs)),
            elapsed_s=max(0.0, until_s - run["clock"]["wall_s"]),
            silent_s=silent_s if is_active else 0.0,
            is_maximum=job.get("target_accuracy") is not None or job.get("target_loss") is not None,
            **estimates,
        )

    def _trained(
        self, epochs: Windows, job: Mapping[str, Any], run: Mapping[str, Any], now_s: float
    ) -> tuple[float | None, float]:
        """Return the trained epochs, with a fraction of the current one, and the time per epoch in s; None, 0: unknown.

        The time is the median from the start of an epoch to the next. In the first epoch, it follows from its steps.
        """
        steps, epoch_steps = self._current.get("steps"), self._current.get("epoch_steps")
        if not epochs and steps and epoch_steps:
            return steps / epoch_steps, math.fsum(self._current["parts"].values()) * epoch_steps / steps
        start = since_resumed(run, math.inf)
        epoch_s = _epoch_s([window for window in self._windows if window["epoch"] >= start.get("epoch", 0)])
        if not epoch_s:
            return None, 0.0
        in_epoch_s = now_s - _unix_s(start["clock"], epochs[-1]["opened_ns"])
        is_evaluating = job.get("evaluate") and self._windows[-1] is epochs[-1]
        first = len(epochs) - 1 if is_evaluating else len(epochs)
        return min(first + 1, max(first, len(epochs) - 1 + in_epoch_s / epoch_s)), epoch_s

    def _splits(self, epochs: Windows, steady: Windows, metrics: Mapping[str, float], warmup: int) -> dict[str, Split]:
        splits = {}
        if self._current.get("steps"):
            parts = self._current["parts"]
            times = {"e2e_s": math.fsum(parts.values()), **parts} if parts else {}
            splits["current"] = Split(f"{len(epochs) + 1} so far", {"steps": self._current["steps"], **times})
        if epochs:
            splits["last"] = Split(epoch_title(epochs[-1], warmup), _short(epochs[-1]["metrics"], "epoch/"))
        if steady and (mean := _short(metrics, "steady/")):
            splits["mean"] = Split(mean_title([epoch["epoch"] for epoch in steady]), mean)
        return splits

    def _missing(self, run: Mapping[str, Any], state: State, has_power: bool, has_gauges: bool) -> dict[str, str]:
        """Return why energy, power and gauges are not recorded; power has a reason only if energy is recorded."""
        later = "no samples are recorded yet" if state in ACTIVE and not self._windows else ""
        reasons = {}
        if no_energy := no_energy_reason(run):
            reasons["energy"] = no_energy
        elif not has_power:
            reasons["power"] = later or run["energy"]["reason"] or "the meter reads counters only"
        if not has_gauges:
            reasons["gauges"] = later or "the record has no gauges.csv"
        return reasons

    def _warnings(self, run: Mapping[str, Any], summary: Mapping[str, Any], metrics: Mapping[str, float]) -> list[str]:
        """Return flags and notes. Of several notes that differ only in their numbers, return the newest."""
        notes = summary.get("notes") or [note for window in self._windows for note in window.get("notes", [])]
        newest = {re.sub(r"\d+", "#", note): note for note in [*notes, *variance_warning(metrics)]}
        damaged = [f"{self._damaged} of the lines of epochs.jsonl cannot be read"] if self._damaged else []
        return [*damaged, *run["flags"].values(), *reversed(newest.values())]


def _bottleneck(splits: Mapping[str, Split], in_memory: bool) -> tuple[str, dict[str, float]]:
    """Return the bottleneck of the mean epoch, else of the last or current one: a sentence, and part -> fraction."""
    for kind, split in [*splits.items()][-1:]:
        metrics = {f"steady/{name}": value for name, value in split.metrics.items()}
        if largest := run_bottleneck(metrics, in_memory):
            epoch = "" if kind == "mean" else f"Epoch {split.title}. "
            return epoch + bottleneck_line(metrics, in_memory), {
                part: largest.fractions[part] for part in largest.parts
            }
    return "", {}


def _short(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return the metrics with a prefix by their names without it."""
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


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
