"""Answers to seven questions on strategies, models and batch sizes.

They are the questions of CSC's summer school, HPC and AI, whose demo trains ResNet-152 on CIFAR-100 on one GPU, with
DataParallel, and with DistributedDataParallel.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from epochmeter.config.schema import SCRIPT
from epochmeter.report.analyses.ratios import Ratios
from epochmeter.report.analyses.scaling import MEMORY, SPEED, WEAK, Scaling
from epochmeter.report.runs.configuration import (
    DATA_PARALLEL,
    DISTRIBUTED,
    SINGLE,
    Configuration,
    groups,
    on_several_hosts,
    varied,
)
from epochmeter.report.statistics import MIN_EFFECT, Estimate, mean
from epochmeter.results.power_share import FRACTION

METRICS = {"memory_bytes": MEMORY, "gpu_utilization": "steady/gpu_utilization", "steps": "steady/steps",
           "parameters": "model/parameters", "flops": "model/flops_per_sample"}  # fmt: skip
"""Name in an effect -> metric."""
PARTS = {"loader_start": "loader_start_s", "data_stall": "data_stall_s", "copies": "copy_s", "compute": "compute_s",
         "overhead": "overhead_s"}  # fmt: skip
"""Part of an epoch -> its metric; the data stall here excludes the start of the loader."""
Pair = tuple[Configuration, Configuration]
"""The configuration compared with, and the other one."""


@dataclass(frozen=True)
class DeviceUse:
    """Use of a configuration's devices (`GPU` or `CPU`); quantities that no driver reports are absent.

    The memory is that of a GPU, or else of the processes, which on a board is the memory of its GPU as well.
    """

    title: str
    numbers: Sequence[int]
    utilized: str | None
    utilization: float | None
    power_w: float | None
    memory_bytes: float | None
    power_of_limit: float | None = None


@dataclass(frozen=True)
class Effect:
    """The effect of one key: a configuration compared with a base, all else (the title) equal.

    Attributes:
        speed: Samples/s, as a multiple of the base's; None if not measured.
        means: Name in `METRICS` -> means of the base and of the value, if both are known.
        same_work: Whether a step of both has the same number of samples.
    """

    title: str
    base: str
    value: str
    speed: Estimate | None
    means: Mapping[str, tuple[float, float]]
    same_work: bool


@dataclass(frozen=True)
class FirstEpoch:
    """The first epoch compared with the steady ones; a part that was not measured has no share of the difference."""

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
    """Answers from the runs; models are compared with the next larger one, batch sizes with the next smaller one."""

    devices: Sequence[DeviceUse]
    memory: Sequence[Effect]
    first_epochs: Sequence[FirstEpoch]
    steps: Sequence[Effect]
    overhead: Sequence[Scaling]
    dp: Sequence[Effect]
    models: Sequence[Effect]
    batches: Sequence[Effect]
    has_single_runs: bool


def analyze(every: Sequence[Configuration], scaled: Sequence[Scaling]) -> Questions | None:
    """Answer the questions; None without a training on several devices or a run of the lumi study.

    Args:
        every: All configurations.
        scaled: The results of `scaling.analyze` for them.
    """
    runs = (run for configuration in every for run in configuration.runs)
    is_study = any(run.keys.get("experiment", "").startswith("lumi/") for run in runs)
    if not is_study and all(configuration.strategy in (SINGLE, SCRIPT) for configuration in every):
        return None
    ranks = [result for result in scaled if result.strategy == DISTRIBUTED]
    names, several_hosts = dict.fromkeys(["model", *varied(every)]), on_several_hosts(every)
    speeds = Ratios({configuration: configuration.values(SPEED) for configuration in every})
    singles = [configuration for configuration in every if configuration.strategy == SINGLE]
    alone = singles if len(singles) > 1 else every

    def title(configuration: Configuration, *excluded: str) -> str:
        return configuration.named([name for name in names if name not in excluded], several_hosts)

    def effects(keys: Sequence[str], pairs: Iterable[Pair]) -> list[Effect]:
        return [_effect(title(base, *keys), keys, base, other, speeds) for base, other in pairs]

    def neighbors(key: str, order: Callable[[Configuration], float]) -> list[Effect]:
        return [effect for effect in effects([key], _neighbors(groups(alone, [key]), order)) if effect.speed]

    return Questions(
        devices=[use for configuration in every if (use := _device_use(configuration, title(configuration)))],
        memory=[effect for key, pair in _memory_growths(every) for effect in effects([key], [pair])],
        first_epochs=[
            first_epoch for configuration in every if (first_epoch := _first_epoch(configuration, title(configuration)))
        ],
        steps=[effect for effect in effects(["strategy"], _one_and_several(every)) if "steps" in effect.means],
        overhead=[result for result in ranks if result.kind == WEAK] or ranks,
        dp=[effect for effect in effects(["strategy", "batch"], _dp_and_ddp(every)) if effect.speed],
        models=neighbors("model", lambda configuration: -(configuration.mean(METRICS["parameters"]) or 0.0)),
        batches=neighbors("batch", lambda configuration: configuration.job.get("batch") or 0),
        has_single_runs=any(len(configuration.runs) == 1 for configuration in every),
    )


def _device_use(configuration: Configuration, title: str) -> DeviceUse | None:
    """Return the use of a configuration's devices; None if neither utilization nor memory is reported."""
    use = {name: configuration.mean(f"steady/{name.lower()}_utilization") for name in ("GPU", "CPU")}
    utilized = next((name for name, fraction in use.items() if fraction is not None), None)
    power_w, power_of_limit = configuration.mean("steady/power_mean_w"), configuration.mean(FRACTION)
    memory_bytes = configuration.mean(MEMORY) or configuration.mean("steady/process_memory_bytes")
    if utilized is None and memory_bytes is None:
        return None
    utilization = use[utilized] if utilized else None
    return DeviceUse(title, configuration.numbers, utilized, utilization, power_w, memory_bytes, power_of_limit)


