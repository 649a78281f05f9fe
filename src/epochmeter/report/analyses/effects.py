"""Effects of one key at a time: strategy, model, batch size, and the first epoch.

They answer the questions of CSC's summer school, HPC and AI, whose demo trains ResNet-152 on CIFAR-100 on one GPU, with
DataParallel, and with DistributedDataParallel.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from epochmeter.report.runs.configuration import (
    DATA_PARALLEL,
    SINGLE,
    Configuration,
    groups,
    on_several_hosts,
    ratio_of,
    varied,
)
from epochmeter.report.statistics import MIN_EFFECT, Estimate, difference, mean

SPEED, MEMORY = "steady/samples_per_s", "steady/gpu_memory_peak_bytes"
FLOPS, PARAMETERS = "FLOPs", "parameters"
PARTS = {
    "loader start": ("loader_start_s", None),
    "waiting for data": ("data_stall_s", "loader_start_s"),
    "copies": ("copy_s", None),
    "compute": ("compute_s", None),
    "overhead": ("overhead_s", None),
}
"""Part of an epoch -> the metric that it is, and the one that is told apart from it."""


@dataclass(frozen=True)
class Use:
    """How busy a job keeps its devices, and their memory; absent what no driver tells."""

    title: str
    numbers: Sequence[int]
    utilized: str | None
    """What the utilization is that of: GPU, or the CPU's cores."""
    utilization: float | None
    power_w: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class MemoryGrowth:
    """Jobs that differ in one key alone, and the memory of a device of the least and of the most."""

    key: str
    title: str
    least: str
    most: str
    least_bytes: float
    most_bytes: float


@dataclass(frozen=True)
class StepCount:
    """Steps of an epoch beside those on one device with the same batch."""

    numbers: Sequence[int]
    strategy: str
    devices: int
    batch: int
    samples: float
    """Of an epoch on one device."""
    steps: float
    one_steps: float
    expected: int
    """By arithmetic: samples / (batch x ranks)."""
    drops_last: bool


@dataclass(frozen=True)
class DpVsDdp:
    """DistributedDataParallel beside DataParallel on as many devices."""

    title: str
    devices: int
    batch: int
    """What was asked for the DataParallel, which splits it."""
    distributed_batch: int
    """For each rank of the other."""
    alike: bool
    """Whether a step of both has the same samples."""
    speed: Estimate
    """Samples/s of DistributedDataParallel, as a multiple of DataParallel's."""
    more_s: Estimate | None
    """What a step of DataParallel takes more; None where the steps are not alike."""
    step_s: float | None
    """A step of DistributedDataParallel."""


@dataclass(frozen=True)
class SmallerModel:
    """A smaller model in place of a larger one; ratios are above 1 where it has less to do."""

    title: str
    small: str
    large: str
    speed: Estimate
    """Samples/s of the smaller, as a multiple."""
    parameters: float
    flops: float | None

    @property
    def nearer(self) -> str | None:
        """Which of the two the speed follows more nearly; None where one is not known, or both are as near."""
        if not self.flops:
            return None
        off = {
            name: abs(math.log(self.speed.value / expected))
            for name, expected in {FLOPS: self.flops, PARAMETERS: self.parameters}.items()
        }
        return None if math.isclose(*off.values()) else min(off, key=lambda name: off[name])


@dataclass(frozen=True)
class LargerBatch:
    """A larger batch in place of the next smaller one."""

    title: str
    less: int
    more: int
    speed: Estimate
    less_bytes: float | None
    more_bytes: float | None
    less_utilization: float | None
    more_utilization: float | None


@dataclass(frozen=True)
class FirstEpoch:
    """Epoch 0 beside the later ones, and where the difference lies."""

    title: str
    numbers: Sequence[int]
    first_s: float
    later_s: float
    more_s: Estimate
    parts_s: Mapping[str, float]
    """Part -> its share of the difference; parts that a run did not tell are absent."""

    @property
    def slower(self) -> bool:
        """Whether the difference matters, and is no chance."""
        return self.more_s.value > MIN_EFFECT * self.later_s and not self.more_s.contains(0)

    @property
    def most(self) -> str | None:
        """The part that the most of it lies in."""
        return max(self.parts_s, key=lambda part: self.parts_s[part]) if self.parts_s else None


