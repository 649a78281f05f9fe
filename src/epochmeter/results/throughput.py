"""Samples a second between two steps of a run, counted from 0 over all its epochs, as pure functions.

As the TBD suite asks for it (H. Zhu et al., Benchmarking and Analyzing Deep Neural Network Training, IISWC 2018), but
of the samples that there really were, and as a ratio of sums: a mean of the steps' rates is too high wherever their
times differ.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from epochmeter.config.schema import Job
from epochmeter.shared.record import INTERVALS

GAP, COPY, COMPUTE = (INTERVALS.index(name) for name in ("gap_s", "copy_s", "compute_s"))


class Throughput(NamedTuple):
    """What was measured between the two steps that a job names; nothing, and why, where it cannot be told."""

    metrics: Mapping[str, float] = MappingProxyType({})
    reason: str = ""


def throughput(windows: Sequence[Mapping[str, Any]], steps: array, job: Job) -> Throughput:
    """Of the steps from `throughput.start` up to, and without, `throughput.stop`.

    `windows` are a record's lines in order, `steps` the rows of its `steps.bin`. A step takes from the end of the one
    before to its own: what lies between epochs is in none.
    """
    start, stop = job.throughput.start, job.throughput.stop
    if start is None or stop is None:
        return Throughput()
    epochs = [window for window in windows if window["window"] == "epoch"]
    done = int(sum(epoch["metrics"]["epoch/steps"] for epoch in epochs))
    if done < stop:
        return Throughput(reason=f"the run ended after {done} steps, before throughput.stop={stop}.")
    samples = 0
    for epoch, first, last in _parts(epochs, start, stop):
        count = samples_of(epoch, job.batch, first, last)
        if count is None:
            return Throughput(reason=f"bad samples were skipped in epoch {epoch['epoch']}, of which step is not known.")
        samples += count
    width = len(INTERVALS)
    rows = steps[width * start : width * stop]
    seconds = math.fsum(part for column in (GAP, COPY, COMPUTE) for part in rows[column::width])
    found = {
        "samples_per_s": samples / seconds,
        "samples": samples,
        "steps": stop - start,
        "e2e_s": seconds,
        "step_mean_s": seconds / (stop - start),
    }
    return Throughput({f"throughput/{name}": value for name, value in found.items()})


def samples_of(epoch: Mapping[str, Any], batch: int, first: int, last: int) -> int | None:
    """Samples of all ranks in an epoch's steps from `first` up to `last`; None where skipped ones leave that open.

    But for the last of the epoch, which takes what is left, each rank takes `batch` a step.
    """
    metrics = epoch["metrics"]
    steps, seen = int(metrics["epoch/steps"]), int(metrics["epoch/samples"])
    if (first, last) == (0, steps):
        return seen
    if metrics.get("epoch/skipped_samples"):
        return None
    together = batch * epoch.get("ranks", 1)
    return seen - first * together if last == steps else (last - first) * together


def steps_an_epoch(count: int, batch: int, ranks: int, drop_last: bool) -> int:
    """Steps in which so many ranks, each with batches of its own, take `count` samples."""
    each = math.ceil(count / ranks)
    return each // batch if drop_last else math.ceil(each / batch)


def check_length(job: Job, count: int, ranks: int) -> None:
    """Refuses a run on `count` samples that has no step, or ends before the last that is asked for; ValueError."""
    stop = job.throughput.stop
    steps = steps_an_epoch(count, job.batch, ranks, job.drop_last)
    length = job.epochs * steps
    of_ranks = f" for each of {ranks} ranks" if ranks > 1 else ""
    if count and not steps:
        each = math.ceil(count / ranks)
        raise ValueError(
            f"batch={job.batch} is more than the {each} samples that there are{of_ranks}, and drop_last=true leaves "
            f"a smaller one out: no step is left. Set batch={each} or less, or drop_last=false."
        )
    if stop is None or stop <= length or not steps:
        return
    raise ValueError(
        f"throughput.stop={stop} lies beyond the run's end: its {job.epochs} epochs of {count} samples have {steps} "
        f"steps each with batch={job.batch}{of_ranks}, {length} in all. Set throughput.stop={length} or less, or "
        f"epochs={math.ceil(stop / steps)} or more."
    )


def _parts(epochs: Sequence[Mapping[str, Any]], start: int, stop: int) -> Iterator[tuple[Mapping[str, Any], int, int]]:
    """Each epoch that has some of these steps, with the first and the end of them as it counts its own."""
    before = 0
    for epoch in epochs:
        steps = int(epoch["metrics"]["epoch/steps"])
        first, last = max(0, start - before), min(steps, stop - before)
        if first < last:
            yield epoch, first, last
        before += steps
