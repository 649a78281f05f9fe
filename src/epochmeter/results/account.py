"""Where the time of a whole run went, from the start of its command to the end of its record, in rows that add up.

    command | process | imported | first window ... last window | end | recorded
      prepare   import     build      windows and gaps     finish  analyze

Windows are divided into the parts of the epochs, evaluations and a script's own windows. Three rows are taken out of
the others: saving, wherever it happened, the measurement of the device's peaks, and the warm-up of the first steps,
which is part of the compute of an epoch.

A resumed run has the rows of all of its attempts. Of an earlier one, all time after its last window that was kept is
lost. The time between two attempts is no part of the run. Of a run that goes on, the time since the last window is a
row of its own.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from epochmeter.results.energy_sums import (
    Interval,
    Uncertainty,
    intervals_of,
    sum_adjacent,
    sum_uncertainty,
    total_uncertainty_j,
)
from epochmeter.results.run_info import Moments, RunInfo, StageEnergy
from epochmeter.results.summary import Window, is_averaged
from epochmeter.shared.record import INTERVALS, before_checkpoint, step_count
from epochmeter.shared.types import FloatArray
from epochmeter.shared.units import NANOSECOND

PARTS = ("data_stall_s", "copy_s", "compute_s", "overhead_s")
TRAINING = (*PARTS, "unknown_s")
"""Rows of training: the parts of its epochs, and the time of epochs whose parts are not known."""
GROUPS = {
    "training": TRAINING,
    "compilation and warm-up": ("warm_up_s",),
    "evaluation": ("evaluation_s",),
    "saving": ("save_s",),
    "start, imports, building": ("import_s", "build_s"),
    "preparation and analysis": ("prepare_s", "peaks_s", "analyze_s"),
    "other work": ("window_s", "between_s", "finish_s"),
    "lost before resuming": ("lost_s",),
    "since the last epoch": ("open_s",),
}
"""Name for people -> rows of an account; absent ones are not known, or do not exist."""
STAGES = {"start": "start_energy_j", "between": "between_energy_j", "finish": "finish_energy_j"}
"""Stage outside of windows -> its energy."""
OPEN = "run/open_s"
WARM_UP_FACTOR = 1.5
"""The warm-up has the first steps whose compute is longer than that of a later step by this factor."""
MAX_OVERLAP_S = 0.001
NO_MOMENTS = "the end of the run is not recorded"
NO_ATTEMPTS = "the moments of an earlier attempt are not recorded"
NO_WINDOWS = "no epoch was measured"
CONCURRENT = "windows of several threads overlap"


class Account(NamedTuple):
    """The rows of an account as metrics `run/...`, or why there is none."""

    metrics: Mapping[str, float]
    reason: str = ""


class Part(NamedTuple):
    """An attempt of a run, as far as it counts: its moments, the windows that were kept, and the rows of their steps.

    After the last window, the time is of the row `lost_s`, or `open_s`; without a name, it is that of a run's end.
    """

    moments: Moments
    windows: Sequence[Window]
    steps: FloatArray
    after: str = ""


def account_of(
    run: RunInfo, windows: Sequence[Window], steps: FloatArray, warmup_epochs: int, now_ns: int | None = None
) -> Account:
    """Return the account of a run; of a resumed run, that of all of its attempts.

    Args:
        run: The metadata, with the moments of the attempts.
        windows: All windows of the run.
        steps: The rows of `steps.bin`.
        warmup_epochs: Number of epochs whose steps are no example of later ones.
        now_ns: Of a run that goes on, the time up to which the account is.
    """
    needed = {"command_ns"} if now_ns is not None else {"command_ns", "process_ns", "ended_ns", "recorded_ns"}
    if needed - run.moments.keys():
        return Account({}, NO_MOMENTS)
    if not windows and now_ns is None:
        return Account({}, NO_WINDOWS)
    if len(run.attempts) < len(run.resumed):
        return Account({}, NO_ATTEMPTS)
    parts = _parts(run, windows, steps, now_ns)
    if any(_overlaps(part.windows) for part in parts):
        return Account({}, CONCURRENT)
    seconds: Counter[str] = Counter()
    for part in parts:
        seconds.update(_rows(part, warmup_epochs))
    wall_s = math.fsum((part.moments["recorded_ns"] - part.moments["command_ns"]) * NANOSECOND for part in parts)
    named = {f"run/{row}": seconds[row] for rows in GROUPS.values() for row in rows if row in seconds}
    residual_s = wall_s - math.fsum(named.values())
    gaps = [attempt.gap_s for attempt in run.attempts]
    gap = {"run/gap_s": math.fsum(filter(None, gaps))} if gaps and None not in gaps else {}
    energies = {} if run.attempts or now_ns is not None else _energies(run, windows)
    return Account({"run/wall_s": wall_s, **named, "run/residual_s": residual_s, **gap, **energies})


def _parts(run: RunInfo, windows: Sequence[Window], steps: FloatArray, now_ns: int | None) -> list[Part]:
    """Return the attempts of a run, each with its windows in the order of time."""
    parts, kept, begun = [], 0, 0
    ends = [len(before_checkpoint(windows, attempt.epochs)) for attempt in run.attempts]
    now: Moments = {} if now_ns is None else {"recorded_ns": now_ns}
    last = Moments(**{**run.moments, **now})
    after = "" if now_ns is None or "ended_ns" in run.moments else "open_s"
    attempts = [(attempt.moments, "lost_s") for attempt in run.attempts]
    for (moments, row), end in zip([*attempts, (last, after)], [*ends, len(windows)], strict=True):
        own = windows[kept:end]
        count = len(INTERVALS) * step_count(own)
        ordered = sorted(own, key=lambda window: window["opened_ns"])
        parts.append(Part(moments, ordered, steps[begun : begun + count], row))
        kept, begun = end, begun + count
    return parts


def _overlaps(windows: Sequence[Window]) -> bool:
    overlaps_ns = (before["closed_ns"] - after["opened_ns"] for before, after in pairwise(windows))
    return any(overlap_ns * NANOSECOND > MAX_OVERLAP_S for overlap_ns in overlaps_ns)


def _rows(part: Part, warmup_epochs: int) -> dict[str, float]:
    """Return the seconds of an attempt by row."""
    seconds = _between_windows(part)
    seconds |= _within_windows(part.windows, _warm_up_s(part.windows, part.steps, warmup_epochs))
    saved_s = math.fsum(window["metrics"].get(f"{window['window']}/save_s", 0.0) for window in part.windows)
    seconds["save_s"] = seconds.get("save_s", 0.0) + saved_s
    seconds["between_s"] += math.fsum(map(_of_some_ranks_s, part.windows))
    return seconds


def _of_some_ranks_s(window: Window) -> float:
    """Return the time in which only some of several ranks are in a window, as its times are their means."""
    if window.get("ranks", 1) == 1:
        return 0.0
    open_ns: int = window["closed_ns"] - window["opened_ns"]
    e2e_s: float = window["metrics"][f"{window['window']}/e2e_s"]
    return open_ns * NANOSECOND - e2e_s


def _energies(run: RunInfo, windows: Sequence[Window]) -> dict[str, float]:
    """Return the energy of the process by stage, and its sum; empty if that of a stage or a window is not known."""
    stages = run.stage_energies
    if {"start", "finish", *(["between"] if len(windows) > 1 else [])} - stages.keys():
        return {}
    terms = [window["energy"]["term"] for window in windows]
    if not all("energy_j" in term for term in terms):
        return {}
    energies_j = {f"run/{STAGES[stage]}": used["energy_j"] for stage, used in stages.items()}
    for window, term in zip(windows, terms, strict=True):
        name = {"epoch": "run/training_energy_j", "val": "run/evaluation_energy_j"}.get(
            window["window"], "run/window_energy_j"
        )
        energies_j[name] = energies_j.get(name, 0.0) + term["energy_j"]
    half_j = _half_width_j(intervals_of(windows), list(stages.values()))
    return {**energies_j, "run/energy_j": math.fsum(energies_j.values()), "run/energy_uncertainty_j": half_j}


def _half_width_j(windows: Sequence[Interval], stages: Sequence[StageEnergy]) -> float:
    """Return the uncertainty of the energy of the whole process, of which windows and stages are parts without gaps."""
    parts = [Uncertainty(**stage["parts"]) for stage in stages if "parts" in stage]
    if len(parts) == len(stages):
        return sum_adjacent([sum_uncertainty(windows), *parts]).half_width_j
    return total_uncertainty_j(windows) + math.fsum(stage["uncertainty_j"] for stage in stages)  # of an earlier version


def grouped(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each group of rows, the largest first; empty without an account."""
    if "run/wall_s" not in metrics:
        return {}
    seconds = {name: math.fsum(metrics.get(f"run/{row}", 0.0) for row in rows) for name, rows in GROUPS.items()}
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _between_windows(part: Part) -> dict[str, float]:
    """Return the rows outside of windows; the time in which something was saved is a row of its own."""
    moments, intervals = part.moments, _intervals(part)
    others = {"save_s": moments.get("saves_ns", []), "peaks_s": [peaks] if (peaks := moments.get("peaks_ns")) else []}
    rows = {row: sum(ended - begun for begun, ended in parts) * NANOSECOND for row, parts in intervals.items()}
    for other, taken in others.items():
        for row, parts in intervals.items():
            taken_s = sum(_overlap_ns(part, each) for part in parts for each in taken) * NANOSECOND
            rows[row] -= taken_s
            rows[other] = rows.get(other, 0.0) + taken_s
    absent = [row for row, key in (("import_s", "imported_ns"), ("peaks_s", "peaks_ns")) if key not in moments]
    return {row: value for row, value in rows.items() if row not in absent}


