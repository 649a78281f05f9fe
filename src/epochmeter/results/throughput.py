"""Throughput in samples per second between two steps, which are counted from 0 over all epochs.

As in the TBD suite (H. Zhu et al., Benchmarking and Analyzing Deep Neural Network Training, IISWC 2018), but from the
actual number of samples, and as a ratio of sums. A mean of per-step rates is too high if step times vary.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from epochmeter.config.schema import Job
from epochmeter.results.summary import step_durations
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import INTERVALS
from epochmeter.shared.types import FloatArray


def measure_throughput(
    windows: Sequence[Mapping[str, Any]], steps: FloatArray, job: Job
) -> tuple[dict[str, float], str]:
    """Return the metrics of the steps from `throughput.start` up to, but excluding, `throughput.stop`.

    Time between epochs belongs to no step. If samples were skipped, those of a step are known only if all steps of the
    epoch are used. The second value is the reason if metrics are configured and cannot be computed.
    """
    start, stop = job.throughput.start, job.throughput.stop
    if start is None or stop is None:
        return {}, ""
    samples: list[float] = []
    for window in (window for window in windows if window["window"] == "epoch"):
        metrics, begin = window["metrics"], len(samples)
        count, global_batch = int(metrics["epoch/steps"]), job.batch * window.get("ranks", 1)
        if metrics.get("epoch/skipped_samples") and not start <= begin <= begin + count <= stop:
            samples += [math.nan] * count
        else:
            samples += [global_batch] * (count - 1) + [int(metrics["epoch/samples"]) - (count - 1) * global_batch]
    if len(samples) < stop:
        return {}, f"the run ended after {len(samples)} steps, before throughput.stop={stop}."
    total = sum(samples[start:stop])
    if math.isnan(total):
        return {}, "bad samples were skipped in an unknown step."
    seconds = math.fsum(step_durations(steps[len(INTERVALS) * start : len(INTERVALS) * stop]))
    count = stop - start
    values = {"samples_per_s": total / seconds, "samples": total, "steps": count, "e2e_s": seconds}
    return {f"throughput/{name}": value for name, value in {**values, "step_mean_s": seconds / count}.items()}, ""


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
