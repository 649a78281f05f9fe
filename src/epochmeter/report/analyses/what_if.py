"""What-if: the time per epoch with other DataLoader workers, faster storage, or more of the dataset in the page cache.

After J. Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5), 2021, an epoch of D samples
takes D / min(R, G), with G the rate at which the device ingests synthetic batches and R the rate at which workers
prepare batches. A worker of torch's DataLoader reads a batch and then preprocesses it, one after the other, so W
workers give R = W / (t_fetch / k + t_prep) on storage k times as fast.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.data_source import CONDITIONS, FROM_CACHE, FROM_STORAGE, SYNTHETIC, mean
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT, Samples

FASTER = (2.0, 10.0)
"""Storage speed-ups that are predicted."""
CACHED = (0.25, 0.5, 0.75, 1.0)
"""Fractions of the dataset in the page cache that are predicted."""


@dataclass(frozen=True)
class Pipeline:
    """The measured pipeline of one rank: DataLoader workers that feed a device.

    Attributes:
        steps: Steps per epoch.
        device_s: Time per epoch of the device: T1, that on synthetic batches, or what it takes while workers run.
        cold_s: T2, the time per epoch with no data in the page cache.
        fetch_s: Time of one worker to read a batch from storage, beyond reading it from the page cache.
        prep_s: Time of one worker to preprocess a batch, reading it from the page cache included.
        workers: DataLoader workers of each rank.
        cores: Processor cores of a host, if known.
        ranks: Ranks on a host; their workers share its cores and its storage.
        start_s: Time per epoch to start the workers, if they do not persist between epochs.
        host_s: Processor time per epoch that is not preprocessing, divided by the cores.
        exact: Whether `fetch_s` and `prep_s` are known; else they are upper bounds, as training hides them.
    """

    steps: float
    device_s: float
    cold_s: float
    fetch_s: float
    prep_s: float
    workers: int
    cores: int | None = None
    ranks: int = 1
    start_s: float = 0.0
    host_s: float = 0.0
    exact: bool = True


@dataclass(frozen=True)
class Prediction:
    """The predicted time and energy per epoch after one change.

    Attributes:
        question: `workers`, `storage` or `in memory`.
        choice: The value, as text.
        epoch_s: Time per epoch.
        saturated_s: The same if the storage cannot deliver more than it did; None if that makes no difference.
        at_most: Whether `epoch_s` is an upper bound.
        energy_j: Energy per epoch, if it was measured.
    """

    question: str
    choice: str
    epoch_s: float
    saturated_s: float | None = None
    at_most: bool = False
    energy_j: float | None = None

    @property
    def worst_s(self) -> float:
        """The larger of the two predicted times, which holds even if the storage is saturated."""
        return self.epoch_s if self.saturated_s is None else self.saturated_s


def pipeline_of(rows: Mapping[str, Sequence[Run]], times: Samples) -> Pipeline:
    """Return the pipeline that explains the runs of a stall experiment.

    Where loading is the bottleneck, the time to load a batch follows from the time per epoch; where training hides it,
    from the timers in the workers. The difference between cold and warm runs is the time to fetch from storage.

    Args:
        rows: Condition -> its runs.
        times: Condition -> time per epoch of each run.
    """
    t1, t3, t2 = (statistics.fmean(times[name]) for name in CONDITIONS)
    cold = rows[FROM_STORAGE]
    configuration = Configuration(cold)
    workers, cores = configuration.job["workers"], cold[0].cores
    global_batch = configuration.job["batch"] * configuration.processes
    steps = mean(cold, "steps") or max(1.0, math.ceil((mean(cold, "samples") or 0.0) / global_batch))
    timers = {name: _timed_load_s(rows[name], steps * configuration.processes) for name in (FROM_CACHE, FROM_STORAGE)}
    start_s = _start_s(cold, timers[FROM_STORAGE]) if workers else 0.0
    loads = {
        name: _load(seconds - start_s, t1, steps, workers, timers[name])
        for name, seconds in {FROM_CACHE: t3, FROM_STORAGE: t2}.items()
    }
    load_s, warm_s = loads[FROM_STORAGE].load_s, loads[FROM_CACHE].load_s
    paced = [load.device_s for name in (FROM_STORAGE, FROM_CACHE) if (load := loads[name]).device_s is not None]
    # More workers than cores wait for each other: their timers, too, are longer than the work.
    prep_s = warm_s * min(1.0, (cores or math.inf) / max(1, workers * configuration.ranks))
    in_files = configuration.job["dataset"]["layout"] == "files"
    fetches = in_files and load_s - warm_s > MIN_EFFECT * load_s
    return Pipeline(
        steps=steps,
        device_s=paced[0] if paced else t1,
        cold_s=t2,
        fetch_s=load_s - prep_s if fetches else 0.0,
        prep_s=prep_s,
        workers=workers,
        cores=cores,
        ranks=configuration.ranks,
        start_s=start_s,
        host_s=_host_s(rows[SYNTHETIC], t1, min(t2, t3) - _prep_cpu_s(steps, prep_s, configuration.ranks, cores)),
        exact=all(load.exact for load in loads.values()),
    )


def epoch_s(pipeline: Pipeline, workers: int | None = None, faster: float = 1.0, cached: float = 0.0) -> float:
    """Predict the time per epoch.

    The first batch is waited for in every epoch, as torch's loader starts each with empty queues; then the slower of
    workers and device sets the pace. Without workers nothing overlaps.

    Args:
        pipeline: The measured pipeline.
        workers: DataLoader workers of each rank; those measured, if None.
        faster: Speed-up of the storage.
        cached: Fraction of the dataset in the page cache, 0 to 1.
    """
    workers = pipeline.workers if workers is None else workers
    load_s = pipeline.fetch_s * (1 - cached) / faster + pipeline.prep_s
    if workers == 0:
        return pipeline.device_s + pipeline.steps * load_s
    if pipeline.cores:  # each worker needs a core to preprocess
        load_s = max(load_s, pipeline.prep_s * workers * pipeline.ranks / pipeline.cores)
    step_s = pipeline.device_s / pipeline.steps
    rounds = math.ceil(pipeline.steps / workers)
    last = pipeline.steps - workers * (rounds - 1)
    pipelined_s = max(load_s + pipeline.device_s, rounds * load_s + last * step_s)
    cores_s = pipeline.host_s + _prep_cpu_s(pipeline.steps, pipeline.prep_s, pipeline.ranks, pipeline.cores)
    return pipeline.start_s * workers / max(1, pipeline.workers) + max(pipelined_s, cores_s)


def saturated_s(pipeline: Pipeline) -> float:
    """Return the time per epoch to read it from storage that is saturated by the workers as measured.

    A worker reads for part of its time, and meanwhile shares the storage with other workers that read. If the storage
    was saturated, its rate is the sum over all concurrent reads.
    """
    readers = max(1, pipeline.workers) * pipeline.ranks
    reading = min(1.0, pipeline.steps * pipeline.fetch_s / max(1, pipeline.workers) / pipeline.cold_s)
    return pipeline.steps * pipeline.ranks * pipeline.fetch_s / (1 + (readers - 1) * reading)


def fraction_without_stall(pipeline: Pipeline) -> float:
    """Return the fraction of the dataset in the page cache above which there is no fetch stall."""
    if not pipeline.fetch_s:
        return 0.0
    spare_s = pipeline.workers * pipeline.device_s / pipeline.steps - pipeline.prep_s
    return min(1.0, max(0.0, 1 - spare_s / pipeline.fetch_s))


def predictions(pipeline: Pipeline, energy: Callable[[float], float | None], storage: bool = True) -> list[Prediction]:
    """Predict what other workers, faster storage and a larger page cache would bring.

    Args:
        pipeline: The measured pipeline.
        energy: Time per epoch -> energy per epoch, None if it is not known.
        storage: Whether data is read from storage at all.
    """

    def predicted(question: str, choice: str, seconds: float, saturated: float | None = None) -> Prediction:
        return Prediction(question, choice, seconds, saturated, not pipeline.exact, energy(seconds))

    results = []
    for workers in _workers(pipeline):
        seconds = epoch_s(pipeline, workers)
        least_s = saturated_s(pipeline) if workers > pipeline.workers else 0.0
        limited = least_s > (1 + MIN_EFFECT) * seconds
        results.append(predicted("workers", str(workers), seconds, least_s if limited else None))
    if storage:
        results += [predicted("storage", f"{k:g} times as fast", epoch_s(pipeline, faster=k)) for k in FASTER]
        results += [predicted("in memory", f"{100 * x:.0f} %", epoch_s(pipeline, cached=x)) for x in CACHED]
    return results


class _Load(NamedTuple):
    """The loader's and the device's part in the time of an epoch.

    Attributes:
        load_s: Time of a worker to load a batch.
        device_s: Time per epoch of the device, if that sets the pace and the workers' timers are known.
        exact: Whether `load_s` is exact; else it is an upper bound.
    """

    load_s: float
    device_s: float | None = None
    exact: bool = True


def _load(seconds: float, device_s: float, steps: float, workers: int, timed_s: float | None) -> _Load:
    """Return the load time that explains a time per epoch: the inverse of `epoch_s`.

    If the device sets the pace, the workers' timers are more precise, and any time beyond theirs is the device's:
    workers that run take processor time from it, and it has to receive batches.
    """
    stall_s = max(0.0, seconds - device_s)
    if not workers:
        return _Load(stall_s / steps)
    rounds = math.ceil(steps / workers)
    last = steps - workers * (rounds - 1)
    paced_s = (max(seconds, device_s) - last * device_s / steps) / rounds
    matters = stall_s > MIN_EFFECT * seconds
    if timed_s is None:
        return _Load(min(paced_s, stall_s) if matters else paced_s, exact=matters)
    if matters and rounds * timed_s + last * device_s / steps > timed_s + device_s:
        return _Load(paced_s)
    return _Load(timed_s, seconds - timed_s)


def _timed_load_s(rows: Sequence[Run], batches: float) -> float | None:
    """Return the time that a worker took for a batch by its own timers; None if there are none."""
    read_s, preprocess_s = mean(rows, "loader_read_s"), mean(rows, "loader_preprocess_s")
    return None if read_s is None or preprocess_s is None else (read_s + preprocess_s) / batches


def _start_s(rows: Sequence[Run], timed_s: float | None) -> float:
    """Return how long an epoch waits for its first batch beyond loading it, while its workers start."""
    first_s = mean(rows, "loader_start_s")
    if rows[0].job.get("persistent_workers", True) or first_s is None or timed_s is None:
        return 0.0
    return max(0.0, first_s - timed_s)


def _host_s(rows: Sequence[Run], device_s: float, most_s: float) -> float:
    """Return the processor time of training itself, divided by the cores; at most `most_s`, as measured epochs show."""
    utilization = mean(rows, "cpu_utilization")
    return max(0.0, min((utilization or 0.0) * device_s, most_s))


def _prep_cpu_s(steps: float, prep_s: float, ranks: int, cores: int | None) -> float:
    """Return the processor time of preprocessing, divided by the cores."""
    return steps * ranks * prep_s / cores if cores else 0.0


def _workers(pipeline: Pipeline) -> list[int]:
    """Return numbers of workers of each rank: powers of two up to the cores, and the number measured."""
    used = max(1, pipeline.workers)
    most = max(1, pipeline.cores // pipeline.ranks) if pipeline.cores else 2 * used
    counts, count = {most, pipeline.workers}, 1
    while count < most:
        counts.add(count)
        count *= 2
    return sorted(count for count in counts if count > 0)
