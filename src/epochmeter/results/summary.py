"""The summary of a run: steady means, standard deviations and totals, as pure functions of its windows and steps."""

import math
import re
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from epochmeter.config.schema import Job
from epochmeter.results.energy_sums import PARTS, intervals_of, total_uncertainty_j
from epochmeter.results.metrics import PERCENTILES, find
from epochmeter.results.run_info import PROCESS, Idle
from epochmeter.shared.record import INTERVALS, is_partial, is_steady, training_of
from epochmeter.shared.types import FloatArray
from epochmeter.shared.units import NANOSECOND, percent

if TYPE_CHECKING:
    import numpy as np

Window = Mapping[str, Any]
"""A line of `epochs.jsonl`; `energy.term` has its energies as terms of the run's totals."""
PARTS_OF_UNCERTAINTY = (*PARTS, "idle_uncertainty_j")
"""Joules of a window's term that are no energy: of errors that add up over windows in another way than the rest."""
TRAINING_WINDOWS = ("epoch", "val", PROCESS)
"""Windows whose times and energies the totals of a run add up; the last is of a process that ran already."""
IDLE: Mapping[str, tuple[Literal["before", "after"], Literal["power_w", "uncertainty_w"]]] = {
    "total/idle_power_w": ("before", "power_w"),
    "total/idle_power_uncertainty_w": ("before", "uncertainty_w"),
    "total/idle_power_after_w": ("after", "power_w"),
    "total/idle_power_after_uncertainty_w": ("after", "uncertainty_w"),
}
"""Metric -> when the idle power was measured, and the name of the value in the record."""
RATIOS = {
    "samples_per_s": ("samples", "e2e_s"),
    "images_per_s": ("images", "e2e_s"),
    "tokens_per_s": ("tokens", "e2e_s"),
    "read_bytes_per_s": ("read_bytes", "e2e_s"),
    "energy_per_sample_j": ("energy_j", "samples"),
}
MAX_VARIATION, MIN_VARIATION_S = 0.1, 0.05
"""Tolerated standard deviation of epoch times, relative to the mean and in seconds."""
MIN_METERED = 0.5
"""Fraction of the steady epochs that must have an energy for a mean energy."""
IN_PROPORTION = ("J", "g", "currency")
"""Units of energies, and of quantities in proportion to an energy."""
OF_SAMPLES = ("power_samples", "power_gap_max_s")
"""Metrics of the samples of power, which an epoch without an energy lacks as well."""


def summarize(windows: Sequence[Window], steps: FloatArray, job: Job) -> dict[str, float]:
    """Return the `steady/`, `std/` and `total/` metrics of a run; `steps` are the rows of `steps.bin`.

    Steady values exclude the first `warmup_epochs`, as many after each resumption, a partial last epoch, and epochs in
    which the run was paused. Totals include them. A run with several trainings has totals only.
    """
    of_trainings = training_windows(windows)
    totals = total_metrics(of_trainings) | target_metrics(of_trainings, job)
    means = _steady_means(windows, steps, job) if len(trainings_of(windows)) < 2 else {}
    return means | {f"total/{name}": value for name, value in totals.items()}


def summarize_trainings(windows: Sequence[Window], steps: FloatArray, job: Job) -> list[dict[str, float]]:
    """Return the metrics of each training of a run, as `summarize` would of a run with that training alone."""
    rows, end = defaultdict[int, FloatArray](lambda: array("f")), 0
    for epoch in (window for window in windows if window["window"] == "epoch"):
        begin, end = end, end + len(INTERVALS) * int(epoch["metrics"]["epoch/steps"])
        rows[training_of(epoch)] += steps[begin:end]
    return [
        summarize(of_training, rows[training], job) for training, of_training in sorted(trainings_of(windows).items())
    ]


def trainings_of(windows: Iterable[Window]) -> dict[int, list[Window]]:
    """Return the epochs and evaluations of each training by its number."""
    trainings: dict[int, list[Window]] = {}
    for window in windows:
        if window["window"] in TRAINING_WINDOWS:
            trainings.setdefault(training_of(window), []).append(window)
    return trainings


