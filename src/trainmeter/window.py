"""A window, as the steward sees it: the counters at its borders, and the line it becomes in the record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from trainmeter.metrics import NANOSECOND
from trainmeter.power.meter import Meter, spent, unmetered, window_energy
from trainmeter.record import Record
from trainmeter.summary import percentiles

LOOSEST_S, LOOSEST_SHARE = 0.02, 0.01
"""How much longer than its window, in seconds or as a share of it, the stretch between the counters may be."""

LARGEST_RESIDUAL = 0.001
"""The share of an epoch's end-to-end time by which its two clocks may disagree without a word."""


class Border(NamedTuple):
    """The counters at one end of a window, and when they were read."""

    at_ns: int
    joules: dict[str, float]


class Window(NamedTuple):
    """A closed window: its line in the record, and what there is to say of it."""

    line: dict[str, Any]
    notes: list[str]


def border(meter: Meter) -> Border:
    """The counters now; stamped with the middle of their reading, which may take a millisecond."""
    begun_ns = time.monotonic_ns()
    joules = meter.read()
    return Border((begun_ns + time.monotonic_ns()) // 2, joules)


def closed(
    opened: Mapping[str, Any], measured: Mapping[str, Any], before: Border, after: Border, meter: Meter, record: Record
) -> Window:
    """A window from the worker's messages that opened it and told what was measured, and its borders."""
    name = opened["window"]
    title = f"{name} window {opened['epoch']}"
    seconds = (after.at_ns - before.at_ns) * NANOSECOND
    if loose(measured, before, after):
        energy = {}
        notes = [f"{title}: no energy, since {seconds:.3f} s passed between the counters' readings around it."]
    else:
        energy = window_energy(before.joules, after.joules, meter, seconds)
        notes = [f"{title}: {text}" for text in unmetered(before.joules, after.joules, meter, seconds)]
    make = {"epoch": _epoch, "val": _val}[name]
    metrics = make(measured, energy, seconds, record)
    notes += [f"{title}: {text}" for text in disagreement(measured["parts"])]
    notes += [f"{title}: {key} was {value}, and is left out." for key, value in metrics.items() if not _finite(value)]
    line = {
        "window": name,
        "epoch": opened["epoch"],
        "opened_ns": measured["opened_ns"],
        "closed_ns": measured["closed_ns"],
        "metrics": {f"{name}/{key}": value for key, value in metrics.items() if _finite(value)},
        "energy": {
            "opened_ns": before.at_ns,
            "closed_ns": after.at_ns,
            "joules": spent(before.joules, after.joules),
        },
    }
    return Window(line, notes)


def loose(measured: Mapping[str, Any], before: Border, after: Border) -> bool:
    """Whether the counters were read so far from the window's ends that their difference is not its energy."""
    window_s = (measured["closed_ns"] - measured["opened_ns"]) * NANOSECOND
    between_s = (after.at_ns - before.at_ns) * NANOSECOND
    return between_s - window_s > max(LOOSEST_S, LOOSEST_SHARE * window_s)


def disagreement(parts: Mapping[str, float]) -> list[str]:
    """A note where the end-to-end clock and the marks differ by more than they should."""
    share = abs(parts["clock_residual_s"]) / parts["e2e_s"]
    return [f"its parts miss {share:.2%} of its end-to-end time."] if share > LARGEST_RESIDUAL else []


def _epoch(measured: Mapping[str, Any], energy: dict[str, float], seconds: float, record: Record) -> dict[str, float]:
    metrics = {**measured["parts"], "train_loss": measured["loss"], "train_accuracy": measured["accuracy"], **energy}
    metrics["samples_per_s"] = metrics["samples"] / metrics["e2e_s"]
    if "energy_j" in energy:
        metrics["energy_per_sample_j"] = energy["energy_j"] / metrics["samples"]
        metrics["power_mean_w"] = energy["energy_j"] / seconds
    return {**metrics, **percentiles(record.last_steps(metrics["steps"]))}


def _val(measured: Mapping[str, Any], energy: dict[str, float], seconds: float, record: Record) -> dict[str, float]:
    totals = {name: joules for name, joules in energy.items() if name in ("energy_j", "estimated_energy_j")}
    return {
        "e2e_s": measured["parts"]["e2e_s"],
        "loss": measured["loss"],
        "accuracy": measured["accuracy"],
        **totals,
    }


def _finite(value: float) -> bool:
    return math.isfinite(value)
