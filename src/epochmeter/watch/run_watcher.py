"""Read the state of one run from its folder, again and again, while another process writes to it."""

import math
import os
import platform
import shutil
import statistics
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from epochmeter.console.sentences import bottleneck_line
from epochmeter.console.tables import epoch_title, mean_title
from epochmeter.results import documents
from epochmeter.results.appended_file import AppendedFile
from epochmeter.results.bottleneck import Verdict, find_verdict, read_bottleneck, recorded_verdict
from epochmeter.results.energy_verdict import energy_verdicts, verdict_of_run
from epochmeter.results.footprint import JOULES_PER_KWH
from epochmeter.results.metrics import find, is_known
from epochmeter.results.quantities import span
from epochmeter.results.reuse import record_of
from epochmeter.results.run_folder import READ_ERRORS, RunFolder, parse_window
from epochmeter.results.run_info import RunInfo, typed_keys
from epochmeter.results.run_status import COMPLETED, FAILED, KILLED
from epochmeter.results.straggler_of_run import straggler_of
from epochmeter.results.stragglers import straggler_sentence
from epochmeter.results.summary import group_notes, steady_metrics, total_metrics, training_windows, variance_warning
from epochmeter.shared.problem import Problem
from epochmeter.shared.process_identity import boot_id
from epochmeter.shared.record import (
    GAUGES,
    MAX_PROGRESS_BYTES,
    POWER,
    PROGRESS,
    WINDOWS_FILE,
    Record,
    is_steady,
    training_of,
)
from epochmeter.shared.units import NANOSECOND
from epochmeter.watch.account import RunAccount
from epochmeter.watch.appended import RecentSamples
from epochmeter.watch.snapshot import ACTIVE, Progress, RunView, Split, State

ENDED: Mapping[str, State] = {COMPLETED: "completed", FAILED: "failed", KILLED: "killed"}
"""The states of a run that has ended, which the view shows as they are."""
MIN_STALL_S, STALL_FACTOR = 30.0, 3.0
"""A run is stalled if its record has not grown for these seconds, and for this multiple of `_longest_silence_s`."""
MIN_FREE_BYTES = 2**14  # free space below which a disk is full: less than the end of a run needs
RECENT_WINDOWS = 200  # number of windows from which the remaining time is estimated
METRICS_AGE_S = 0.02
"""Maximum age in s of an active run's metrics, per recorded window: long runs are summarized less often."""