def _steady_means(windows: Sequence[Window], steps: FloatArray, job: Job) -> dict[str, float]:
    steady, rows, end = [], array("f"), 0
    for epoch in (window for window in windows if window["window"] == "epoch"):
        begin, end = end, end + len(INTERVALS) * int(epoch["metrics"]["epoch/steps"])
        if is_averaged(epoch, job.warmup_epochs):
            steady.append(epoch)
            rows += steps[begin:end]
    return steady_metrics(steady, rows)


def is_averaged(epoch: Window, warmup_epochs: int) -> bool:
    """Return whether an epoch is one of those whose means are the `steady/` metrics."""
    return int(epoch["epoch"]) >= warmup_epochs and is_steady(epoch)


def averaged_windows(windows: Iterable[Window], warmup_epochs: int) -> list[Window]:
    """Return the epochs whose means are the `steady/` metrics."""
    return [window for window in windows if window["window"] == "epoch" and is_averaged(window, warmup_epochs)]


def averaged_epochs(windows: Iterable[Window], warmup_epochs: int) -> list[Mapping[str, float]]:
    """Return the metrics of the epochs whose means are the `steady/` metrics."""
    return [epoch["metrics"] for epoch in averaged_windows(windows, warmup_epochs)]


def steady_metrics(epochs: Sequence[Window], steps: FloatArray) -> dict[str, float]:
    """Return `steady/` and `std/` over epochs; metrics that an epoch lacks are absent.

    If some epochs have no energy, but at least half have one, `steady/energy_epochs` is the number of the latter.
    Mean energies are then their mean power times the mean time of all epochs, so that the two can be compared.
    """
    metered, metrics = metered_epochs(epochs), _means(epochs)
    if MIN_METERED * len(epochs) <= len(metered) < len(epochs):
        metrics = _scaled_energies(_means(metered), metrics["steady/e2e_s"]) | metrics
        metrics |= {"steady/energy_epochs": len(metered), **_ratios(metrics)}
    return metrics | {f"steady/{name}": value for name, value in step_percentiles(steps).items()}


def _scaled_energies(means: Mapping[str, float], mean_s: float) -> dict[str, float]:
    """Return the metrics of energy among the means of epochs, with energies scaled to another mean time."""
    scale = mean_s / means["steady/e2e_s"]
    return {
        name: value * scale if find(name).unit in IN_PROPORTION and name.startswith("steady/") else value
        for name, value in means.items()
        if find(name).unit in (*IN_PROPORTION, "W") or name.partition("/")[2] in OF_SAMPLES
    }


def metered_epochs(epochs: Sequence[Window]) -> list[Window]:
    """Return the epochs with an energy, measured or estimated."""
    return [epoch for epoch in epochs if {"epoch/energy_j", "epoch/estimated_energy_j"} & epoch["metrics"].keys()]


def _means(epochs: Sequence[Window]) -> dict[str, float]:
    """Return `steady/` and `std/` of the metrics that all epochs have."""
    metrics: dict[str, float] = {}
    if not epochs:
        return metrics
    of_epochs = [epoch["metrics"] for epoch in epochs]
    for name in of_epochs[0]:
        section, _, short = name.partition("/")
        if section != "epoch":
            continue
        try:
            values = [measured[name] for measured in of_epochs]
        except KeyError:  # an epoch lacks it
            continue
        rule, mean = find(name).epochs or "mean", statistics.fmean(values)
        if rule == "last":
            metrics[f"steady/{short}"] = values[-1]
            continue
        if rule in ("mean", "maximum"):
            metrics[f"steady/{short}"] = max(values) if rule == "maximum" else mean
        if len(values) > 1:  # statistics.stdev is many times slower, and a live view needs this at each refresh
            metrics[f"std/{short}"] = math.dist(values, [mean] * len(values)) / math.sqrt(len(values) - 1)
    metrics |= _ratios(metrics)
    if all("epoch/read_iops" in epoch["metrics"] for epoch in epochs):
        operations = (epoch["metrics"]["epoch/read_iops"] * epoch["metrics"]["epoch/e2e_s"] for epoch in epochs)
        metrics["steady/read_iops"] = math.fsum(operations) / math.fsum(e["metrics"]["epoch/e2e_s"] for e in epochs)
    if (energy_j := _sum(epochs, "energy_j")) is not None:
        metrics["steady/power_mean_w"] = energy_j / _energy_window_s(epochs)
    return metrics


