"""Read the state of a run or a sweep from its folder, again and again, while other processes write to it.

Files are only read, never locked or kept open. Of files that grow, only the part appended since the last refresh is
read, and ended runs are read once.
"""

import os
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from epochmeter.cluster.submissions import Submission, SubmissionLog
from epochmeter.report.render import render_macro
from epochmeter.report.runs.configuration import group_repeats, no_energy
from epochmeter.report.runs.costs import costs, pareto_front
from epochmeter.report.runs.filter import select_any
from epochmeter.report.runs.folders import has_runs
from epochmeter.report.runs.load import load_run
from epochmeter.report.runs.run import Run, Sweep
from epochmeter.results.quantities import span
from epochmeter.results.reuse import is_run
from epochmeter.results.run_folder import READ_ERRORS, RunFolder, error_text
from epochmeter.results.run_info import typed_keys
from epochmeter.results.run_status import COMPLETED
from epochmeter.results.sweep_files import POINTS_FILE, is_remote, read_planned_runs, read_points
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import COMPLETED_FILE, REFERENCE_FILE, SUMMARY_FILE
from epochmeter.watch.run_watcher import (
    ENDED,
    RunWatcher,
    first_line,
    last_change_s,
    recorded_end_s,
)
from epochmeter.watch.snapshot import ACTIVE, BY_INTEREST, ROW_METRICS, FrontPoint, RunView, Snapshot, State, SweepRow

MAX_BREAK_S = 120.0  # a sweep of this machine stalls if no run is active for longer
ENDINGS = (SUMMARY_FILE, COMPLETED_FILE, REFERENCE_FILE)  # files that are written at the end of a run


