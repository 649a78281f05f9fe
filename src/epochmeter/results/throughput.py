"""Throughput in samples per second between two steps, which are counted from 0 over all epochs.

As in the TBD suite (H. Zhu et al., Benchmarking and Analyzing Deep Neural Network Training, IISWC 2018), but from the
actual number of samples, and as a ratio of sums: a mean of per-step rates is too high if step times vary.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from epochmeter.config.errors import input_error
from epochmeter.config.schema import Job
from epochmeter.shared.record import INTERVALS

GAP, COPY, COMPUTE = (INTERVALS.index(name) for name in ("gap_s", "copy_s", "compute_s"))


def measure_throughput(windows: Sequence[Mapping[str, Any]], steps: array, job: Job) -> tuple[dict[str, float], str]:
    """Return the metrics of the steps from `throughput.start` up to, but excluding, `throughput.stop`.

    A step lasts from the end of the previous step to its own end; time between epochs belongs to no step.

    Returns:
        The `throughput/` metrics, and the reason if they are configured and cannot be computed.
    """
    start, stop = job.throughput.start, job.throughput.stop
    if start is None or stop is None:
        return {}, ""
    samples: list[int | None] = []
    for epoch in (window for window in windows if window["window"] == "epoch"):
        samples += _step_samples(epoch, job.batch, range(start - len(samples), stop - len(samples)))
    if len(samples) < stop:
        return {}, f"the run ended after {len(samples)} steps, before throughput.stop={stop}."
    counts = [count for count in samples[start:stop] if count is not None]
    if len(counts) < stop - start:
        return {}, "bad samples were skipped in an unknown step."
    width = len(INTERVALS)
    rows = steps[width * start : width * stop]
    seconds = math.fsum(part for column in (GAP, COPY, COMPUTE) for part in rows[column::width])
    metrics = {
        "samples_per_s": sum(counts) / seconds,
        "samples": sum(counts),
        "steps": stop - start,
        "e2e_s": seconds,
        "step_mean_s": seconds / (stop - start),
    }
    return {f"throughput/{name}": value for name, value in metrics.items()}, ""


def _step_samples(epoch: Mapping[str, Any], batch: int, used: range) -> list[int | None]:
    """Return the samples of all ranks per step: `batch` per rank, and the rest in the last step.

    They are unknown (None) if samples were skipped and not all steps of the epoch are used.
    """
    metrics = epoch["metrics"]
    steps, samples = int(metrics["epoch/steps"]), int(metrics["epoch/samples"])
    if metrics.get("epoch/skipped_samples") and not (used.start <= 0 and steps <= used.stop):
        return [None] * steps
    global_batch = batch * epoch.get("ranks", 1)
    return [*[global_batch] * (steps - 1), samples - (steps - 1) * global_batch]


def check_length(job: Job, count: int, ranks: int) -> None:
    """Refuse a run on `count` samples that has no step, or ends before `throughput.stop`; raises InputError."""
    stop, samples = job.throughput.stop, math.ceil(count / ranks)
    steps = samples // job.batch if job.drop_last else math.ceil(samples / job.batch)
    per_rank = f" per rank ({ranks} ranks)" if ranks > 1 else ""
    if count and not steps:
        raise input_error(
            f"`batch={job.batch}` exceeds the {samples} training samples{per_rank}, and `drop_last=true` drops smaller "
            "batches: an epoch has no step",
            f"set batch={samples} or less, or drop_last=false",
        )
    if steps and stop is not None and stop > job.epochs * steps:
        raise input_error(
            f"`throughput.stop={stop}` exceeds the run's {job.epochs * steps} steps: {job.epochs} epochs of {steps} "
            f"steps{per_rank}",
            f"set throughput.stop={job.epochs * steps} or less, or epochs={math.ceil(stop / steps)} or more",
        )
