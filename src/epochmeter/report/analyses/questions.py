"""Answers to seven questions on strategies, models and batch sizes.

They are the questions of CSC's summer school, HPC and AI, whose demo trains ResNet-152 on CIFAR-100 on one GPU, with
DataParallel, and with DistributedDataParallel.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from epochmeter.report.analyses import scaling
from epochmeter.report.analyses.ratios import Ratios
from epochmeter.report.analyses.scaling import WEAK, Scaling
from epochmeter.report.runs.configuration import (
    DATA_PARALLEL,
    DISTRIBUTED,
    SINGLE,
    Configuration,
    group_repeats,
    groups,
    on_several_hosts,
    varied,
)
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT, Estimate, mean

SPEED, MEMORY, PARAMETERS = "steady/samples_per_s", "steady/gpu_memory_peak_bytes", "model/parameters"
METRICS = {
    "memory_bytes": MEMORY,
    "gpu_utilization": "steady/gpu_utilization",
    "steps": "steady/steps",
    "parameters": PARAMETERS,
    "flops": "model/flops_per_sample",
}
"""Name in an effect -> metric."""
E2E = "e2e"
PARTS = {
    E2E: ("e2e_s", None),
    "loader_start": ("loader_start_s", None),
    "data_stall": ("data_stall_s", "loader_start_s"),
    "copies": ("copy_s", None),
    "compute": ("compute_s", None),
    "overhead": ("overhead_s", None),
}
"""Part of an epoch, and all of it -> its metric, and a metric that is subtracted from it."""
Pair = tuple[Configuration, Configuration]
"""The configuration compared with, and the other one."""


@dataclass(frozen=True)
class DeviceUse:
    """Utilization, power and memory of a configuration's devices; quantities that no driver reports are absent.

    Attributes:
        utilized: `GPU` or `CPU`.
        memory_bytes: Peak memory of the device that uses most.
    """

    title: str
    numbers: Sequence[int]
    utilized: str | None
    utilization: float | None
    power_w: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class Effect:
    """The effect of one key: a configuration compared with another one, all else equal.

    Attributes:
        title: The keys that both have in common.
        base: The value compared with: `batch 64`.
        value: The other value: `batch 128`.
        speed: Samples/s, as a multiple of the base's; None if not measured.
        means: Name in `METRICS` -> means of the base and of the value, if both are known.
        same_work: Whether a step of both has the same number of samples.
    """

    key: str
    title: str
    base: str
    value: str
    speed: Estimate | None
    means: Mapping[str, tuple[float, float]]
    same_work: bool


@dataclass(frozen=True)
class FirstEpoch:
    """The first epoch compared with the steady ones.

    Attributes:
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
    def largest_part(self) -> str:
        """The part with the largest share of the difference; empty if none was measured."""
        return max(self.parts_s, key=lambda part: self.parts_s[part], default="")


@dataclass(frozen=True)
class Questions:
    """What the runs answer; empty where they do not.

    Attributes:
        steps: Steps on several devices compared with one.
        overhead: Scaling of DistributedDataParallel.
        dp: DistributedDataParallel compared with DataParallel on the same number of devices.
        models: Each model compared with the next larger one.
        batches: Each batch size compared with the next smaller one.
        has_single_runs: Whether a configuration ran once, and so has no interval.
    """

    devices: Sequence[DeviceUse]
    memory: Sequence[Effect]
    first_epochs: Sequence[FirstEpoch]
    steps: Sequence[Effect]
    overhead: Sequence[Scaling]
    dp: Sequence[Effect]
    models: Sequence[Effect]
    batches: Sequence[Effect]
    has_single_runs: bool


def analyze(rows: Sequence[Run]) -> Questions | None:
    """Answer the questions; None if no run has a strategy other than `single` or is part of the lumi study."""
    configurations = group_repeats(rows)
    is_study = any(row.keys.get("experiment", "").startswith("lumi/") for row in rows)
    if not is_study and all(configuration.strategy == SINGLE for configuration in configurations):
        return None
    compared = result.compared if (result := scaling.analyze(rows)) else []
    ranks = [result for result in compared if result.strategy == DISTRIBUTED]
    first_epochs = [_first_epoch(configuration, configurations) for configuration in configurations]
    sized = [configuration for configuration in configurations if configuration.mean(PARAMETERS)]
    speeds = Ratios.of_metric(SPEED, configurations)
    models = _neighbors("model", sized, lambda configuration: -(configuration.mean(PARAMETERS) or 0.0))
    batches = _neighbors("batch", configurations, lambda configuration: configuration.job["batch"])

    def effects(keys: Sequence[str], pairs: Iterable[Pair]) -> list[Effect]:
        return [_effect(keys, *pair, configurations, speeds) for pair in pairs]

    return Questions(
        devices=_device_uses(configurations),
        memory=[effect for key, pair in _memory_growths(configurations) for effect in effects([key], [pair])],
        first_epochs=[entry for entry in first_epochs if entry],
        steps=[effect for effect in effects(["strategy"], _one_and_several(configurations)) if "steps" in effect.means],
        overhead=[result for result in ranks if result.kind == WEAK] or ranks,
        dp=[effect for effect in effects(["strategy", "batch"], _dp_and_ddp(configurations)) if effect.speed],
        models=[effect for effect in effects(["model"], models) if effect.speed],
        batches=[effect for effect in effects(["batch"], batches) if effect.speed],
        has_single_runs=any(len(configuration.runs) == 1 for configuration in configurations),
    )


