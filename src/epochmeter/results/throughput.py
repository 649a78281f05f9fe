"""Throughput in samples per second between two steps, which are counted from 0 over all epochs.

As in the TBD suite (H. Zhu et al., Benchmarking and Analyzing Deep Neural Network Training, IISWC 2018), but from the
actual number of samples, and as a ratio of sums: a mean of per-step rates is too high if step times vary.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epochmeter.config.schema import Job
from epochmeter.shared.record import INTERVALS

GAP, COPY, COMPUTE = (INTERVALS.index(name) for name in ("gap_s", "copy_s", "compute_s"))


def measure_throughput(windows: Sequence[Mapping[str, Any]], steps: array, job: Job) -> tuple[dict[str, float], str]:
    """Return the metrics of the steps from `throughput.start` up to, but excluding, `throughput.stop`.

    A step lasts from the end of the previous step to its own end; time between epochs belongs to no step.

    Args:
        windows: The record's windows in order.
        steps: Rows of `steps.bin`.
        job: Configuration.

    Returns:
        The `throughput/` metrics, and the reason if they are configured and cannot be computed.
    """
    start, stop = job.throughput.start, job.throughput.stop
    if start is None or stop is None:
        return {}, ""
    epochs = [window for window in windows if window["window"] == "epoch"]
    done = int(sum(epoch["metrics"]["epoch/steps"] for epoch in epochs))
    if done < stop:
        return {}, f"the run ended after {done} steps, before throughput.stop={stop}."
    samples = 0
    for epoch, first, last in _epoch_parts(epochs, start, stop):
        count = step_samples(epoch, job.batch, first, last)
        if count is None:
            return {}, f"bad samples were skipped in epoch {epoch['epoch']}, in an unknown step."
        samples += count
    width = len(INTERVALS)
    rows = steps[width * start : width * stop]
    seconds = math.fsum(part for column in (GAP, COPY, COMPUTE) for part in rows[column::width])
    metrics = {
        "samples_per_s": samples / seconds,
        "samples": samples,
        "steps": stop - start,
        "e2e_s": seconds,
        "step_mean_s": seconds / (stop - start),
    }
    return {f"throughput/{name}": value for name, value in metrics.items()}, ""


def step_samples(epoch: Mapping[str, Any], batch: int, first: int, last: int) -> int | None:
    """Return the samples of all ranks in an epoch's steps from `first` up to `last`; None if unknown (skipped samples).

    Each rank takes `batch` samples per step, except in the epoch's last step, which takes the rest.
    """
    metrics = epoch["metrics"]
    steps, samples = int(metrics["epoch/steps"]), int(metrics["epoch/samples"])
    if (first, last) == (0, steps):
        return samples
    if metrics.get("epoch/skipped_samples"):
        return None
    global_batch = batch * epoch.get("ranks", 1)
    return samples - first * global_batch if last == steps else (last - first) * global_batch


def steps_per_epoch(count: int, batch: int, ranks: int, drop_last: bool) -> int:
    """Return the number of steps per epoch for `count` samples, distributed over ranks with batches of their own."""
    per_rank = math.ceil(count / ranks)
    return per_rank // batch if drop_last else math.ceil(per_rank / batch)


def check_length(job: Job, count: int, ranks: int) -> None:
    """Raise ValueError if a run on `count` samples has no step, or ends before `throughput.stop`."""
    stop = job.throughput.stop
    steps = steps_per_epoch(count, job.batch, ranks, job.drop_last)
    per_rank = f" per rank ({ranks} ranks)" if ranks > 1 else ""
    if count and not steps:
        samples = math.ceil(count / ranks)
        raise ValueError(
            f"batch={job.batch} exceeds the {samples} training samples{per_rank}, and drop_last=true drops smaller "
            f"batches: an epoch has no step. Set batch={samples} or less, or drop_last=false."
        )
    if steps and stop is not None and stop > job.epochs * steps:
        raise ValueError(
            f"throughput.stop={stop} exceeds the run's {job.epochs * steps} steps ({job.epochs} epochs of {steps} "
            f"steps{per_rank}). Set throughput.stop={job.epochs * steps} or less, or epochs={math.ceil(stop / steps)} "
            "or more."
        )


def _epoch_parts(
    epochs: Sequence[Mapping[str, Any]], start: int, stop: int
) -> Iterator[tuple[Mapping[str, Any], int, int]]:
    """Yield each epoch that contains some of these steps, with the first and the end of them within the epoch."""
    before = 0
    for epoch in epochs:
        steps = int(epoch["metrics"]["epoch/steps"])
        first, last = max(0, start - before), min(steps, stop - before)
        if first < last:
            yield epoch, first, last
        before += steps
