"""What-if: the time per epoch with other DataLoader workers, faster storage, or more of the dataset in the page cache.

After J. Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5), 2021, an epoch of D samples
takes D / min(R, G). G is the rate at which the device ingests synthetic batches, and R the rate at which workers
prepare batches. A worker of torch's DataLoader reads a batch and then preprocesses it. Therefore W workers give
R = W / (t_fetch / k + t_prep) on storage k times as fast.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.data_source import FROM_CACHE, FROM_STORAGE, SYNTHETIC, mean
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT
from epochmeter.results.bottleneck import IN_MEMORY

ChangeKind = Literal["workers", "storage", "in memory"]
FASTER, CACHED = (2.0, 10.0), (0.25, 0.5, 0.75, 1.0)
"""Storage speed-ups, and fractions of the dataset in the page cache, that are predicted."""


@dataclass(frozen=True)
class Pipeline:
    """The measured pipeline of one rank: DataLoader workers that feed a device.

    Attributes:
        device_s: Time per epoch of the device: that on synthetic batches, or its time while workers run.
        cold_s: Time per epoch with no data in the page cache.
        fetch_s: Time of one worker to read a batch from storage, beyond reading it from the page cache.
        prep_s: Time of one worker to preprocess a batch, reading it from the page cache included.
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

    @property
    def prep_cpu_s(self) -> float:
        """Processor time of preprocessing per epoch, divided by the cores."""
        return self.steps * self.ranks * self.prep_s / self.cores if self.cores else 0.0

    @property
    def uses_all_cores(self) -> bool:
        return self.cores is not None and self.workers * self.ranks >= self.cores


@dataclass(frozen=True)
class Change:
    """The predicted time and energy per epoch after one change.

    Attributes:
        value: Workers per rank, speed-up of the storage, or fraction of the dataset in memory.
        epoch_s: An upper bound if the pipeline is not exact.
        saturated_s: The same if the storage cannot deliver more than it did; None if that makes no difference.
    """

    change: ChangeKind
    value: float
    epoch_s: float
    energy_j: float | None = None
    saturated_s: float | None = None

    @property
    def worst_s(self) -> float:
        return self.epoch_s if self.saturated_s is None else self.saturated_s


def pipeline_of(rows: Mapping[str, Sequence[Run]]) -> Pipeline:
    """Return the pipeline that explains the runs of a stall experiment.

    If loading is the bottleneck, the time to load a batch follows from the time per epoch. If training hides it, it
    follows from the timers in the workers. Cold runs differ from warm ones by the time to fetch from storage.
    """
    t1, t3, t2 = (mean(rows[name], "e2e_s") or 0.0 for name in (SYNTHETIC, FROM_CACHE, FROM_STORAGE))
    cold = rows[FROM_STORAGE]
    configuration = Configuration(cold)
    workers, cores, ranks = configuration.job["workers"], cold[0].cores, configuration.ranks
    global_batch = configuration.job["batch"] * configuration.processes
    steps = mean(cold, "steps") or max(1.0, math.ceil((mean(cold, "samples") or 0.0) / global_batch))
    warm_timed_s, timed_s = (
        _timed_load_s(rows[name], steps * configuration.processes) for name in (FROM_CACHE, FROM_STORAGE)
    )
    start_s, first_s = 0.0, mean(cold, "loader_start_s")
    if workers and not configuration.job.get("persistent_workers", True) and None not in (first_s, timed_s):
        start_s = max(0.0, (first_s or 0.0) - (timed_s or 0.0))
    cold_load = _load(t2 - start_s, t1, steps, workers, timed_s)
    warm_load = _load(t3 - start_s, t1, steps, workers, warm_timed_s)
    # More workers than cores wait for each other: their timers, too, are longer than the work.
    prep_s = warm_load.load_s * min(1.0, (cores or math.inf) / max(1, workers * ranks))
    fetches = cold[0].medium not in IN_MEMORY and cold_load.load_s - warm_load.load_s > MIN_EFFECT * cold_load.load_s
    pipeline = Pipeline(
        steps=steps,
        device_s=next((load.device_s for load in (cold_load, warm_load) if load.device_s is not None), t1),
        cold_s=t2,
        fetch_s=cold_load.load_s - prep_s if fetches else 0.0,
        prep_s=prep_s,
        workers=workers,
        cores=cores,
        ranks=ranks,
        start_s=start_s,
        exact=cold_load.exact and warm_load.exact,
    )
    # Training uses the processor as on synthetic batches, as far as the measured epochs leave time for it.
    host_s = (mean(rows[SYNTHETIC], "cpu_utilization") or 0.0) * t1
    return replace(pipeline, host_s=max(0.0, min(host_s, min(t2, t3) - pipeline.prep_cpu_s)))