def uses(configurations: Sequence[Configuration]) -> list[Use]:
    """For each job that tells of either."""
    results = []
    for configuration in configurations:
        gpu, cpu = (configuration.mean(f"steady/{name}_utilization") for name in ("gpu", "cpu"))
        utilized = "GPU" if gpu is not None else "CPU" if cpu is not None else None
        memory = configuration.mean(MEMORY)
        if utilized or memory is not None:
            power_w = configuration.mean("steady/power_mean_w")
            share = cpu if gpu is None else gpu
            results.append(
                Use(title(configuration, configurations), configuration.numbers, utilized, share, power_w, memory)
            )
    return results


def growths(configurations: Sequence[Configuration]) -> list[MemoryGrowth]:
    """For each key of the job in which points differ, and for each group that differs in nothing else."""
    measured = [configuration for configuration in configurations if configuration.mean(MEMORY)]
    results = []
    for key in (key for key in varied(measured) if "." not in key):
        for group in groups(measured, [key]):
            least, most = min(group, key=_memory), max(group, key=_memory)
            if _memory(most) > (1 + MIN_EFFECT) * _memory(least):
                sizes = _memory(least), _memory(most)
                results.append(
                    MemoryGrowth(key, title(least, configurations, key), least.value(key), most.value(key), *sizes)
                )
    return results


def iterations(configurations: Sequence[Configuration]) -> list[StepCount]:
    """For each job on several devices that one on one device with the same batch stands beside."""
    results = []
    for group in groups(configurations, ["strategy"]):
        one = next((configuration for configuration in group if configuration.strategy == SINGLE), None)
        samples, one_steps = (one.runs[0].samples, one.mean("steady/steps")) if one else (None, None)
        if samples is None or one_steps is None:
            continue
        for configuration in group:
            steps, devices = configuration.mean("steady/steps"), configuration.devices
            if devices and devices > 1 and steps is not None:
                batch, drops = configuration.job["batch"], bool(configuration.job.get("drop_last"))
                shares = 1 if configuration.strategy == DATA_PARALLEL else devices
                expected = (math.floor if drops else math.ceil)(math.ceil(samples / shares) / batch)
                counts = batch, samples, steps, one_steps, expected, drops
                results.append(StepCount(configuration.numbers, configuration.strategy, devices, *counts))
    return results


def parallels(configurations: Sequence[Configuration]) -> list[DpVsDdp]:
    """Each DataParallel beside DistributedDataParallel on as many devices, with the same samples a step.

    Where no two have that, those of the same batch, which the one splits and the other has for each rank.
    """
    results = []
    for group in groups(configurations, ["strategy", "batch"]):
        ranks = [configuration for configuration in group if configuration.strategy not in (SINGLE, DATA_PARALLEL)]
        pairs = [
            (configuration, other)
            for configuration in group
            for other in ranks
            if configuration.strategy == DATA_PARALLEL
            and (configuration.devices or 0) > 1
            and configuration.devices == other.devices
        ]
        same_global = [
            (configuration, other) for configuration, other in pairs if configuration.global_batch == other.global_batch
        ]
        same_batch = [
            (configuration, other) for configuration, other in pairs if configuration.job["batch"] == other.job["batch"]
        ]
        for configuration, other in same_global or same_batch:
            if speed := ratio_of(SPEED, other, configuration):
                results.append(
                    _parallels(configuration, other, speed, title(configuration, configurations, "strategy", "batch"))
                )
    return results


def smaller_models(configurations: Sequence[Configuration]) -> list[SmallerModel]:
    """For each two models next to each other in size, all else the same; on one device, if there is any."""
    results = []
    for group in groups(_plainest(configurations), ["model"]):
        by_size = sorted(
            (configuration for configuration in group if configuration.mean("model/parameters")), key=_parameters
        )
        for small, large in pairwise(by_size):
            speed = ratio_of(SPEED, small, large)
            if speed and _parameters(small) < _parameters(large):
                flops = ratio_of("model/flops_per_sample", large, small)
                results.append(
                    SmallerModel(
                        title(small, configurations, "model"),
                        small.value("model"),
                        large.value("model"),
                        speed,
                        _parameters(large) / _parameters(small),
                        flops.value if flops else None,
                    )
                )
    return results


