"""A window, as the steward sees it: the counters at its borders, and the line it becomes in the record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from trainmeter.power.meter import Meter, spent, window_energy
from trainmeter.record import Record
from trainmeter.summary import NANOSECOND, percentiles


class Border(NamedTuple):
    """The counters at one end of a window, and when they were read."""

    at_ns: int
    joules: dict[str, float]


def border(meter: Meter) -> Border:
    """The counters now; stamped with the middle of their reading, which may take a millisecond."""
    begun_ns = time.monotonic_ns()
    joules = meter.read()
    return Border((begun_ns + time.monotonic_ns()) // 2, joules)


def line(opened: Mapping[str, Any], measured: Mapping[str, Any], before: Border, after: Border, meter: Meter,
         record: Record) -> dict[str, Any]:  # fmt: skip
    """The record's line for a window: from the worker's messages that opened and closed it, and its borders."""
    name = opened["window"]
    energy = window_energy(before.joules, after.joules, meter)
    make = {"epoch": _epoch, "val": _val}[name]
    metrics = make(measured, energy, (after.at_ns - before.at_ns) * NANOSECOND, record)
    return {
        "window": name,
        "epoch": opened["epoch"],
        "opened_ns": measured["opened_ns"],
        "closed_ns": measured["closed_ns"],
        "metrics": {f"{name}/{metric}": value for metric, value in metrics.items()},
        "energy": {
            "opened_ns": before.at_ns,
            "closed_ns": after.at_ns,
            "joules": dict(sorted(spent(before.joules, after.joules).items())),
        },
    }


def _epoch(measured: Mapping[str, Any], energy: dict[str, float], seconds: float, record: Record) -> dict[str, float]:
    metrics = {
        **measured["parts"],
        "train_loss": measured["loss"],
        "train_accuracy": measured["accuracy"],
        **energy,
    }
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