def _device_uses(configurations: Sequence[Configuration]) -> list[DeviceUse]:
    """Return the device use of each configuration that reports utilization or memory."""
    results = []
    for configuration in configurations:
        gpu, cpu = (configuration.mean(f"steady/{name}_utilization") for name in ("gpu", "cpu"))
        utilized = "GPU" if gpu is not None else "CPU" if cpu is not None else None
        memory_bytes = configuration.mean(MEMORY)
        if utilized or memory_bytes is not None:
            title, power_w = _title(configuration, configurations), configuration.mean("steady/power_mean_w")
            utilization = cpu if gpu is None else gpu
            results.append(DeviceUse(title, configuration.numbers, utilized, utilization, power_w, memory_bytes))
    return results


def _memory_growths(configurations: Sequence[Configuration]) -> Iterator[tuple[str, Pair]]:
    """Yield each key that increases the memory, with the pair of the largest growth."""
    measured = [configuration for configuration in configurations if configuration.mean(MEMORY)]
    for key in (key for key in varied(measured) if "." not in key):
        pairs = [(min(group, key=_memory), max(group, key=_memory)) for group in groups(measured, [key])]
        least, most = max(pairs, key=lambda pair: _memory(pair[1]) / _memory(pair[0]))
        if _memory(most) > (1 + MIN_EFFECT) * _memory(least):
            yield key, (least, most)


def _one_and_several(configurations: Sequence[Configuration]) -> Iterator[Pair]:
    """Yield one device and several devices with the same batch size."""
    for group in groups(configurations, ["strategy"]):
        ones = [configuration for configuration in group if configuration.strategy == SINGLE]
        yield from ((one, several) for one in ones[:1] for several in group if (several.devices or 1) > 1)


def _dp_and_ddp(configurations: Sequence[Configuration]) -> Iterator[Pair]:
    """Yield DataParallel and DistributedDataParallel at the same global batch size, else at the same batch size."""
    for group in groups(configurations, ["strategy", "batch"]):
        several = [configuration for configuration in group if (configuration.devices or 1) > 1]
        dps, ddps = ([entry for entry in several if entry.strategy == name] for name in (DATA_PARALLEL, DISTRIBUTED))
        pairs = [(dp, ddp) for dp in dps for ddp in ddps if dp.devices == ddp.devices]
        same_work = [(dp, ddp) for dp, ddp in pairs if dp.global_batch == ddp.global_batch]
        yield from same_work or [(dp, ddp) for dp, ddp in pairs if dp.job["batch"] == ddp.job["batch"]]


def _neighbors(
    key: str, configurations: Sequence[Configuration], order: Callable[[Configuration], float]
) -> Iterator[Pair]:
    """Yield each configuration with the one before it in an order, all else equal; on one device, if possible."""
    ones = [configuration for configuration in configurations if configuration.strategy == SINGLE]
    for group in groups(ones if len(ones) > 1 else configurations, [key]):
        yield from (pair for pair in pairwise(sorted(group, key=order)) if order(pair[0]) != order(pair[1]))


def _effect(
    keys: Sequence[str],
    base: Configuration,
    other: Configuration,
    configurations: Sequence[Configuration],
    speeds: Ratios,
) -> Effect:
    """Compare two of the configurations that differ in these keys."""
    pairs = {name: (base.mean(metric), other.mean(metric)) for name, metric in METRICS.items()}
    return Effect(
        keys[0],
        _title(base, configurations, *keys),
        base.named(keys),
        other.named(keys),
        speeds.between(other, base),
        {name: (old, new) for name, (old, new) in pairs.items() if old is not None and new is not None},
        same_work=base.global_batch == other.global_batch,
    )


def _first_epoch(configuration: Configuration, configurations: Sequence[Configuration]) -> FirstEpoch | None:
    """Compare the first epoch with the steady ones; None unless all runs have both."""
    since = max(1, configuration.job["warmup_epochs"])
    firsts, laters = [], []
    for run in configuration.runs:
        firsts.append([metrics for number, metrics in run.epochs.items() if number == 0])
        laters.append([metrics for number, metrics in run.epochs.items() if number >= since])
    means = {part: [[_mean_part(epochs, part) for epochs in side] for side in (firsts, laters)] for part in PARTS}
    differences = {
        part: [first - later for first, later in zip(*sides, strict=True) if first is not None and later is not None]
        for part, sides in means.items()
    }
    complete = {part: values for part, values in differences.items() if len(values) == len(configuration.runs)}
    if E2E not in complete:
        return None
    first_s, later_s = (statistics.fmean(seconds for seconds in side if seconds is not None) for side in means[E2E])
    more_s = mean(complete.pop(E2E))
    parts_s = {part: statistics.fmean(values) for part, values in complete.items()}
    title = _title(configuration, configurations)
    return FirstEpoch(title, configuration.numbers, first_s, later_s, more_s, parts_s)


def _mean_part(epochs: Sequence[Mapping[str, float]], part: str) -> float | None:
    """Return the mean time of a part of the epochs; None if there are none, or if it was not measured in all."""
    name, less = PARTS[part]
    if not epochs or any(f"epoch/{name}" not in epoch for epoch in epochs):
        return None
    return statistics.fmean(epoch[f"epoch/{name}"] - epoch.get(f"epoch/{less}", 0.0) for epoch in epochs)


def _title(configuration: Configuration, configurations: Sequence[Configuration], *excluded: str) -> str:
    """Return a title of a configuration: its model and the keys in which the configurations differ."""
    keys = [key for key in dict.fromkeys(["model", *varied(configurations)]) if key not in excluded]
    return configuration.named(keys, on_several_hosts(configurations))


def _memory(configuration: Configuration) -> float:
    return configuration.mean(MEMORY) or 0.0
