"""Read the state of a run or a sweep from its folder, again and again, while other processes write to it.

Files are only read, never locked or kept open. Of files that grow, only the part appended since the last look is read,
and ended runs are read once.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from epochmeter.cluster.submissions import Submission, SubmissionLog
from epochmeter.config.errors import input_error
from epochmeter.config.schema import SCRIPT
from epochmeter.console.tables import bottleneck_line
from epochmeter.report.runs.configuration import group_repeats, no_energy
from epochmeter.report.runs.costs import costs, pareto_front
from epochmeter.report.runs.filter import AN_ESTIMATE, select_any
from epochmeter.report.runs.load import error_text, has_runs, load_run, typed_keys
from epochmeter.report.runs.run import Run, Sweep
from epochmeter.results.footprint import JOULES_PER_KWH
from epochmeter.results.reuse import READ_ERRORS, is_run, record_of
from epochmeter.results.run_result import no_energy_reason
from epochmeter.results.run_status import COMPLETED, FAILED, KILLED, recorded_status, status_of
from epochmeter.results.summary import steady_metrics, total_metrics, training_windows, variance_warning
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import is_steady, since_resumed
from epochmeter.shared.units import NANOSECOND
from epochmeter.sweep.sweep_folder import POINTS_FILE, read_points
from epochmeter.watch.appended import AppendedFile, RecentSamples
from epochmeter.watch.snapshot import FrontPoint, LastEpoch, Progress, RunView, Snapshot, State, SweepRow

Windows = Sequence[Mapping[str, Any]]
ACTIVE: tuple[State, ...] = ("training", "preparing", "stalled")
NOT_ACTIVE: tuple[State, ...] = ("failed", "unreadable", "interrupted", "completed")
"""The state of a sweep is the first one of these that a run of it has."""
MIN_STALL_S, STALL_FACTOR = 30.0, 3.0
"""A run stalls if its record does not grow for these seconds, and for this multiple of its longest epoch."""
MAX_LAG = 0.01
"""Fraction of the windows of a run that its metrics may lack, so that a run of thousands of epochs costs little."""
MAX_BREAK_S = 120.0
"""A sweep of this machine stalls if no run is active for longer, in seconds."""
ENDED: Mapping[str, State] = {COMPLETED: "completed", FAILED: "failed", KILLED: "interrupted"}
"""State of the record -> state of the view."""
ENDINGS = ("summary.json", "completed.json", "reused.json")
"""Files that are written at the end of a run."""


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
        silent_s = max(0.0, now_s - max(map(_modified, self._folder.iterdir()), default=now_s))
        state, reason = self._state(status, run, summary, silent_s)
        end_s = now_s if state in ACTIVE else _end_s(summary) or now_s - silent_s
        to_unix_s = partial(_unix_s, since_resumed(run, math.inf)["clock"])
        epochs = [window for window in self._windows if window["window"] == "epoch"]
        steady = [epoch for number, epoch in enumerate(epochs) if number >= job["warmup_epochs"] and is_steady(epoch)]
        shown, metrics = (steady, summary["metrics"]) if summary.get("metrics") else self._metrics_so_far(steady, state)
        power, gauges = self._power.read(to_unix_s), self._gauges.read(to_unix_s)
        energy, footprint = run["energy"], job.get("footprint") or {}
        price = footprint.get("price")
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
            no_energy=no_energy_reason(run),
            cost_per_j=None if no_energy_reason(run) or not price else price * footprint["pue"] / JOULES_PER_KWH,
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
            gone = f"no new record for {_span(silent_s)}; the process {run['pid']} is gone"
            return ENDED[status], message.partition("\n")[0] or ("" if status == COMPLETED else gone)
        durations_s = [(window["closed_ns"] - window["opened_ns"]) * NANOSECOND for window in self._windows]
        if durations_s and silent_s > max(MIN_STALL_S, STALL_FACTOR * max(durations_s)):
            is_here = run["host"] == platform.node()
            where = f"process is alive ({run['pid']})" if is_here else f"host is {run['host']}"
            return "stalled", f"no new record for {_span(silent_s)}; its {where}"
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
        energy_j = _total_energy_j(metrics)
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


class Watcher:
    """Reads a run or a sweep.

    Args:
        folder: Its folder.

    Raises:
        InputError: It is neither a run nor a sweep.
    """

    def __init__(self, folder: Path) -> None:
        if not (has_runs(folder) or (folder / POINTS_FILE).exists()):
            what = "has no runs" if folder.is_dir() else "is not a folder"
            hint = "give the folder of a run or a sweep, such as multirun/2026-11-20_12-00-00-1a2b3c4d"
            raise input_error(f"`{folder}` {what}", f"{hint}, or none for the newest")
        self.folder = folder.absolute()
        self._watchers: dict[Path, RunWatcher] = {}
        self._ended: dict[int, tuple[float, Run, SweepRow]] = {}
        self._compared: list[Run] = []
        self._front: list[FrontPoint] = []
        self._no_front = "no run is completed yet"

    def read(self) -> Snapshot:
        """Return the state now; raises `READ_ERRORS` if the record of a single run is damaged."""
        now_s = time.time()
        if is_run(self.folder):
            return _single_snapshot(self._view(self.folder, now_s), now_s)
        points = read_points(self.folder).overrides if (self.folder / POINTS_FILE).exists() else ()
        with os.scandir(self.folder) as entries:  # of a folder: when files were created, replaced or removed
            changed_s = {int(entry.name): _modified(entry) for entry in entries if entry.name.isdecimal()}
        numbers = sorted({*changed_s, *range(len(points))})
        if numbers == [0] and is_run(self.folder / "0"):
            return _single_snapshot(self._view(self.folder / "0", now_s), now_s)
        submissions = SubmissionLog(self.folder).entries()
        rows, views = [], []
        for number in numbers:
            overrides = points[number] if number < len(points) else ()
            submission = submissions.get(number, Submission())
            row, view = self._row(number, overrides, submission, changed_s.get(number), now_s)
            rows.append(row)
            views += [view] if view else []
        return self._sweep_snapshot(_with_varied_keys(rows), views, now_s, is_remote=bool(submissions))

    def _view(self, folder: Path, now_s: float) -> RunView:
        if folder not in self._watchers:
            self._watchers[folder] = RunWatcher(folder)
        return self._watchers[folder].read(now_s)

    def _row(
        self, number: int, overrides: Sequence[str], submission: Submission, changed_s: float | None, now_s: float
    ) -> tuple[SweepRow, RunView | None]:
        """Return the row of a run, and the run in detail unless its end is recorded.

        Args:
            changed_s: Unix time of the last change of its folder; None without a folder.
        """
        if number in self._ended and self._ended[number][0] == changed_s:
            return self._ended[number][2], None
        folder = self.folder / str(number)
        row = SweepRow(number, "planned", typed_keys(overrides), host=submission.node, slurm_job=submission.job)
        if changed_s is None or not is_run(folder):
            is_over = bool(submission.state) or submission.reported
            return (replace(row, state="failed", reason=f"Slurm: {submission.state}") if is_over else row), None
        try:
            if any((folder / name).exists() for name in ENDINGS):
                self._watchers.pop(folder, None)
                run, row = _ended_row(row, folder)
                if row.state != "training":
                    self._ended[number] = changed_s, run, row
                return row, None
            self._ended.pop(number, None)
            view = self._view(folder, now_s)
        except READ_ERRORS as error:
            return replace(row, state="unreadable", reason=error_text(error)), None
        row = replace(row, state=view.state, reason=view.reason, overrides=view.overrides, host=view.host,
                      progress=view.progress, duration_s=view.progress.elapsed_s)  # fmt: skip
        return _with_means(row, view.metrics), view

    def _sweep_snapshot(
        self, rows: Sequence[SweepRow], views: Sequence[RunView], now_s: float, is_remote: bool
    ) -> Snapshot:
        """Return the state of a sweep; `views` are the runs without a recorded end."""
        active = [view for view in views if view.state in ACTIVE]
        ended = [run for _, run, _ in self._ended.values()]
        if ended != self._compared:
            self._compared = ended
            self._front, self._no_front = _front(Sweep(self.folder, ended, {}))
        on_front = {number for point in self._front for number in point.numbers}
        planned = [row for row in rows if row.state == "planned"]
        durations_s = [row.duration_s for row in rows if row.state == "completed" and not row.is_reused]
        energies_j = [_total_energy_j(run.metrics) for run in ended if run.state == COMPLETED]
        # Without a completed run, the active ones are typical.
        active_s = [_sum([view.progress.elapsed_s, view.progress.remaining_s]) for view in active]
        active_j = [_sum([_total_energy_j(view.metrics), view.progress.remaining_j]) for view in active]
        typical_s, typical_j = _median(durations_s or active_s), _median(energies_j or active_j)
        rests_s, rests_j = [typical_s] * len(planned), [typical_j] * len(planned)
        for progress in (view.progress for view in active):
            rest_s = typical_s and max(0.0, typical_s - progress.elapsed_s)
            rests_s.append(rest_s if progress.remaining_s is None else progress.remaining_s)
            rests_j.append(typical_j if progress.remaining_s is None else progress.remaining_j)
        is_killed = len(active) < len(views) and not is_remote  # one process measures all runs
        state, reason = self._state({row.state for row in rows}, len(planned), now_s, is_remote, is_killed)
        remaining_s = _sum(rests_s)
        return Snapshot(
            folder=str(self.folder),
            name=self.folder.name,
            at_s=now_s,
            is_sweep=True,
            state=state,
            reason=reason,
            remaining_s=None if remaining_s is None else remaining_s / max(1, len(active)),
            remaining_j=_sum(rests_j),
            counts=Counter(row.state for row in rows),
            runs=[replace(row, is_on_front=True) if row.number in on_front else row for row in rows],
            active=active,
            front=self._front,
            no_front=self._no_front,
            rehearsal=[*dict.fromkeys(setting for run in ended for setting in run.rehearsal)],
        )

    def _state(
        self, states: Set[State], planned: int, now_s: float, is_remote: bool, is_killed: bool
    ) -> tuple[State, str]:
        if states & {*ACTIVE} or not planned:
            return next(state for state in (*ACTIVE, *NOT_ACTIVE) if state in states), ""
        if is_killed:
            return "interrupted", "the process of the sweep is gone; run the command again to resume"
        if is_remote:
            return "preparing", f"{planned} planned runs wait for a node, or for the command that submits them"
        idle_s = now_s - max(map(_modified, self.folder.iterdir()), default=now_s)
        if idle_s < MAX_BREAK_S:
            return "preparing", "no run trains at this moment"
        return "stalled", f"no run for {_span(idle_s)}; run the command again to resume"


def _single_snapshot(view: RunView, now_s: float) -> Snapshot:
    remaining = view.progress.remaining_s, view.progress.remaining_j
    return Snapshot(view.folder, view.name, now_s, view.state, view.reason, *remaining, active=[view])


def _ended_row(row: SweepRow, folder: Path) -> tuple[Run, SweepRow]:
    """Return an ended run and its row."""
    run, record = load_run(folder), record_of(folder)
    summary = record.summary() or {}
    ended_s = _end_s(summary)
    duration_s = ended_s - datetime.fromisoformat(run.started).timestamp() if ended_s and run.started else None
    row = replace(
        row,
        state=ENDED.get(status_of(record), "training"),  # its last file may be about to be written
        overrides=run.keys,
        reason=((summary.get("failure") or {}).get("message") or "").partition("\n")[0],
        host=run.host or "",
        duration_s=duration_s,
        is_reused=bool(run.reused),
    )
    return run, _with_means(row, run.metrics)


def _front(sweep: Sweep) -> tuple[list[FrontPoint], str]:
    """Return the Pareto front, the fastest first, or why there is none."""
    selection = select_any(sweep)
    configurations = group_repeats(selection.runs)
    if not configurations:
        return [], "no run is completed yet"
    ranked = costs(configurations)
    best = pareto_front(ranked)
    points = [
        FrontPoint(cost.title, cost.configuration.numbers, cost.time_s, cost.energy_j, cost.covers == AN_ESTIMATE)
        for cost in sorted(ranked, key=lambda cost: cost.time_s)
        if cost.configuration in best and cost.energy_j is not None
    ]
    return points, "" if points else no_energy(configurations) or "no energy was measured"


def _with_varied_keys(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Return the rows with those overrides only in which they differ."""
    keys = dict.fromkeys(key for row in rows for key in row.overrides)
    varied = [key for key in keys if len({row.overrides.get(key) for row in rows}) > 1]
    return [replace(row, overrides={key: row.overrides[key] for key in varied if key in row.overrides}) for row in rows]


def _with_means(row: SweepRow, metrics: Mapping[str, float]) -> SweepRow:
    """Return a row with the means of the steady epochs."""
    e2e_s, stall_s = metrics.get("steady/e2e_s"), metrics.get("steady/data_stall_s")
    stall_fraction = stall_s / e2e_s if e2e_s and stall_s is not None else None
    return replace(row, epoch_s=e2e_s, energy_j=metrics.get("steady/energy_j"), stall_fraction=stall_fraction)


def _total_energy_j(metrics: Mapping[str, float]) -> float | None:
    """Return the energy of a run, or else its estimate."""
    return metrics.get("total/energy_j", metrics.get("total/estimated_energy_j"))


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


def _end_s(summary: Mapping[str, Any]) -> float | None:
    ended: str | None = summary.get("ended")
    return datetime.fromisoformat(ended).timestamp() if ended else None


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


def _modified(path: Path | os.DirEntry[str]) -> float:
    """Return the Unix time of the last change; 0 if the file is gone."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None without any."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if a value is None, or if there is none."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers and len(numbers) == len(values) else None