class Watcher:
    """Reads the folder of a run or a sweep; InputError if it is neither."""

    def __init__(self, folder: Path) -> None:
        if not (has_runs(folder) or (folder / POINTS_FILE).exists()):
            what = "has no runs" if folder.is_dir() else "is not a folder"
            hint = "give the folder of a run or a sweep, such as multirun/2026-11-20_12-00-00-1a2b3c4d"
            raise input_error(f"`{folder}` {what}", f"{hint}, or none for the newest")
        self.folder = folder.absolute()
        self._watchers: dict[Path, RunWatcher] = {}
        self._submissions = SubmissionLog(self.folder)
        self._ended: dict[int, tuple[float, Run, SweepRow]] = {}
        self._compared: list[Run] = []
        self._front: list[FrontPoint] = []
        self._no_front = "no run is completed"

    def read(self) -> Snapshot:
        """Return the state now; raises `READ_ERRORS` if the record of a single run is damaged."""
        now_s = time.time()
        if is_run(self.folder):
            return _single_snapshot(self._view(self.folder, now_s), now_s)
        points = read_points(self.folder).overrides if (self.folder / POINTS_FILE).exists() else ()
        with os.scandir(self.folder) as entries:  # of a folder: when files were created, replaced or removed
            changed_s = {int(path.name): path.stat().st_mtime for path in entries if path.name.isdecimal()}
        numbers = sorted({*changed_s, *range(len(points) or read_planned_runs(self.folder))})
        if numbers == [0] and is_run(self.folder / "0"):
            return _single_snapshot(self._view(self.folder / "0", now_s), now_s)
        submissions: Mapping[int, Submission] = {}
        with suppress(*READ_ERRORS):
            submissions = self._submissions.entries()
        rows, views = [], []
        for number in numbers:
            overrides = points[number] if number < len(points) else ()
            submission = submissions.get(number, Submission())
            row, view = self._row(number, overrides, submission, changed_s.get(number), now_s)
            rows.append(row)
            views += [view] if view else []
        return self._sweep_snapshot(_with_varied_keys(rows), views, now_s, is_remote=is_remote(self.folder))

    def _view(self, folder: Path, now_s: float) -> RunView:
        if folder not in self._watchers:
            self._watchers[folder] = RunWatcher(folder)
        return self._watchers[folder].read(now_s)

    def _row(
        self, number: int, overrides: Sequence[str], submission: Submission, changed_s: float | None, now_s: float
    ) -> tuple[SweepRow, RunView | None]:
        """Return the row of a run, whose folder changed at a Unix time, and its view unless it has ended."""
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
        keys = row.overrides or view.overrides  # the overrides of a cluster's run include the launcher's
        row = replace(row, state=view.state, reason=view.reason, overrides=keys, host=view.host,
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
        planned = sum(row.state == "planned" for row in rows)
        durations_s = [row.duration_s for row in rows if row.state == "completed" and not row.is_reused]
        active_s = [(view.progress.elapsed_s, view.progress.remaining_s) for view in active]
        remaining_s = _remaining(durations_s, active_s, planned)
        energies_j = [run.metrics.get("total/energy_j") for run in ended if run.state == COMPLETED]
        active_j = [(view.metrics.get("total/energy_j"), view.progress.remaining_j) for view in active]
        done = len(rows) - planned - sum(1 - (view.progress.fraction or 0.0) for view in active)
        state, reason = self._state({row.state for row in rows}, planned, now_s, is_remote)
        return Snapshot(
            folder=str(self.folder),
            name=self.folder.name,
            at_s=now_s,
            is_sweep=True,
            state=state,
            reason=reason,
            remaining_s=None if remaining_s is None else remaining_s / max(1, len(active)),
            remaining_j=_remaining(energies_j, active_j, planned),
            active=active,
            fraction=done / len(rows) if rows else None,
            counts=Counter(row.state for row in rows),
            runs=[replace(row, is_on_front=True) if row.number in on_front else row for row in rows],
            front=self._front,
            no_front=self._no_front,
            rehearsal=[*dict.fromkeys(setting for run in ended for setting in run.rehearsal)],
        )

    def _state(self, states: Set[State], planned: int, now_s: float, is_remote: bool) -> tuple[State, str]:
        if states & {*ACTIVE} or not planned:
            return next(state for state in BY_INTEREST if state in states), ""
        if is_remote:
            return "preparing", f"{planned} planned runs wait for a node, or for the command that submits them"
        if "killed" in states:  # one process measures all runs
            return "killed", "the process of the sweep is gone; run the command again to resume"
        idle_s = now_s - last_change_s(self.folder, now_s)
        if idle_s < MAX_BREAK_S:
            return "preparing", "no run trains at this moment"
        return "stalled", f"no run for {span(idle_s)}; run the command again to resume"


def _single_snapshot(view: RunView, now_s: float) -> Snapshot:
    remaining = view.progress.remaining_s, view.progress.remaining_j
    return Snapshot(view.folder, view.name, now_s, view.state, view.reason, *remaining, active=[view])


def _ended_row(row: SweepRow, folder: Path) -> tuple[Run, SweepRow]:
    run = load_run(folder)
    ended_s = recorded_end_s(RunFolder(run.folder or folder).summary)
    duration_s = ended_s - datetime.fromisoformat(run.started).timestamp() if ended_s and run.started else None
    row = replace(
        row,
        state=ENDED.get(run.state, "training"),  # its last file may be about to be written
        reason=first_line(run.failure),
        overrides=row.overrides or run.keys,
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
        return [], "no run is completed"
    ranked = costs(configurations)
    best = pareto_front(ranked)
    points = [
        FrontPoint(cost.title, cost.configuration.numbers, cost.time_s, cost.energy_j)
        for cost in sorted(ranked, key=lambda cost: cost.time_s)
        if cost.configuration in best and cost.energy_j is not None
    ]
    if points:
        return points, ""
    missing = no_energy(configurations)
    return [], render_macro("macros.md.j2", "why_not", missing, is_plain=True).strip() if missing else "no energy"


def _with_varied_keys(rows: Sequence[SweepRow]) -> list[SweepRow]:
    keys = dict.fromkeys(key for row in rows for key in row.overrides)
    composed = [row.overrides for row in rows if row.overrides]  # not planned runs of a search
    varied = {key: None for key in keys if len({overrides.get(key) for overrides in composed}) > 1}
    return [
        row
        if row.overrides.keys() <= varied.keys()
        else replace(row, overrides={key: value for key, value in row.overrides.items() if key in varied})
        for row in rows
    ]


def _with_means(row: SweepRow, metrics: Mapping[str, float]) -> SweepRow:
    means = {name: metrics.get(metric) for name, metric in ROW_METRICS.items()}
    return replace(
        row,
        epoch_s=means["epoch_s"],
        energy_j=means["energy_j"],
        estimated_energy_j=means["estimated_energy_j"],
        stall_fraction=means["stall_fraction"],
    )


def _remaining(
    ended: Sequence[float | None], active: Sequence[tuple[float | None, float | None]], planned: int
) -> float | None:
    """Return the estimated rest of the time or energy of all runs; None if it is not known.

    The median of completed runs is typical; without any, that of active runs, which have a part so far and a rest.
    """
    samples = ended or [None if so_far is None or rest is None else so_far + rest for so_far, rest in active]
    numbers = [value for value in samples if value is not None]
    typical = statistics.median(numbers) if numbers else None
    rests = [typical] * planned
    for so_far, rest in active:
        rests.append(rest if rest is not None or typical is None else max(0.0, typical - (so_far or 0.0)))
    return sum(rest or 0.0 for rest in rests) if rests and None not in rests else None