def _memory_growths(configurations: Sequence[Configuration]) -> Iterator[tuple[str, Pair]]:
    """Yield each key that increases the memory, with the pair of the largest growth."""
    sizes = {configuration: size for configuration in configurations if (size := configuration.mean(MEMORY))}
    for key in (key for key in varied([*sizes]) if "." not in key):
        ordered = [sorted(group, key=sizes.__getitem__) for group in groups([*sizes], [key])]
        pairs = [(group[0], group[-1]) for group in ordered]
        least, most = max(pairs, key=lambda pair: sizes[pair[1]] / sizes[pair[0]])
        if sizes[most] > (1 + MIN_EFFECT) * sizes[least]:
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
        dps, ddps = (
            [configuration for configuration in several if configuration.strategy == name]
            for name in (DATA_PARALLEL, DISTRIBUTED)
        )
        pairs = [(dp, ddp) for dp in dps for ddp in ddps if dp.devices == ddp.devices]
        same_work = [(dp, ddp) for dp, ddp in pairs if dp.global_batch == ddp.global_batch]
        yield from same_work or [(dp, ddp) for dp, ddp in pairs if dp.job.get("batch") == ddp.job.get("batch")]


def _neighbors(together: Iterable[Sequence[Configuration]], order: Callable[[Configuration], float]) -> Iterator[Pair]:
    """Yield each configuration of a group with the one before it in an order; 0 is not known."""
    for group in together:
        ordered = sorted(filter(order, group), key=order)
        yield from (pair for pair in pairwise(ordered) if order(pair[0]) != order(pair[1]))


def _effect(title: str, keys: Sequence[str], base: Configuration, other: Configuration, speeds: Ratios) -> Effect:
    pairs = {name: (base.mean(metric), other.mean(metric)) for name, metric in METRICS.items()}
    means = {name: (old, new) for name, (old, new) in pairs.items() if old is not None and new is not None}
    same_work = base.global_batch == other.global_batch
    return Effect(title, base.named(keys), other.named(keys), speeds.between(other, base), means, same_work)


def _first_epoch(configuration: Configuration, title: str) -> FirstEpoch | None:
    """Compare the first epoch with the steady ones; None unless it is a warm-up epoch and all runs have both."""
    firsts = [run.epochs.get(0, {}) for run in configuration.runs]
    pairs = [(first, run.metrics) for first, run in zip(firsts, configuration.runs, strict=True)]

    def longer(name: str) -> list[float]:
        if any(f"epoch/{name}" not in first or f"steady/{name}" not in steady for first, steady in pairs):
            return []
        return [first[f"epoch/{name}"] - steady[f"steady/{name}"] for first, steady in pairs]

    e2e_s = longer("e2e_s")
    if not (e2e_s and configuration.job.get("warmup_epochs")):
        return None
    parts_s = {part: statistics.fmean(values) for part, name in PARTS.items() if (values := longer(name))}
    if "data_stall" in parts_s:
        parts_s["data_stall"] -= parts_s.get("loader_start", 0.0)
    later_s = statistics.fmean(configuration.values("steady/e2e_s"))
    first_s = statistics.fmean(first["epoch/e2e_s"] for first in firsts)
    return FirstEpoch(title, configuration.numbers, first_s, later_s, mean(e2e_s), parts_s)