def _intervals(part: Part) -> dict[str, list[tuple[int, int]]]:
    """Return the times outside of windows by row."""
    moments, windows = part.moments, part.windows
    end_ns = moments["recorded_ns"]
    process_ns = moments.get("process_ns", end_ns)
    imported_ns = moments.get("imported_ns", process_ns)
    without_windows_ns = imported_ns if part.after == "lost_s" else moments.get("ended_ns", end_ns)
    first_ns = windows[0]["opened_ns"] if windows else moments.get("opened_ns", without_windows_ns)
    last_ns = max((window["closed_ns"] for window in windows), default=first_ns)
    ended_ns = moments.get("ended_ns", end_ns)
    after = {"finish_s": [(last_ns, ended_ns)], "analyze_s": [(ended_ns, end_ns)]}
    return {
        "prepare_s": [(moments["command_ns"], process_ns)],
        "import_s": [(process_ns, imported_ns)],
        "build_s": [(imported_ns, first_ns)],
        "between_s": [(before["closed_ns"], after["opened_ns"]) for before, after in pairwise(windows)],
        **({part.after: [(last_ns, end_ns)]} if part.after else after),
    }


def _within_windows(windows: Iterable[Window], warm_up_s: float) -> dict[str, float]:
    """Return the rows of windows: the parts of epochs without warm-up and saving, and the other kinds of windows."""
    rows: dict[str, float] = {}
    for window in windows:
        metrics, kind = window["metrics"], window["window"]
        saved_s = metrics.get(f"{kind}/save_s", 0.0)
        if kind == "epoch" and "epoch/compute_s" in metrics:
            parts = {part: metrics[f"epoch/{part}"] for part in PARTS if f"epoch/{part}" in metrics}
            parts["overhead_s"] -= saved_s
        else:
            row = {"epoch": "unknown_s", "val": "evaluation_s"}.get(kind, "window_s")
            parts = {row: metrics[f"{kind}/e2e_s"] - saved_s}
        for part, value in parts.items():
            rows[part] = rows.get(part, 0.0) + value
    if warm_up_s:
        rows["compute_s"] -= warm_up_s
        rows["warm_up_s"] = warm_up_s
    return rows


def _warm_up_s(windows: Sequence[Window], steps: FloatArray, warmup_epochs: int) -> float:
    """Return by how much the first steps of a run computed longer than its later ones, as by compilation."""
    epochs = [window for window in windows if window["window"] == "epoch"]
    if not epochs or "epoch/compute_s" not in epochs[0]["metrics"]:
        return 0.0
    computes = steps[INTERVALS.index("compute_s") :: len(INTERVALS)]
    of_first = int(epochs[0]["metrics"]["epoch/steps"])
    has_later = any(is_averaged(epoch, warmup_epochs) for epoch in epochs[1:])
    later = computes[of_first:] if has_later and len(computes) > of_first else computes[of_first // 2 : of_first]
    if not later:
        return 0.0
    typical_s = statistics.median(later)
    longer = takewhile(lambda compute_s: compute_s > WARM_UP_FACTOR * typical_s, computes[:of_first])
    return math.fsum(compute_s - typical_s for compute_s in longer)


def _overlap_ns(part: tuple[int, int], save: Sequence[int]) -> int:
    return max(0, min(part[1], save[1]) - max(part[0], save[0]))
