"""The summary of a run: steady means, standard deviations and totals, as pure functions of its windows and steps."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Mapping, Sequence

from epochmeter.config.schema import Job
from epochmeter.results.metrics import EPOCH
from epochmeter.shared.record import INTERVALS, is_partial, is_steady
from epochmeter.shared.units import NANOSECOND

WindowLine = dict
PERCENTILES = {"step_p50_s": 0.50, "step_p95_s": 0.95, "step_p99_s": 0.99}
ENERGIES = ("energy_j", "net_energy_j", "estimated_energy_j")
MAX_VARIATION, MIN_VARIATION_S = 0.1, 0.05
"""Tolerated standard deviation of epoch times, relative to the mean and in seconds."""


def summarize(windows: Sequence[WindowLine], steps: array, job: Job) -> dict[str, float]:
    """Return the `steady/`, `std/` and `total/` metrics of a run.

    Steady values exclude the first `warmup_epochs`, as many after each resumption, a partial last epoch, and epochs in
    which the run was paused. Totals include them.

    Args:
        windows: The record's windows in order.
        steps: Rows of `steps.bin`.
        job: Configuration.
    """
    warmup_epochs = job.warmup_epochs
    epochs = [window for window in windows if window["window"] == "epoch"]
    measured, rows, end = [], array("f"), 0
    for number, epoch in enumerate(epochs):
        begin, end = end, end + len(INTERVALS) * int(epoch["metrics"]["epoch/steps"])
        if number >= warmup_epochs and is_steady(epoch):
            measured.append(epoch)
            rows += steps[begin:end]
    metrics = steady_metrics(measured, rows)
    metrics.update({f"total/{name}": value for name, value in total_metrics(windows).items()})
    reached = target_metrics(windows, job.target_accuracy, job.target_loss, job.evaluate)
    metrics.update({f"total/{name}": value for name, value in reached.items()})
    return metrics


def steady_metrics(epochs: Sequence[WindowLine], steps: array) -> dict[str, float]:
    """Return `steady/` and `std/` over epochs; metrics that an epoch lacks are absent."""
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
            metrics[f"std/{short}"] = statistics.stdev(values)
    ratios = {
        "samples_per_s": _ratio(metrics, "steady/samples", "steady/e2e_s"),
        "read_bytes_per_s": _ratio(metrics, "steady/read_bytes", "steady/e2e_s"),
        "read_iops": _mean_rate(epochs, "epoch/read_iops"),
        "energy_per_sample_j": _ratio(metrics, "steady/energy_j", "steady/samples"),
        "power_mean_w": _mean_power(epochs),
    }
    metrics.update({f"steady/{name}": value for name, value in ratios.items() if value is not None})
    if epochs:
        metrics.update({f"steady/{name}": value for name, value in step_percentiles(steps).items()})
    return metrics


def collect_notes(windows: Sequence[WindowLine]) -> list[str]:
    """Return the notes of the windows, in order."""
    return [note for window in windows for note in window.get("notes", [])]


def collect_flags(windows: Sequence[WindowLine]) -> dict[str, str]:
    """Return the disturbances of the windows by tag; of each tag the first text."""
    return {flag: text for window in reversed(windows) for flag, text in window.get("flags", {}).items()}


def step_percentiles(steps: array) -> dict[str, float]:
    """Return percentiles of the time per step, by nearest rank; empty without steps."""
    width = len(INTERVALS)
    gap, copy, compute = (INTERVALS.index(name) for name in ("gap_s", "copy_s", "compute_s"))
    durations = sorted(map(sum, zip(steps[gap::width], steps[copy::width], steps[compute::width], strict=True)))
    if not durations:
        return {}
    return {name: durations[max(0, math.ceil(share * len(durations)) - 1)] for name, share in PERCENTILES.items()}


def total_metrics(windows: Sequence[WindowLine]) -> dict[str, float]:
    """Time, energy and reads over training and evaluation windows; a total that any window lacks is absent.

    Energy is the sum of the differences between the counters' readings at the borders of each window, so that windows
    too short for an energy of their own are included. Work between windows counts in neither time nor energy.

    Args:
        windows: the lines of the record, in order, of all attempts.

    Returns:
        The `total/` metrics by their short names.
    """
    epochs = [window for window in windows if window["window"] == "epoch" and not is_partial(window)]
    result: dict[str, float] = {"epochs": len(epochs)}
    for name in ("e2e_s", "read_bytes"):
        total = _sum(windows, name)
        if total is not None:
            result[name] = total
    result.update(total_energy(windows))
    if "energy_j" in result:
        result["edp_js"] = result["energy_j"] * result["e2e_s"]
    return result


def total_energy(windows: Sequence[WindowLine]) -> dict[str, float]:
    """The energies of all windows together; none if a window has none, or if all are too short for the instrument."""
    terms = [_term(window) for window in windows]
    if not terms or _shortfall(windows):
        return {}
    names = [name for name in terms[0] if name.endswith("_j") and all(name in term for term in terms)]
    result = {name: math.fsum(term[name] for term in terms) for name in names if name != "unsampled_j"}
    if "energy_uncertainty_j" in result:
        result["energy_uncertainty_j"] = total_uncertainty_j(terms, result["energy_j"] / _energy_window_s(windows))
    return result


def total_uncertainty_j(terms: Sequence[Mapping[str, float]], mean_w: float) -> float:
    """Half-width of the 95 % confidence interval of a sum of windows, in joules.

    Power that a part-time sensor missed is independent from window to window, so its squares are added. All other
    uncertainties are added, since the same instrument may always err in the same direction.

    Args:
        terms: The windows' terms.
        mean_w: Mean power of all windows: the uncertainty of a window is at least one period of the counter at it.
    """
    independent_j = [term.get("unsampled_j", 0.0) for term in terms]
    others_j = [
        max(math.sqrt(max(0.0, term["energy_uncertainty_j"] ** 2 - part_j**2)), mean_w * term.get("period_s", 0.0))
        for term, part_j in zip(terms, independent_j, strict=True)
    ]
    return math.hypot(math.fsum(others_j), *independent_j)


def no_total_note(windows: Sequence[WindowLine]) -> list[str]:
    """A note on why a run with measured energy has no total energy."""
    metered = [bool(_term(window)) for window in windows]
    if not any(metered):
        return []
    if short := _shortfall(windows):
        return [f"no total energy: {short}"]
    lacking = [window["epoch"] + 1 for window, has_energy in zip(windows, metered, strict=True) if not has_energy]
    more = f" and {len(lacking) - 1} more windows" if len(lacking) > 1 else ""
    return [f"no total energy: it was not measured in epoch {lacking[0]}{more}"] if lacking else []


def variance_warning(metrics: Mapping[str, float]) -> list[str]:
    """Return a warning if epoch times vary more than on an idle machine; very short epochs are tolerated."""
    mean_s, spread_s = metrics.get("steady/e2e_s"), metrics.get("std/e2e_s", 0.0)
    if not mean_s or spread_s <= max(MIN_VARIATION_S, MAX_VARIATION * mean_s):
        return []
    return [
        f"warning: epoch times vary by {100 * spread_s / mean_s:.0f} % ({mean_s:.3g} s, std {spread_s:.2g} s). "
        "Check for other load or thermal throttling."
    ]


def target_metrics(
    windows: Sequence[WindowLine], accuracy: float | None, loss: float | None, evaluate: bool
) -> dict[str, float]:
    """Time, energy and epochs up to the first window that reached the targets; empty if none did or none is set."""
    for index, window in enumerate(windows):
        if is_decisive(window, evaluate) and reaches_target(window, accuracy, loss):
            until = total_metrics(windows[: index + 1])
            result = {"time_to_target_s": until["e2e_s"], "epochs_to_target": until["epochs"]}
            if "energy_j" in until:
                result["energy_to_target_j"] = until["energy_j"]
            return result
    return {}


def is_decisive(window: WindowLine, evaluate: bool) -> bool:
    """Whether a window can reach a target: an evaluation or, in a run without evaluation, a complete epoch."""
    return window["window"] == ("val" if evaluate else "epoch") and not is_partial(window)


def reaches_target(window: WindowLine, accuracy: float | None, loss: float | None) -> bool:
    """Whether a window reached every target that is set; at least one must be set."""
    section = window["window"]
    names = {"epoch": ("train_accuracy", "train_loss"), "val": ("accuracy", "loss")}[section]
    found_accuracy, found_loss = (window["metrics"].get(f"{section}/{name}") for name in names)
    tests = []
    if accuracy is not None:
        tests.append(found_accuracy is not None and found_accuracy >= accuracy)
    if loss is not None:
        tests.append(found_loss is not None and found_loss <= loss)
    return bool(tests) and all(tests)


def _term(window: WindowLine) -> Mapping[str, float]:
    """The energies of a window as terms of a total; for an older record without them, its metrics."""
    term: Mapping[str, float] | None = (window.get("energy") or {}).get("term")
    if term is not None:
        return term
    of_metrics = {name: window["metrics"].get(f"{window['window']}/{name}") for name in ENERGIES}
    return {name: value for name, value in of_metrics.items() if value is not None}


def _shortfall(windows: Sequence[WindowLine]) -> str | None:
    """Why the energy meter cannot resolve the windows even together; None if it can."""
    terms = [_term(window) for window in windows]
    shortest_s = max((term.get("shortest_s", 0.0) for term in terms), default=0.0)
    if not shortest_s:
        return None
    if (seconds := _energy_window_s(windows)) < shortest_s:
        return f"the run lasted {seconds:.3g} s, and the energy meter needs {shortest_s:g} s"
    is_stuck = not any(term.get("energy_j", 1.0) for term in terms)
    return "the energy counter did not advance" if is_stuck else None


def _energy_window_s(windows: Sequence[WindowLine]) -> float:
    """Return the total time between the readings at the borders of each window, in seconds."""
    return sum(window["energy"]["closed_ns"] - window["energy"]["opened_ns"] for window in windows) * NANOSECOND


def _names(epochs: Sequence[WindowLine]) -> list[str]:
    """Return the metrics that are merged over all ranks, without the maxima over ranks."""
    names = dict.fromkeys(name for epoch in epochs for name in epoch["metrics"])
    return [name for name in names if not name.startswith("rank_max/")]


def _ratio(metrics: dict[str, float], above: str, below: str) -> float | None:
    if above not in metrics or not metrics.get(below):
        return None
    return metrics[above] / metrics[below]


def _sum(windows: Sequence[WindowLine], name: str) -> float | None:
    values = [window["metrics"].get(f"{window['window']}/{name}") for window in windows]
    return None if not values or None in values else math.fsum(values)


def _mean_rate(epochs: Sequence[WindowLine], name: str) -> float | None:
    """Return a rate per second over all epochs, from each epoch's rate."""
    if not epochs or any(name not in epoch["metrics"] for epoch in epochs):
        return None
    seconds = [epoch["metrics"]["epoch/e2e_s"] for epoch in epochs]
    count = math.fsum(epoch["metrics"][name] * span for epoch, span in zip(epochs, seconds, strict=True))
    return count / math.fsum(seconds)


def _mean_power(epochs: Sequence[WindowLine]) -> float | None:
    energy_j = _sum(epochs, "energy_j")
    if energy_j is None:
        return None
    return energy_j / _energy_window_s(epochs)