def _ratios(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios of means whose parts are known."""
    return {
        f"steady/{name}": metrics[f"steady/{above}"] / metrics[f"steady/{below}"]
        for name, (above, below) in RATIOS.items()
        if f"steady/{above}" in metrics and metrics.get(f"steady/{below}")
    }


def training_windows(windows: Sequence[Window]) -> list[Window]:
    """Return epochs and evaluations, without the windows that a script has named itself."""
    return [window for window in windows if window["window"] in TRAINING_WINDOWS]


def collect_flags(windows: Sequence[Window]) -> dict[str, str]:
    """Return the disturbances of the windows by tag; of each tag the first text."""
    return {flag: text for window in reversed(windows) for flag, text in window.get("flags", {}).items()}


def group_notes(notes: Iterable[str]) -> list[list[str]]:
    """Group notes that differ only in their numbers, in the order of the first note of each group."""
    groups: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        groups.setdefault(re.sub(r"\d+(\.\d+)?( to \d+(\.\d+)?)?", "#", note), []).append(note)
    return [*groups.values()]


def step_percentiles(steps: FloatArray) -> dict[str, float]:
    """Return percentiles of the time per step, by nearest rank; empty without steps."""
    import numpy as np  # takes time

    durations = _durations(steps)
    if not len(durations):
        return {}
    ranks = {name: max(0, math.ceil(fraction * len(durations)) - 1) for name, fraction in PERCENTILES.items()}
    ordered = np.partition(durations, sorted({*ranks.values()}))
    return {name: float(ordered[rank]) for name, rank in ranks.items()}


def step_durations(steps: FloatArray) -> list[float]:
    """Return the time of each step, in seconds."""
    durations: list[float] = _durations(steps).tolist()
    return durations


def _durations(steps: FloatArray) -> "np.ndarray":
    """Return the time of each step, in seconds; an epoch may have millions."""
    import numpy as np

    rows = np.asarray(steps).reshape(-1, len(INTERVALS))
    names = ("gap_s", "copy_s", "compute_s")
    gap, copy, compute = (rows[:, INTERVALS.index(name)].astype(np.float64) for name in names)
    durations: np.ndarray = gap + copy + compute
    return durations


def total_metrics(windows: Sequence[Window]) -> dict[str, float]:
    """Return the `total/` metrics of training and evaluation by their short names; absent if any window lacks them.

    Energy is the sum of the counters' increases in all windows, also in windows too short for an energy of their own.
    It is absent if the meter cannot resolve them together.
    """
    epochs = [window for window in windows if window["window"] == "epoch" and not is_partial(window)]
    sums = {name: _sum(windows, name) for name in ("e2e_s", "read_bytes")}
    totals: dict[str, float] = {"epochs": len(epochs)}
    totals |= {name: value for name, value in sums.items() if value is not None}
    terms = [window["energy"]["term"] for window in windows]
    if terms and not _unresolved_reason(windows):
        names = [name for name in terms[0] if name.endswith("_j") and all(name in term for term in terms)]
        totals |= {name: math.fsum(term[name] for term in terms) for name in names if name not in PARTS_OF_UNCERTAINTY}
    if "energy_uncertainty_j" in totals:
        totals["energy_uncertainty_j"] = total_uncertainty_j(intervals_of(windows))
    if "net_energy_j" in totals and all("idle_uncertainty_j" in term for term in terms):
        # The same idle power is subtracted in all windows.
        idle_j = math.fsum(term["idle_uncertainty_j"] for term in terms)
        totals["net_energy_uncertainty_j"] = math.hypot(totals["energy_uncertainty_j"], idle_j)
    if "energy_j" in totals:
        totals["edp_js"] = totals["energy_j"] * totals["e2e_s"]
    return totals


def idle_metrics(metrics: Mapping[str, float], idle: Idle) -> dict[str, float]:
    """Return the idle power of a run, and its net energies' uncertainties with the change of the idle power.

    Args:
        metrics: Those of `summarize`, whose net energies are above the idle power before training.
        idle: Idle power `before` and `after` training, as recorded.
    """
    results = {name: idle[when][key] for name, (when, key) in IDLE.items() if when in idle}
    before_w, after_w = (results.get(f"total/{name}") for name in ("idle_power_w", "idle_power_after_w"))
    if not before_w or after_w is None:
        return results
    change = abs(after_w / before_w - 1)
    for section in ("steady", "total"):
        name = f"{section}/net_energy_uncertainty_j"
        if name in metrics:
            idle_j = metrics[f"{section}/energy_j"] - metrics[f"{section}/net_energy_j"]
            results[name] = math.hypot(metrics[name], change * idle_j)
    return results


def no_total_note(windows: Sequence[Window]) -> list[str]:
    """Return a note on why a run with energy in some windows has no total energy."""
    without_energy = [window["epoch"] + 1 for window in windows if not window["energy"]["term"]]
    if len(without_energy) == len(windows):
        return []
    reason = _unresolved_reason(windows)
    if without_energy and not reason:
        more = f" and {len(without_energy) - 1} more windows" if len(without_energy) > 1 else ""
        reason = f"it is not known for epoch {without_energy[0]}{more}"
    what = "no total estimated energy: " if _is_estimated(windows) else "no total energy: "
    return [what + reason] if reason else []


def _is_estimated(windows: Sequence[Window]) -> bool:
    """Return whether the energy of the windows is estimated."""
    return any("estimated_energy_j" in window["energy"]["term"] for window in windows)


def mean_energy_note(windows: Sequence[Window], warmup_epochs: int) -> list[str]:
    """Return a note on the number of epochs behind a run's mean energy, if some steady epochs have no energy."""
    steady = averaged_windows(windows, warmup_epochs)
    metered, count = len(metered_epochs(steady)), len(steady)
    if not 0 < metered < count:
        return []
    energy = "estimated energy" if _is_estimated(windows) else "energy"
    some = f"{metered} of {count} steady epochs have an {energy}"
    if metered < MIN_METERED * count:
        return [f"no mean {energy}: {some}"]
    return [f"mean {energy}: {some}; it is their mean power times the mean time of all"]


def energy_warning(windows: Sequence[Window]) -> list[str]:
    """Return a warning if measurements of the same energy disagreed, with the first ones."""
    texts = [text for window in windows if (text := window.get("flags", {}).get("energy_disagrees"))]
    if not texts:
        return []
    more = f", and {len(texts) - 1} more windows" if len(texts) > 1 else ""
    return [f"warning: energies disagree. {texts[0]}{more}. The uncertainty of the energy includes the difference."]


def variance_warning(metrics: Mapping[str, float]) -> list[str]:
    """Return a warning if epoch times vary more than on an idle machine; very short epochs are tolerated."""
    if (variation := excessive_variation(metrics)) is None:
        return []
    times = f"({metrics['steady/e2e_s']:.3g} s, std {metrics['std/e2e_s']:.2g} s)"
    if step_variation := metrics.get("std/steps"):
        cause = f"The numbers of steps differ ({metrics['steady/steps']:.3g}, std {step_variation:.2g})."
    else:
        cause = "Check for other load or thermal throttling."
    return [f"warning: epoch times vary by {percent(variation)} {times}. {cause}"]


def excessive_variation(metrics: Mapping[str, float]) -> float | None:
    """Return the relative standard deviation of epoch times if it is larger than on an idle machine."""
    mean_s, std_s = metrics.get("steady/e2e_s"), metrics.get("std/e2e_s", 0.0)
    return std_s / mean_s if mean_s and std_s > max(MIN_VARIATION_S, MAX_VARIATION * mean_s) else None


def target_metrics(windows: Sequence[Window], job: Job) -> dict[str, float]:
    """Return time, energy and epochs up to the first window that reached the targets; empty if none did."""
    totals = total_metrics(windows_to_target(windows, job))
    names = {"time_to_target_s": "e2e_s", "epochs_to_target": "epochs"}
    names |= {"energy_to_target_j": "energy_j", "estimated_energy_to_target_j": "estimated_energy_j"}
    return {name: totals[total] for name, total in names.items() if total in totals} if "e2e_s" in totals else {}


def windows_to_target(windows: Sequence[Window], job: Job) -> Sequence[Window]:
    """Return the windows up to the first one that reached the targets; empty if none did."""
    return next((windows[:end] for end, window in enumerate(windows, 1) if reaches_target(window, job)), ())


def missed_target_note(windows: Sequence[Window], job: Job) -> list[str]:
    """Return a note with the best accuracy and loss of a run that did not reach its targets; empty without targets."""
    qualities = [quality for window in windows if (quality := _quality(window, job))]
    accuracies, losses = ([values[name] for values in qualities if name in values] for name in ("accuracy", "loss"))
    best, targets = [], []
    if job.target_accuracy is not None and accuracies:
        targets.append(f"accuracy {percent(job.target_accuracy, 1)}")
        best.append(f"highest accuracy {percent(max(accuracies), 1)}")
    if job.target_loss is not None and losses:
        targets.append(f"loss {job.target_loss:.4g}")
        best.append(f"lowest loss {min(losses):.4g}")
    if not best or any(reaches_target(window, job) for window in windows):
        return []
    count = f"{len(qualities)} epoch{'s' if len(qualities) > 1 else ''}"
    return [f"target not reached in {count} ({', '.join(targets)}): {', '.join(best)}"]


def reaches_target(window: Window, job: Job) -> bool:
    """Return whether an evaluation (without any: a complete epoch) reaches every target that is set, at least one."""
    quality, checks = _quality(window, job), []
    if job.target_accuracy is not None:
        checks.append(quality.get("accuracy", -math.inf) >= job.target_accuracy)
    if job.target_loss is not None:
        checks.append(quality.get("loss", math.inf) <= job.target_loss)
    return bool(checks) and all(checks)


def _quality(window: Window, job: Job) -> dict[str, float]:
    """Return the accuracy and loss of an evaluation (without any: of a complete epoch); empty for other windows."""
    if window["window"] != ("val" if job.evaluate else "epoch") or is_partial(window):
        return {}
    prefix = "val/" if job.evaluate else "epoch/train_"
    values = {name: window["metrics"].get(f"{prefix}{name}") for name in ("accuracy", "loss")}
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _unresolved_reason(windows: Sequence[Window]) -> str | None:
    """Return why the energy meter cannot resolve even all windows together; None if it can."""
    terms = [window["energy"]["term"] for window in windows]
    shortest_s = max((term.get("shortest_s", 0.0) for term in terms), default=0.0)
    if not shortest_s:
        return None
    if (seconds := _energy_window_s(windows)) < shortest_s:
        return f"the run lasted {seconds:.3g} s, and the energy meter needs {shortest_s:g} s"
    return None if any(term.get("energy_j", 1.0) for term in terms) else "the energy counter did not advance"


def _energy_window_s(windows: Sequence[Window]) -> float:
    durations_ns = [window["energy"]["closed_ns"] - window["energy"]["opened_ns"] for window in windows]
    return float(sum(durations_ns) * NANOSECOND)


def _sum(windows: Sequence[Window], name: str) -> float | None:
    values = [window["metrics"].get(f"{window['window']}/{name}") for window in windows]
    return None if not values or None in values else math.fsum(values)
