"""The summary of a run: steady means, spreads and totals, as pure functions of its windows and steps."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Mapping, Sequence

from trainmeter.metrics import EPOCH, NANOSECOND
from trainmeter.record import INTERVALS, is_partial, is_steady

Window = dict
PERCENTILES = {"step_p50_s": 0.50, "step_p95_s": 0.95, "step_p99_s": 0.99}
UNSTEADY, UNSTEADY_S = 0.1, 0.05
"""The spread of an epoch's time, as a share of its mean and in seconds, up to which nothing is said of it."""


def summarize(windows: Sequence[Window], steps: array, job: dict) -> dict[str, float]:
    """`steady/`, `spread/` and `total/` of a run.

    `windows` are a record's lines in order, `steps` the rows of its `steps.bin`. The job's first
    `warmup_epochs` are left out of the steady values, never of the totals; so are as many after each time that the run
    was resumed, an epoch that was ended in part, which is the last, and one in which the run was paused.
    """
    warmup_epochs = job["warmup_epochs"]
    epochs = [window for window in windows if window["window"] == "epoch"]
    measured, rows, end = [], array("f"), 0
    for number, epoch in enumerate(epochs):
        begin, end = end, end + len(INTERVALS) * int(epoch["metrics"]["epoch/steps"])
        if number >= warmup_epochs and is_steady(epoch):
            measured.append(epoch)
            rows += steps[begin:end]
    metrics = steady(measured, rows)
    metrics.update({f"total/{name}": value for name, value in totals(windows).items()})
    reached = to_target(windows, job["target_accuracy"], job["target_loss"], job["evaluate"])
    metrics.update({f"total/{name}": value for name, value in reached.items()})
    return metrics


def steady(epochs: Sequence[Window], steps: array) -> dict[str, float]:
    """`steady/` and `spread/` over epochs; a name that an epoch lacks is absent."""
    metrics: dict[str, float] = {}
    for name in _names(epochs):
        values = [epoch["metrics"][name] for epoch in epochs if name in epoch["metrics"]]
        if len(values) < len(epochs):
            continue
        short = name.partition("/")[2]
        rule = EPOCH[short].steady if short in EPOCH else "mean"
        if rule in ("mean", "max"):
            metrics[f"steady/{short}"] = max(values) if rule == "max" else statistics.fmean(values)
        if len(values) > 1:
            metrics[f"spread/{short}"] = statistics.stdev(values)
    ratios = {
        "samples_per_s": _ratio(metrics, "steady/samples", "steady/e2e_s"),
        "read_bytes_per_s": _ratio(metrics, "steady/read_bytes", "steady/e2e_s"),
        "read_iops": _mean_rate(epochs, "epoch/read_iops"),
        "energy_per_sample_j": _ratio(metrics, "steady/energy_j", "steady/samples"),
        "power_mean_w": _mean_power(epochs),
    }
    metrics.update({f"steady/{name}": value for name, value in ratios.items() if value is not None})
    if epochs:
        metrics.update({f"steady/{name}": value for name, value in percentiles(steps).items()})
    return metrics


def noted(windows: Sequence[Window]) -> list[str]:
    """What there was to say of the windows, in order."""
    return [note for window in windows for note in window.get("notes", [])]


def marked(windows: Sequence[Window]) -> dict[str, str]:
    """What the run of these windows is marked by: of each mark the first word stands."""
    return {mark: text for window in reversed(windows) for mark, text in window.get("marks", {}).items()}


def percentiles(steps: array) -> dict[str, float]:
    """The distribution of the time from step to step, by nearest rank; nothing where there is no step."""
    width = len(INTERVALS)
    gap, copy, compute = (INTERVALS.index(name) for name in ("gap_s", "copy_s", "compute_s"))
    durations = sorted(map(sum, zip(steps[gap::width], steps[copy::width], steps[compute::width], strict=True)))
    if not durations:
        return {}
    return {name: durations[max(0, math.ceil(share * len(durations)) - 1)] for name, share in PERCENTILES.items()}