class RunWatcher:
    """Reads one run. The cost of a refresh does not depend on the number of recorded epochs."""

    def __init__(self, folder: Path) -> None:
        self._folder = record_of(folder).folder
        self._lines = AppendedFile(self._folder / WINDOWS_FILE)
        self._open_epoch = AppendedFile(self._folder / PROGRESS, MAX_PROGRESS_BYTES)
        self._power, self._gauges = (RecentSamples(self._folder / name) for name in (POWER, GAUGES))
        self._job: Mapping[str, Any] = {}
        self._run: RunInfo  # of job.json, as `self._job`
        self._current: Mapping[str, Any] = {}  # the last line about the current epoch
        self._account = RunAccount(self._folder)
        self._forget_windows()

    def _forget_windows(self) -> None:
        self._windows: list[Mapping[str, Any]] = []
        self._epochs: list[Mapping[str, Any]] = []
        self._notes: list[str] = []  # of the windows, the newest first
        self._steps = self._damaged = self._longest_ns = 0
        self._computed = 0, -math.inf  # number of windows of `_metrics`, and their Unix time
        self._metrics: tuple[str, dict[str, float]] = "", {}  # title of the mean epoch, and metrics of all windows
        self._verdict: Verdict | None = None  # on the mean epoch; None without one
        self._straggler: documents.StragglerFields | None = None
        self._energy: documents.EnergyVerdict = {}

    def read(self, now_s: float) -> RunView:
        """Return the state of the run; `READ_ERRORS` if its job.json or summary.json is damaged."""
        run_folder = RunFolder(self._folder)
        self._job, self._run = job, run = run_folder.job, run_folder.run
        status, summary, failure = run_folder.state, run_folder.summary, run_folder.failure
        self._read_windows()
        self._read_current()
        silent_s = max(0.0, now_s - last_change_s(self._folder, now_s))
        state, reason = self._state(status, bool(run_folder.recorded_end), failure, silent_s)
        mean, metrics = self._metrics_so_far(state, now_s)
        recorded = (summary or {}).get("metrics") or {}
        metrics = {name: value for name, value in recorded.items() if value is not None} or metrics
        now_s = self._time_of_run_s(now_s)
        end_s = now_s if state in ACTIVE else recorded_end_s(summary) or now_s - silent_s
        progress = self._progress(metrics.get("total/energy_j"), state in ACTIVE, end_s, silent_s)
        if state == "training" and len(self._epochs) == progress.epochs and not progress.remaining_s:
            reason = "all epochs are trained; the run ends"
        medium = run.medium
        of_mean = recorded_verdict(summary, medium, "steady") if summary and recorded else self._verdict
        metrics = {**metrics, **(of_mean.metrics if of_mean else {})}
        splits = self._splits(mean, metrics)
        verdict, bottleneck = _bottleneck(splits, medium, of_mean)
        energy = verdict_of_run(summary.get("energy") or {}, metrics) if summary else self._energy
        start_s = run.clock_of(math.inf).unix_s(0)
        power, gauges = self._power.read(start_s), self._gauges.read(start_s)
        footprint = job.get("footprint") or {}
        price = None if run.energy.missing else footprint.get("price")
        return RunView(
            folder=str(self._folder), number=run.number, name=run.name, overrides=typed_keys(run.overrides),
            state=state, reason=reason, failure=failure, host=run.host or "", rehearsal=run.rehearsal,
            progress=progress, splits=splits, metrics=metrics, verdict=verdict, bottleneck=bottleneck,
            straggler=straggler_sentence(summary.get("straggler") if summary else self._straggler),
            energy_source=run.energy.source or "", energy_valid=energy.get("energy_valid"),
            energy_reasons={reason["code"]: reason["text"] for reason in energy.get("energy_reasons", [])},
            currency=footprint.get("currency"),
            cost_per_j=price * footprint["pue"] / JOULES_PER_KWH if price else None,
            power=power, gauges=gauges, throttling=self._gauges.throttling,
            missing=self._missing(state, bool(power), bool(gauges)), warnings=self._warnings(summary or {}, metrics),
            unlisted=_unlisted(splits), account=self._account_so_far(metrics, now_s if state in ACTIVE else end_s),
        )  # fmt: skip

    def _account_so_far(self, metrics: Mapping[str, float], until_s: float) -> dict[str, float]:
        """Return the account of the run in its summary, or up to a Unix time.

        The clock of another host may differ by minutes. The account of its run is up to the last time in its record.
        """
        if "run/wall_s" in metrics or "command_ns" not in self._run.moments:
            return {name: value for name, value in metrics.items() if name.startswith("run/")}
        clock = self._run.clock_of(math.inf)
        now_ns = clock.monotonic_ns + round((until_s - clock.wall_s) / NANOSECOND)
        if self._run.host != platform.node():
            now_ns = max(self._gauges.latest_ns, self._power.latest_ns)
        return {**self._account.read(self._run, self._windows, self._job["warmup_epochs"], now_ns)}

    def _time_of_run_s(self, now_s: float) -> float:
        """Return the present Unix time by the clock at the run's start; on this machine, it may have been set since."""
        clock = self._run.clock_of(math.inf)
        is_same_boot = self._run.host == platform.node() and self._run.boot_id == boot_id() != ""
        if not is_same_boot or clock.boottime_ns is None:
            return now_s
        boottime_ns: int = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return clock.wall_s + (boottime_ns - clock.boottime_ns) * NANOSECOND

    def _read_windows(self) -> None:
        lines, is_new = self._lines.new_lines()
        if is_new:
            self._forget_windows()
        for line in lines:
            window = parse_window(line)
            if window and {"opened_ns", "closed_ns"} <= window.keys() and "term" in (window.get("energy") or {}):
                self._add_window(window)
            else:
                self._damaged += 1

    def _add_window(self, window: Mapping[str, Any]) -> None:
        if window["window"] == "epoch":
            self._epochs.append(window)
        self._windows.append(window)
        self._steps += int(window["metrics"].get("epoch/steps", 0))
        self._longest_ns = max(window["closed_ns"] - window["opened_ns"], self._longest_ns)
        if notes := window.get("notes"):
            self._notes = [first for first, *_ in group_notes([*reversed(notes), *self._notes])]

    def _read_current(self) -> None:
        for line in self._open_epoch.new_lines()[0][-1:]:
            with suppress(ValueError):  # a damaged line
                self._current = documents.parse(line, documents.Progress)
        if self._current.get("epoch") != len(self._epochs):
            self._current = {}

    def _state(self, status: str, is_recorded: bool, failure: Problem | None, silent_s: float) -> tuple[State, str]:
        pid, host = self._run.pid, self._run.host
        is_stalled = silent_s > MIN_STALL_S and silent_s > STALL_FACTOR * self._longest_silence_s()
        if status == COMPLETED or (is_recorded and failure):
            return ENDED[status], first_line(failure)
        if status not in ENDED and not is_stalled:
            has_begun = self._windows or self._current or self._run.model or "opened_ns" in self._run.moments
            return ("training" if has_begun else "preparing"), ""
        is_full = shutil.disk_usage(self._folder).free < MIN_FREE_BYTES  # so that no end could be recorded
        alive = f"its process is alive ({pid})" if host == platform.node() else f"its host is {host}"
        facts = [
            *([first_line(failure)] if failure else []),
            f"no new record for {span(silent_s)}",
            f"the process {pid} is gone" if status in ENDED else alive,
            *(["the disk of the run folder is full"] if is_full else []),
        ]
        return ENDED.get(status, "stalled"), "; ".join(facts)

    def _longest_silence_s(self) -> float:
        """Return the time after which the record should grow: within an epoch the mean step, else the longest epoch."""
        so_far_s = math.fsum(self._current.get("parts", {}).values())
        if so_far_s and self._current["steps"] < self._current["epoch_steps"]:
            return so_far_s / float(self._current["steps"])
        return self._longest_ns * NANOSECOND if self._windows else math.inf

    def _metrics_so_far(self, state: State, now_s: float) -> tuple[str, dict[str, float]]:
        """Return the mean epoch's title, and metrics as the summary will have them, without percentiles of steps.

        Of several trainings, the mean epoch is that of the last one.
        """
        count, computed_s = self._computed
        is_due = state not in ACTIVE or not 0 <= now_s - computed_s < METRICS_AGE_S * len(self._windows)
        if count != len(self._windows) and is_due:
            self._computed = len(self._windows), now_s
            training = training_of(self._epochs[-1]) if self._epochs else 0
            steady = [*filter(is_steady, self._epochs[self._job["warmup_epochs"] :])]
            steady = [epoch for epoch in steady if training_of(epoch) == training]
            windows = training_windows(self._windows)
            totals = total_metrics(windows) if windows else {}
            metrics = steady_metrics(steady, array("f")) | {f"total/{name}": value for name, value in totals.items()}
            title = mean_title([epoch["epoch"] for epoch in steady]) if steady else ""
            self._metrics = f"{title}, training {training + 1}" if title and training else title, metrics
            measured = [epoch["metrics"] for epoch in steady]
            self._verdict = find_verdict(metrics, self._run.medium, "steady", measured) if steady else None
            self._straggler = self._straggler_so_far()
            verdicts = energy_verdicts(self._windows, self._run, metrics, self._job["warmup_epochs"])
            self._energy = verdict_of_run(verdicts, metrics) if windows else {}
        return self._metrics

    def _straggler_so_far(self) -> documents.StragglerFields | None:
        try:
            found, *_ = straggler_of(Record(self._folder), self._windows, self._run, self._job["warmup_epochs"])
        except READ_ERRORS:  # a damaged record
            return None
        return found

    def _progress(self, energy_j: float | None, is_active: bool, until_s: float, silent_s: float) -> Progress:
        job, total, recorded = self._job, self._job.get("epochs"), len(self._epochs)
        trained, epoch_s = self._trained(until_s) if is_active else (float(recorded), 0.0)
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
            steps=self._steps,
            elapsed_s=max(0.0, until_s - self._run.clock_of(0).wall_s),
            silent_s=silent_s if is_active else 0.0,
            pid=(job.get("measure") or {}).get("pid"),
            is_maximum=job.get("target_accuracy") is not None or job.get("target_loss") is not None,
            **estimates,
        )

    def _trained(self, now_s: float) -> tuple[float | None, float]:
        """Return the trained epochs, with a fraction of the current one, and the time per epoch in s; None, 0: unknown.

        The time is the median interval between the starts of the last epochs. In the first epoch, it follows from its
        steps.
        """
        steps, epoch_steps = self._current.get("steps"), self._current.get("epoch_steps")
        if not self._epochs and steps and epoch_steps:
            return steps / epoch_steps, math.fsum(self._current["parts"].values()) * epoch_steps / steps
        start = self._run.start_of(math.inf)
        recent = self._windows[-RECENT_WINDOWS:]
        epoch_s = _epoch_s([window for window in recent if window["epoch"] >= start.epoch])
        if not epoch_s:
            return None, 0.0
        recorded, last = len(self._epochs), self._epochs[-1]
        opened_s = self._run.clock_of(math.inf).unix_s(last["opened_ns"], last.get("suspended_s", 0.0))
        in_epoch_s = now_s - opened_s
        is_evaluating = self._job.get("evaluate") and self._windows[-1] is last
        first = recorded - 1 if is_evaluating else recorded
        return min(first + 1, max(first, recorded - 1 + in_epoch_s / epoch_s)), epoch_s

    def _splits(self, mean: str, metrics: Mapping[str, float]) -> dict[str, Split]:
        splits = {}
        if self._current.get("steps"):
            parts = self._current["parts"]
            times = {"e2e_s": math.fsum(parts.values()), **parts} if parts else {}
            title = f"{len(self._epochs) + 1} so far"
            splits["current"] = Split(title, {"steps": self._current["steps"], **times})
        for last in self._epochs[-1:]:
            title = epoch_title(last, self._job["warmup_epochs"])
            splits["last"] = Split(title, _short(last["metrics"], "epoch/"))
        if mean and (means := _short(metrics, "steady/")):
            splits["mean"] = Split(mean, means)
        return splits

    def _missing(self, state: State, has_power: bool, has_gauges: bool) -> dict[str, str]:
        """Return why energy, power and gauges are not recorded; power has a reason only if energy is recorded."""
        later = "no samples are recorded yet" if state in ACTIVE and not self._windows else ""
        reasons = {}
        if missing := self._run.energy.missing:
            reasons["energy"] = missing.message
        elif not has_power:
            reasons["power"] = later or self._run.energy.reason or "the meter reads counters only"
        if not has_gauges:
            reasons["gauges"] = later or f"the record has no {GAUGES}"
        return reasons

    def _warnings(self, summary: Mapping[str, Any], metrics: Mapping[str, float]) -> list[str]:
        notes = [*reversed(summary.get("notes") or [])] or self._notes
        files = self._lines, self._open_epoch, self._power.file, self._gauges.file
        damaged = [file.error for file in files if file.error]
        damaged += [f"{self._damaged} of the lines of {WINDOWS_FILE} cannot be read"] if self._damaged else []
        distinct = (first for first, *_ in group_notes([*variance_warning(metrics), *notes]))
        return [*damaged, *self._run.flags.values(), *distinct]


