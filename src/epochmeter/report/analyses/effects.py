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
"""Part of an epoch -> its metric, and a metric that is subtracted from it."""


@dataclass(frozen=True)
class DeviceUse:
    """Utilization, power and memory of a configuration's devices; quantities that no driver reports are absent.

    Attributes:
        utilized: `GPU` or `CPU`.
        utilization: Mean utilization, 0 to 1.
        memory_bytes: Peak memory of the device that uses most.
    """

    title: str
    numbers: Sequence[int]
    utilized: str | None
    utilization: float | None
    power_w: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class MemoryGrowth:
    """Peak device memory of configurations that differ in one key only: the least and the most, with their values."""

    key: str
    title: str
    least: str
    most: str
    least_bytes: float
    most_bytes: float


@dataclass(frozen=True)
class StepCount:
    """Steps per epoch on several devices, compared with one device and the same batch size.

    Attributes:
        samples: Training samples per epoch on one device.
        steps: Steps per epoch and rank.
        one_steps: Steps per epoch on one device.
        expected: Expected steps: samples / (batch x ranks), rounded.
    """

    numbers: Sequence[int]
    strategy: str
    devices: int
    batch: int
    samples: float
    steps: float
    one_steps: float
    expected: int
    drops_last: bool


@dataclass(frozen=True)
class DpVsDdp:
    """DistributedDataParallel compared with DataParallel on the same number of devices.

    Attributes:
        batch: Batch size of DataParallel, which splits it.
        distributed_batch: Batch size of each rank of DistributedDataParallel.
        same_global_batch: Whether a step of both has the same number of samples.
        speed: Samples/s of DistributedDataParallel, as a multiple of DataParallel's.
        more_s: Additional time of a DataParallel step; None if the global batch sizes differ.
        step_s: Time of a DistributedDataParallel step.
    """

    title: str
    devices: int
    batch: int
    distributed_batch: int
    same_global_batch: bool
    speed: Estimate
    more_s: Estimate | None
    step_s: float | None


@dataclass(frozen=True)
class SmallerModel:
    """A smaller model compared with the next larger one.

    Attributes:
        speed: Samples/s of the smaller model, as a multiple.
        parameters: Parameters of the larger model, as a multiple.
        flops: Training FLOPs per sample of the larger model, as a multiple, if known.
    """

    title: str
    small: str
    large: str
    speed: Estimate
    parameters: float
    flops: float | None

    @property
    def nearer(self) -> str | None:
        """`FLOPs` or `parameters`, whichever ratio is nearer to the speed; None if unknown or equally near."""
        if not self.flops:
            return None
        off = {
            name: abs(math.log(self.speed.value / expected))
            for name, expected in {FLOPS: self.flops, PARAMETERS: self.parameters}.items()
        }
        return None if math.isclose(*off.values()) else min(off, key=lambda name: off[name])


@dataclass(frozen=True)
class LargerBatch:
    """A batch size compared with the next smaller one; `speed` is samples/s as a multiple."""

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
    """The first epoch compared with the steady ones.

    Attributes:
        first_s: Time of the first epoch.
        later_s: Mean time of the steady epochs.
        more_s: Their difference.
        parts_s: Part of the epoch -> its share of the difference; parts that were not measured are absent.
    """

    title: str
    numbers: Sequence[int]
    first_s: float
    later_s: float
    more_s: Estimate
    parts_s: Mapping[str, float]

    @property
    def is_slower(self) -> bool:
        """Whether the first epoch is significantly slower, by more than `MIN_EFFECT`."""
        return self.more_s.value > MIN_EFFECT * self.later_s and not self.more_s.contains(0)

    @property
    def largest_part(self) -> str | None:
        """The part with the largest share of the difference."""
        return max(self.parts_s, key=lambda part: self.parts_s[part]) if self.parts_s else None


def device_uses(configurations: Sequence[Configuration]) -> list[DeviceUse]:
    """Return the device use of each configuration that reports utilization or memory."""
    results = []
    for configuration in configurations:
        gpu, cpu = (configuration.mean(f"steady/{name}_utilization") for name in ("gpu", "cpu"))
        utilized = "GPU" if gpu is not None else "CPU" if cpu is not None else None
        memory = configuration.mean(MEMORY)
        if utilized or memory is not None:
            power_w = configuration.mean("steady/power_mean_w")
            share = cpu if gpu is None else gpu
            results.append(
                DeviceUse(title(configuration, configurations), configuration.numbers, utilized, share, power_w, memory)
            )
    return results


def memory_growths(configurations: Sequence[Configuration]) -> list[MemoryGrowth]:
    """Return the memory growth by each key, for each group of configurations that differ in this key only."""
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


def step_counts(configurations: Sequence[Configuration]) -> list[StepCount]:
    """Return the steps of configurations on several devices, if there is one on one device with the same batch."""
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


def dp_vs_ddp(configurations: Sequence[Configuration]) -> list[DpVsDdp]:
    """Compare DataParallel with DistributedDataParallel on the same number of devices.

    Pairs have the same global batch size or, if there is no such pair, the same configured batch size.
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
                    _dp_vs_ddp(configuration, other, speed, title(configuration, configurations, "strategy", "batch"))
                )
    return results


def smaller_models(configurations: Sequence[Configuration]) -> list[SmallerModel]:
    """Compare each model with the next larger one, all else equal; on one device, if possible."""
    results = []
    for group in groups(_single_device(configurations), ["model"]):
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
    """Compare each batch size with the next smaller one, all else equal; on one device, if possible."""
    results = []
    for group in groups(_single_device(configurations), ["batch"]):
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
    """Return the first epoch of each configuration that also has steady epochs."""
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
    """Return a title of a configuration: its model and the keys in which the configurations differ."""
    keys = [key for key in dict.fromkeys(["model", *varied(configurations)]) if key not in excluded]
    return configuration.named(keys, on_several_hosts(configurations))


def _dp_vs_ddp(dp: Configuration, ddp: Configuration, speed: Estimate, named: str) -> DpVsDdp:
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


def _single_device(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return the configurations on one device if there are several, else all: communication adds to the time."""
    ones = [configuration for configuration in configurations if configuration.strategy == SINGLE]
    return ones if len(ones) > 1 else list(configurations)


def _memory(configuration: Configuration) -> float:
    return configuration.mean(MEMORY) or 0.0


def _parameters(configuration: Configuration) -> float:
    return configuration.mean("model/parameters") or 0.0


def _first_and_later(
    epochs: Mapping[int, Mapping[str, float]], since: int
) -> tuple[Mapping[str, float], Sequence[Mapping[str, float]]] | None:
    """Return a run's first epoch and those from `since` on; None if either is missing or has no time."""
    later = [metrics for number, metrics in epochs.items() if number >= since]
    if 0 not in epochs or not later or any("epoch/e2e_s" not in epoch for epoch in (epochs[0], *later)):
        return None
    return epochs[0], later


def _parts_of_difference(
    first: Mapping[str, float], later: Sequence[Mapping[str, float]]
) -> tuple[float, float, dict[str, float]]:
    """Return the times of a run's first epoch and of its later ones, and the difference by parts."""
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
