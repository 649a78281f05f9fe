"""A record's scalars with step and time, for MLflow and TensorBoard."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from epochmeter.results.power_trace import downsample
from epochmeter.shared.record import GAUGES, Record, since_resumed, step_count
from epochmeter.shared.record import POWER as POWER_FILE
from epochmeter.tracking.run_export import ended_s, legal_name

POWER, LOSS = "power/total_w", "step/train_loss"
SYSTEM = "system/"  # prefix of the metrics that MLflow shows as system metrics
CORE = re.compile(r"cpu\d+_utilization")  # not published: a machine may have hundreds of cores
MAX_POINTS, STEPS_PER_POINT = 500, 100  # points of each curve of power or a gauge; steps per point of the loss
NS_PER_MS = 1_000_000


class Scalar(NamedTuple):
    """A point of a curve; `step` is an epoch, a training step or ms, depending on the metric."""

    name: str
    value: float
    when_ms: int
    step: int


def window_scalars(record: Record, windows: Sequence[Mapping[str, Any]], published: int = 0) -> Iterator[list[Scalar]]:
    """Yield the scalars of each window after the first `published`: its metrics by epoch, and its losses by step.

    All have their window's time, so that a repeated point is one point in MLflow's database.
    """
    new, before = windows[published:], step_count(windows[:published])
    curves = loss_curves(record.losses(before), new, before) if new else []
    for window, curve in zip(new, curves, strict=True):
        when_ms = _boot_ms(record, window["epoch"]) + window["closed_ns"] // NS_PER_MS
        metrics = publishable(window["metrics"]).items()
        yield [
            *(Scalar(name, value, when_ms, window["epoch"]) for name, value in metrics),
            *(Scalar(LOSS, loss, when_ms, step) for step, loss in curve),
        ]


def summary_scalars(record: Record, summary: Mapping[str, Any]) -> list[Scalar]:
    """Return means, standard deviations and totals, at the time of the run's end."""
    when_ms = round(ended_s(record) * 1000)
    return [Scalar(name, value, when_ms, 0) for name, value in publishable(summary["metrics"]).items()]


def curve_scalars(record: Record, windows: Sequence[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Yield power in W and the gauges over ms since the first sample; nothing that was not recorded."""
    if not windows:
        return
    boot_ms = _boot_ms(record, windows[-1]["epoch"])
    for file in (POWER_FILE, GAUGES):
        start_ns = None
        for at_ns, _, means in downsample(record.folder / file, MAX_POINTS):
            start_ns = at_ns if start_ns is None else start_ns
            when_ms, step = boot_ms + at_ns // NS_PER_MS, (at_ns - start_ns) // NS_PER_MS
            for column, mean in means.items():
                name = legal_name(SYSTEM + column) if file == GAUGES else f"power/{column}"
                if name == POWER or (file == GAUGES and not CORE.fullmatch(column)):
                    yield Scalar(name, mean, when_ms, step)


def loss_curves(
    losses: Sequence[float], windows: Sequence[Mapping[str, Any]], before: int = 0
) -> list[list[tuple[int, float]]]:
    """Return per window (step of the run, mean loss of up to 100 steps), finite ones; `before` steps were earlier."""
    curves, end = [], before
    for window in windows:
        begin, end = end, end + int(window["metrics"].get("epoch/steps", 0))
        ranges = ((first, min(first + STEPS_PER_POINT, end)) for first in range(begin, end, STEPS_PER_POINT))
        means = [(last, math.fsum(losses[first - before : last - before]) / (last - first)) for first, last in ranges]
        complete = end - before <= len(losses)
        curves.append([(last, mean) for last, mean in means if math.isfinite(mean)] if complete else [])
    return curves


def publishable(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return metrics under legal names, without missing and infinite values, which MLflow would store as 1.8e308."""
    return {
        legal_name(name): float(value) for name, value in metrics.items() if value is not None and not math.isinf(value)
    }


def _boot_ms(record: Record, epoch: int) -> int:
    """Return the wall time of zero on the monotonic clock that timed an epoch, in ms."""
    clock = since_resumed(record.run(), epoch)["clock"]
    return round(clock["wall_s"] * 1000) - clock["monotonic_ns"] // NS_PER_MS