def larger_batches(configurations: Sequence[Configuration]) -> list[LargerBatch]:
    """For each two batches next to each other, all else the same; on one device, if there is any."""
    results = []
    for group in groups(_plainest(configurations), ["batch"]):
        ordered = sorted(group, key=lambda configuration: configuration.job["batch"])
        for less, more in pairwise(ordered):
            speed = ratio_of(SPEED, more, less)
            if speed:
                batches = less.job["batch"], more.job["batch"]
                memory = less.mean(MEMORY), more.mean(MEMORY)
                busy = less.mean("steady/gpu_utilization"), more.mean("steady/gpu_utilization")
                results.append(LargerBatch(title(less, configurations, "batch"), *batches, speed, *memory, *busy))
    return results


def first_epochs(configurations: Sequence[Configuration]) -> list[FirstEpoch]:
    """For each job that had an epoch after its first and its warm-up."""
    results = []
    for configuration in configurations:
        since = max(1, configuration.job["warmup_epochs"])
        pairs = [pair for row in configuration.runs if (pair := _first_and_later(row.epochs, since))]
        if len(pairs) < len(configuration.runs):
            continue
        firsts, laters, parts = zip(*(_parts_of_difference(*pair) for pair in pairs), strict=True)
        more = mean([first - later for first, later in zip(firsts, laters, strict=True)])
        common = [part for part in PARTS if all(part in run_parts for run_parts in parts)]
        shares = {part: statistics.fmean(run_parts[part] for run_parts in parts) for part in common}
        means = statistics.fmean(firsts), statistics.fmean(laters)
        results.append(FirstEpoch(title(configuration, configurations), configuration.numbers, *means, more, shares))
    return results


def title(configuration: Configuration, configurations: Sequence[Configuration], *excluded: str) -> str:
    """How a point is called among the others, less what is told of it anyway: its model, and in what they differ."""
    keys = [key for key in dict.fromkeys(["model", *varied(configurations)]) if key not in excluded]
    return configuration.named(keys, on_several_hosts(configurations))


def _parallels(dp: Configuration, ddp: Configuration, speed: Estimate, named: str) -> DpVsDdp:
    is_same_work = ddp.global_batch == dp.global_batch
    steps = [configuration.per_step("e2e_s") for configuration in (dp, ddp)]
    return DpVsDdp(
        named,
        dp.devices or 1,
        dp.job["batch"],
        ddp.job["batch"],
        is_same_work,
        speed,
        difference(*steps) if is_same_work and all(steps) else None,
        mean(steps[1]).value if steps[1] else None,
    )


def _plainest(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Those on one device where there are any that differ, and else all: an exchange between devices blurs the rest."""
    ones = [configuration for configuration in configurations if configuration.strategy == SINGLE]
    return ones if len(ones) > 1 else list(configurations)


def _memory(configuration: Configuration) -> float:
    return configuration.mean(MEMORY) or 0.0


def _parameters(configuration: Configuration) -> float:
    return configuration.mean("model/parameters") or 0.0


def _first_and_later(
    epochs: Mapping[int, Mapping[str, float]], since: int
) -> tuple[Mapping[str, float], Sequence[Mapping[str, float]]] | None:
    """A run's epoch 0 and those from one on; None where it lacks either, or the time of any."""
    later = [metrics for number, metrics in epochs.items() if number >= since]
    if 0 not in epochs or not later or any("epoch/e2e_s" not in epoch for epoch in (epochs[0], *later)):
        return None
    return epochs[0], later


def _parts_of_difference(
    first: Mapping[str, float], later: Sequence[Mapping[str, float]]
) -> tuple[float, float, dict[str, float]]:
    """Seconds of a run's first epoch and of its later ones, and the difference by parts."""
    parts = {}
    for part, (name, less) in PARTS.items():
        epochs_s = [_seconds(epoch, name, less) for epoch in (first, *later)]
        measured_s = [seconds for seconds in epochs_s if seconds is not None]
        if len(measured_s) == len(epochs_s):
            parts[part] = measured_s[0] - statistics.fmean(measured_s[1:])
    return first["epoch/e2e_s"], statistics.fmean(epoch["epoch/e2e_s"] for epoch in later), parts


def _seconds(epoch: Mapping[str, float], name: str, less: str | None) -> float | None:
    if f"epoch/{name}" not in epoch:
        return None
    return epoch[f"epoch/{name}"] - (epoch.get(f"epoch/{less}", 0.0) if less else 0.0)
