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
from epochmeter.report.runs.data_source import FROM_CACHE, FROM_STORAGE, SYNTHETIC, is_script, mean
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT, Estimate
from epochmeter.results.bottleneck import IN_MEMORY
from epochmeter.results.intervals import half_width

ChangeKind = Literal["workers", "storage", "in memory", "prepared"]
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
        load_cpu_s: Measured processor time per epoch of loading, divided by the cores; None: that of preprocessing.
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
    load_cpu_s: float | None = None

    @property
    def prep_cpu_s(self) -> float:
        """Processor time of preprocessing per epoch, divided by the cores."""
        if self.load_cpu_s is not None:
            return self.load_cpu_s
        return self.steps * self.ranks * self.prep_s / self.cores if self.cores else 0.0

    @property
    def uses_all_cores(self) -> bool:
        return self.cores is not None and self.workers * self.ranks >= self.cores


@dataclass(frozen=True)
class Change:
    """The predicted time and energy per epoch after one change.

    Attributes:
        value: Workers per rank, speed-up of the storage, fraction of the dataset in memory, or of the preprocessing
            that is done in advance.
        epoch_s: An upper bound if the pipeline is not exact.
        saturated_s: The same if the storage cannot deliver more than it did; None if that makes no difference.
        interval_s: 95 % interval of the prediction by the repeats; None if it is a bound, or without repeats.
        interval_j: The same of the energy.
    """

    change: ChangeKind
    value: float
    epoch_s: float
    energy_j: float | None = None
    saturated_s: float | None = None
    interval_s: Estimate | None = None
    interval_j: Estimate | None = None

    @property
    def worst_s(self) -> float:
        return self.epoch_s if self.saturated_s is None else self.saturated_s


def pipeline_of(rows: Mapping[str, Sequence[Run]]) -> Pipeline | None:
    """Return the pipeline that explains the runs of a stall experiment; None if its workers are not known.

    If loading is the bottleneck, the time to load a batch follows from the time per epoch. If training hides it, it
    follows from the timers in the workers. Cold runs differ from warm ones by the time to fetch from storage. Without
    warm runs, nothing is known about fetching, and all of the load counts as preprocessing.
    """
    cold, warm = rows[FROM_STORAGE], rows.get(FROM_CACHE, rows[FROM_STORAGE])
    t1, t3, t2 = (mean(runs, "e2e_s") or 0.0 for runs in (rows[SYNTHETIC], warm, cold))
    configuration = Configuration(cold)
    known, cores, ranks = cold[0].loader or configuration.job, cold[0].cores, configuration.ranks
    workers = known.get("workers")
    if not isinstance(workers, int):
        return None
    steps = mean(cold, "steps")
    if not steps:
        global_batch = configuration.job["batch"] * configuration.processes
        steps = max(1.0, math.ceil((mean(cold, "samples") or 0.0) / global_batch))
    warm_timed_s, timed_s = (_timed_load_s(runs, steps * configuration.processes) for runs in (warm, cold))
    start_s, first_s = 0.0, mean(cold, "loader_start_s")
    if workers and not known.get("persistent_workers", True) and first_s is not None:
        load_s = _paced_load_s(t2, first_s, t1, steps, workers) if timed_s is None else timed_s
        start_s = max(0.0, first_s - load_s)
    cold_load = _load(t2 - start_s, t1, steps, workers, timed_s)
    warm_load = _load(t3 - start_s, t1, steps, workers, warm_timed_s)
    # More workers than cores wait for each other: their timers, too, are longer than the work.
    prep_s = warm_load.load_s * min(1.0, (cores or math.inf) / max(1, workers * ranks))
    fetches = (
        FROM_CACHE in rows
        and cold[0].medium not in IN_MEMORY
        and cold_load.load_s - warm_load.load_s > MIN_EFFECT * cold_load.load_s
    )
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
        load_cpu_s=_load_cpu_s(rows[SYNTHETIC], warm) if is_script(configuration.job) else None,
    )
    # Training uses the processor as on synthetic batches, as far as the measured epochs leave time for it.
    host_s = (mean(rows[SYNTHETIC], "cpu_utilization") or 0.0) * t1
    return replace(pipeline, host_s=max(0.0, min(host_s, min(t2, t3) - pipeline.prep_cpu_s)))