def totals(windows: Sequence[Window]) -> dict[str, float]:
    """Time, energy and reads of all windows; what any window lacks is absent."""
    epochs = [window for window in windows if window["window"] == "epoch" and not is_partial(window)]
    result: dict[str, float] = {"epochs": len(epochs)}
    for name in ("e2e_s", "energy_j", "net_energy_j", "estimated_energy_j", "read_bytes"):
        total = _sum(windows, name)
        if total is not None:
            result[name] = total
    if "energy_j" in result:
        result["edp_js"] = result["energy_j"] * result["e2e_s"]
    return result


def unsteady(metrics: Mapping[str, float]) -> list[str]:
    """A note on epochs whose times differ by more than those of an idle machine do; none on those of a blink."""
    mean_s, spread_s = metrics.get("steady/e2e_s"), metrics.get("spread/e2e_s", 0.0)
    if not mean_s or spread_s <= max(UNSTEADY_S, UNSTEADY * mean_s):
        return []
    return [
        f"the steady epochs took {mean_s:.3g} s with a spread of {spread_s:.2g} s ({spread_s / mean_s:.0%}): look "
        "whether the machine was busy with something else, or hot, and measure again."
    ]


def to_target(
    windows: Sequence[Window], accuracy: float | None, loss: float | None, evaluate: bool
) -> dict[str, float]:
    """Time, energy and epochs up to the first window that reached the targets; empty if none did or none is set."""
    for index, window in enumerate(windows):
        if decides(window, evaluate) and reached(window, accuracy, loss):
            until = totals(windows[: index + 1])
            result = {"time_to_target_s": until["e2e_s"], "epochs_to_target": until["epochs"]}
            if "energy_j" in until:
                result["energy_to_target_j"] = until["energy_j"]
            return result
    return {}


def decides(window: Window, evaluate: bool) -> bool:
    """Whether a window is one by which a target is reached: an evaluation, or, in a run without any, a whole epoch."""
    return window["window"] == ("val" if evaluate else "epoch") and not is_partial(window)


def reached(window: Window, accuracy: float | None, loss: float | None) -> bool:
    """Whether a window reached every target that is set, of which there must be one."""
    section = window["window"]
    names = {"epoch": ("train_accuracy", "train_loss"), "val": ("accuracy", "loss")}[section]
    found_accuracy, found_loss = (window["metrics"].get(f"{section}/{name}") for name in names)
    tests = []
    if accuracy is not None:
        tests.append(found_accuracy is not None and found_accuracy >= accuracy)
    if loss is not None:
        tests.append(found_loss is not None and found_loss <= loss)
    return bool(tests) and all(tests)


def _names(epochs: Sequence[Window]) -> list[str]:
    """What the epochs tell of all ranks together: the largest over ranks stands beside them, in each line alone."""
    names = dict.fromkeys(name for epoch in epochs for name in epoch["metrics"])
    return [name for name in names if not name.startswith("rank_max/")]


def _ratio(metrics: dict[str, float], above: str, below: str) -> float | None:
    if above not in metrics or not metrics.get(below):
        return None
    return metrics[above] / metrics[below]


def _sum(windows: Sequence[Window], name: str) -> float | None:
    values = [window["metrics"].get(f"{window['window']}/{name}") for window in windows]
    return None if not values or None in values else math.fsum(values)


def _mean_rate(epochs: Sequence[Window], name: str) -> float | None:
    """A count per second over all epochs, from each one's."""
    if not epochs or any(name not in epoch["metrics"] for epoch in epochs):
        return None
    seconds = [epoch["metrics"]["epoch/e2e_s"] for epoch in epochs]
    count = math.fsum(epoch["metrics"][name] * span for epoch, span in zip(epochs, seconds, strict=True))
    return count / math.fsum(seconds)


def _mean_power(epochs: Sequence[Window]) -> float | None:
    energy_j = _sum(epochs, "energy_j")
    if energy_j is None:
        return None
    seconds = sum(epoch["energy"]["closed_ns"] - epoch["energy"]["opened_ns"] for epoch in epochs) * NANOSECOND
    return energy_j / seconds
