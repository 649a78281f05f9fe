"""A record's numbers, each at its step and its time: what MLflow and TensorBoard are shown alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from epochmeter.results.power_trace import timeline
from epochmeter.shared.record import Record, since_resumed, steps_of
from epochmeter.tracking.run_export import legal
from epochmeter.tracking.state import ended_s, started_s

POWER = "power/total_w"
LOSS = "step/train_loss"
LONGEST_TIMELINE = 500
STEPS_A_POINT = 100
NS_PER_MS = 1_000_000


class Scalar(NamedTuple):
    """A value of a curve."""

    name: str
    value: float
    when_ms: int
    """Wall time."""
    step: int


def of_windows(record: Record, windows: Sequence[Mapping[str, Any]], known: int = 0) -> Iterator[list[Scalar]]:
    """The scalars of each window but the first so many: its metrics at its epoch, the losses in it at their steps.

    A scalar's time is its window's, so that one logged twice is one point in MLflow's database.
    """
    new, before = windows[known:], steps_of(windows[:known])
    curves = losses(record.losses(before), new, before) if new else []
    for window, curve in zip(new, curves, strict=True):
        when_ms = _boot_ms(record, windows, window["epoch"]) + window["closed_ns"] // NS_PER_MS
        metrics = shown(window["metrics"]).items()
        yield [
            *(Scalar(name, value, when_ms, window["epoch"]) for name, value in metrics),
            *(Scalar(LOSS, loss, when_ms, step) for step, loss in curve),
        ]


def of_summary(record: Record, summary: Mapping[str, Any]) -> list[Scalar]:
    """Means, spreads and totals, at the time that the run ended."""
    when_ms = round(ended_s(record) * 1000)
    return [Scalar(name, value, when_ms, 0) for name, value in shown(summary["metrics"]).items()]


def of_power(record: Record, windows: Sequence[Mapping[str, Any]]) -> Iterator[Scalar]:
    """The power over the run, as a curve in milliseconds since it began; nothing where nothing sampled it."""
    begun_ns = None
    for at_ns, watts, _ in timeline(record, LONGEST_TIMELINE) if windows else ():
        if begun_ns is None:
            boot_ms, begun_ns = _boot_ms(record, windows, windows[-1]["epoch"]), at_ns
        yield Scalar(POWER, watts, boot_ms + at_ns // NS_PER_MS, (at_ns - begun_ns) // NS_PER_MS)


def losses(
    of_steps: Sequence[float], windows: Sequence[Mapping[str, Any]], before: int = 0
) -> list[list[tuple[int, float]]]:
    """For each window the loss over its steps, as (step of the run, mean of up to 100); nothing where it diverged.

    What is given follows on so many steps `before`.
    """
    curves, end = [], before
    for window in windows:
        begin, end = end, end + int(window["metrics"].get("epoch/steps", 0))
        stretches = ((first, min(first + STEPS_A_POINT, end)) for first in range(begin, end, STEPS_A_POINT))
        means = [
            (last, math.fsum(of_steps[first - before : last - before]) / (last - first)) for first, last in stretches
        ]
        known = end - before <= len(of_steps)
        curves.append([(last, mean) for last, mean in means if math.isfinite(mean)] if known else [])
    return curves


def shown(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics under names that MLflow takes; without the absent, and the infinite, which it would make 1.8e308."""
    return {legal(name): float(value) for name, value in metrics.items() if value is not None and not math.isinf(value)}


def _boot_ms(record: Record, windows: Sequence[Mapping[str, Any]], epoch: int) -> int:
    """The wall time at which the monotonic clock stood at 0 that an epoch was timed by.

    A record without a clock is taken to have opened its first window as it started.
    """
    clock = since_resumed(record.run(), epoch).get("clock")
    clock = clock or {"wall_s": started_s(record), "monotonic_ns": windows[0]["opened_ns"]}
    return round(clock["wall_s"] * 1000) - clock["monotonic_ns"] // NS_PER_MS