def epoch_s(
    pipeline: Pipeline, workers: int | None = None, faster: float = 1.0, cached: float = 0.0, prepared: float = 0.0
) -> float:
    """Predict the time per epoch with other workers, faster storage, or fractions of the data cached or preprocessed.

    Every epoch waits for its first batch, as torch's loader starts with empty queues. Then the slowest of workers,
    cores and device sets the pace. Without workers nothing overlaps.
    """
    workers = pipeline.workers if workers is None else workers
    load_s = pipeline.fetch_s * (1 - cached) / faster + pipeline.prep_s * (1 - prepared)
    if workers == 0:
        return pipeline.device_s + pipeline.steps * load_s
    rounds, last = _rounds(pipeline.steps, workers)
    pipelined_s = max(load_s + pipeline.device_s, rounds * load_s + last * pipeline.device_s / pipeline.steps)
    start_s = pipeline.start_s * workers / max(1, pipeline.workers)
    return start_s + max(pipelined_s, pipeline.host_s + pipeline.prep_cpu_s * (1 - prepared))


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
    changes.append(("prepared", 1.0, epoch_s(pipeline, prepared=1.0)))
    results = []
    for change, value, seconds in changes:
        energy_j = None if cold_j is None or wait_w is None else cold_j - wait_w * (pipeline.cold_s - seconds)
        is_limited = change == "workers" and value > pipeline.workers and least_s > (1 + MIN_EFFECT) * seconds
        results.append(Change(change, value, seconds, energy_j, least_s if is_limited else None))
    return results


def with_intervals(changes: Sequence[Change], rounds: Sequence[Sequence[Change]], *, exact: bool) -> list[Change]:
    """Return predictions with their intervals, by the same predictions from each round of runs."""
    if not exact or len(rounds) < 2:
        return [*changes]
    results = []
    for change, *of_rounds in zip(changes, *rounds, strict=True):
        interval_s = _around(change.epoch_s, [each.epoch_s for each in of_rounds])
        joules = [each.energy_j for each in of_rounds if each.energy_j is not None]
        is_complete = change.energy_j is not None and len(joules) == len(rounds)
        interval_j = _around(change.energy_j or 0.0, joules) if is_complete else None
        results.append(replace(change, interval_s=interval_s, interval_j=interval_j))
    return results


def _around(value: float, values: Sequence[float]) -> Estimate:
    half = half_width(values)
    return Estimate(value, value - half, value + half)


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


def _paced_load_s(seconds: float, first_s: float, device_s: float, steps: float, workers: int) -> float:
    """Return the time to load a batch if loading sets the pace, by an epoch and the wait for its first batch.

    The wait has the start of the workers in addition. It is the upper bound, and is returned if nothing else is known.
    """
    rounds, last = _rounds(steps, workers)
    if rounds < 2 or seconds - device_s <= MIN_EFFECT * seconds:
        return first_s
    return min(first_s, max(0.0, (seconds - first_s - last * device_s / steps) / (rounds - 1)))


def _load_cpu_s(ideal: Sequence[Run], loading: Sequence[Run]) -> float | None:
    """Return the processor time of loading per epoch, divided by the cores, which runs with an ideal loader lack."""
    used_s = []
    for runs in (ideal, loading):
        busy, others, e2e_s = (mean(runs, name) for name in ("cpu_utilization", "other_cpu_fraction", "e2e_s"))
        if busy is None or e2e_s is None:
            return None
        used_s.append((busy - (others or 0.0)) * e2e_s)
    return max(0.0, used_s[1] - used_s[0])


def _rounds(steps: float, workers: int) -> tuple[int, float]:
    """Return the batches of the busiest worker, and the steps of the last round."""
    rounds = math.ceil(steps / workers)
    return rounds, steps - workers * (rounds - 1)


def _timed_load_s(rows: Sequence[Run], batches: float) -> float | None:
    read_s, preprocess_s = mean(rows, "loader_read_s"), mean(rows, "loader_preprocess_s")
    return None if read_s is None or preprocess_s is None else (read_s + preprocess_s) / batches