def first_line(failure: Problem | None) -> str:
    return failure.message.partition("\n")[0] if failure else ""


def _bottleneck(
    splits: Mapping[str, Split], medium: str | None, of_mean: Verdict | None
) -> tuple[str, dict[str, float]]:
    """Return the bottleneck of the mean epoch, else of the last or current one: a sentence, and part -> fraction."""
    for kind, split in [*splits.items()][-1:]:
        metrics = {f"steady/{name}": value for name, value in split.metrics.items()}
        verdict = of_mean if of_mean and kind == "mean" else find_verdict(metrics, medium, "steady")
        if largest := read_bottleneck(verdict.bottleneck, {**metrics, **verdict.metrics}):
            sentence = bottleneck_line(largest)
            fractions = {part: largest.fractions[part] for part in largest.parts}
            return sentence if kind == "mean" else f"Epoch {split.title}. {sentence}", fractions
    return "", {}


def _unlisted(splits: Mapping[str, Split]) -> list[tuple[str, str, str]]:
    """Return title, short name and unit of the metrics of epochs that the project does not know."""
    names = dict.fromkeys(name for split in splits.values() for name in split.metrics)
    unknown = [(find(f"epoch/{name}"), name) for name in names if not is_known(f"epoch/{name}")]
    return [(metric.title, name, metric.symbol) for metric, name in unknown]


def _short(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def _epoch_s(windows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the median time between the starts of epochs; of a single epoch, the time of its windows."""
    opened_ns: list[int] = [window["opened_ns"] for window in windows if window["window"] == "epoch"]
    if not opened_ns:
        return None
    cycles_ns = [later - earlier for earlier, later in pairwise(opened_ns)] or [windows[-1]["closed_ns"] - opened_ns[0]]
    return float(statistics.median(cycles_ns[1:] or cycles_ns)) * NANOSECOND


def recorded_end_s(summary: documents.Summary | None) -> float | None:
    ended = (summary or {}).get("ended")
    return datetime.fromisoformat(ended).timestamp() if ended else None


def last_change_s(folder: Path, default_s: float) -> float:
    """Return the Unix time of the last change of a file in a folder, or the default without files."""
    times_s = []
    with os.scandir(folder) as entries:
        for file in entries:
            with suppress(OSError):  # the file is gone
                times_s.append(file.stat().st_mtime)
    return max(times_s, default=default_s)