def epoch_s(pipeline: Pipeline, workers: int | None = None, faster: float = 1.0, cached: float = 0.0) -> float:
    """Predict the time per epoch with other workers, faster storage, or a fraction of the dataset in the page cache.

    Every epoch waits for its first batch, as torch's loader starts with empty queues. Then the slowest of workers,
    cores and device sets the pace. Without workers nothing overlaps.
    """
    workers = pipeline.workers if workers is None else workers
    load_s = pipeline.fetch_s * (1 - cached) / faster + pipeline.prep_s
    if workers == 0:
        return pipeline.device_s + pipeline.steps * load_s
    rounds, last = _rounds(pipeline.steps, workers)
    pipelined_s = max(load_s + pipeline.device_s, rounds * load_s + last * pipeline.device_s / pipeline.steps)
    start_s = pipeline.start_s * workers / max(1, pipeline.workers)
    return start_s + max(pipelined_s, pipeline.host_s + pipeline.prep_cpu_s)


def saturated_s(pipeline: Pipeline) -> float:
    """Return the time per epoch on storage that is saturated by the measured workers.

    A worker reads for part of its time, and shares the storage with others that read: the rate is the sum over these.
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


def predictions(
    pipeline: Pipeline, storage: bool = True, cold_j: float | None = None, wait_w: float | None = None
) -> list[Change]:
    """Predict the effect of other workers and, if data is read from storage, of faster storage and a larger page cache.

    Energy follows from the energy without cached data, and from the power that a shorter wait saves.
    """
    least_s, cores = saturated_s(pipeline), pipeline.cores or 2 * max(1, pipeline.workers) * pipeline.ranks
    most = max(1, cores // pipeline.ranks)
    counts = sorted({*(2**power for power in range(most.bit_length())), most, pipeline.workers or most})
    changes: list[tuple[ChangeKind, float, float]] = [("workers", count, epoch_s(pipeline, count)) for count in counts]
    if storage:
        changes += [("storage", factor, epoch_s(pipeline, faster=factor)) for factor in FASTER]
        changes += [("in memory", fraction, epoch_s(pipeline, cached=fraction)) for fraction in CACHED]
    results = []
    for change, value, seconds in changes:
        energy_j = None if cold_j is None or wait_w is None else cold_j - wait_w * (pipeline.cold_s - seconds)
        is_limited = change == "workers" and value > pipeline.workers and least_s > (1 + MIN_EFFECT) * seconds
        results.append(Change(change, value, seconds, energy_j, least_s if is_limited else None))
    return results


class _Load(NamedTuple):
    """Time of a worker to load a batch, an upper bound unless `exact`, and of the device if it sets the pace."""

    load_s: float
    device_s: float | None = None
    exact: bool = True


def _load(seconds: float, device_s: float, steps: float, workers: int, timed_s: float | None) -> _Load:
    """Return the load time that explains a time per epoch: the inverse of `epoch_s`.

    If the device sets the pace, the workers' timers are more precise, and any time beyond theirs is the device's.
    """
    stall_s = max(0.0, seconds - device_s)
    if not workers:
        return _Load(stall_s / steps)
    rounds, last = _rounds(steps, workers)
    paced_s = (max(seconds, device_s) - last * device_s / steps) / rounds
    matters = stall_s > MIN_EFFECT * seconds
    if timed_s is None:
        return _Load(min(paced_s, stall_s) if matters else paced_s, exact=matters)
    if matters and rounds * timed_s + last * device_s / steps > timed_s + device_s:
        return _Load(paced_s)
    return _Load(timed_s, seconds - timed_s)


def _rounds(steps: float, workers: int) -> tuple[int, float]:
    """Return the batches of the busiest worker, and the steps of the last round."""
    rounds = math.ceil(steps / workers)
    return rounds, steps - workers * (rounds - 1)


def _timed_load_s(rows: Sequence[Run], batches: float) -> float | None:
    read_s, preprocess_s = mean(rows, "loader_read_s"), mean(rows, "loader_preprocess_s")
    return None if read_s is None or preprocess_s is None else (read_s + preprocess_s) / batches
