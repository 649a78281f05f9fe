"""Suggest the next runs: commands that change the bottleneck of the best configurations and were not run yet."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from epochmeter.report.analyses.best import Best
from epochmeter.report.analyses.bottleneck import EpochBreakdown
from epochmeter.report.formatting import plural
from epochmeter.report.runs.configuration import DATA_PARALLEL, REPEATED, Configuration
from epochmeter.report.runs.costs import LIMIT, costs, positive_values
from epochmeter.results.bottleneck import (
    COMPUTE,
    COPY,
    DATA_STALL,
    FETCH_STALL,
    OVERHEAD,
    PREP_STALL,
    STALLS,
    Bottleneck,
    part_name,
    percent,
)

PROGRAM = "python src/train.py"
OWN = (*REPEATED, "tracking", "sweep", "hydra")
"""Overrides that are not part of the configuration."""
MAX_COMMANDS = 4
"""Half of them for time and half for energy, without repeats."""
MAX_EXTRA = 2
"""Configurations of a sweep of repeats, as a multiple of those that are to be repeated."""
LOWER = 0.75
"""The next power limit, as a fraction of the lowest power or limit so far."""
AMPERE = {
    "GPU": re.compile(r"\b(?:[ABHL]\d|G[BH]\d|RTX [345]0[5-9]0)"),
    "board": re.compile("Orin|Thor"),
}
"""Names of devices with the tensor cores of Ampere or newer: `A100`, `L40S`, `GH200`, `RTX 3090`."""


@dataclass(frozen=True)
class Suggestion:
    """A command, and the reason why it may help."""

    command: str
    why: str


def suggest_runs(
    configurations: Sequence[Configuration], choices: Sequence[Best], breakdowns: Sequence[EpochBreakdown]
) -> list[Suggestion]:
    """Suggest runs that may be faster, then runs that may need less energy, then repeats; none that was run."""
    breakdown_of = {id(breakdown.configuration): breakdown for breakdown in breakdowns}
    suggestions: dict[str, Suggestion] = {}
    for name, ways in (("fastest", _faster), ("least_energy", _save_energy)):
        choice = next((choice for choice in choices if choice.name == name), None)
        breakdown = breakdown_of.get(id(choice.configuration)) if choice else None
        if not breakdown:
            continue
        best = breakdown.configuration
        same_model = [other for other in configurations if other.value("model") == best.value("model")]
        new = (way for way in ways(breakdown, same_model) if not _was_run(*way[:2], same_model))
        for key, value, why in itertools.islice(new, MAX_COMMANDS // 2):
            command = command_line(best, {key: value})
            suggestions.setdefault(command, Suggestion(command, why))
    for again in _more_repeats(choices):
        suggestions.setdefault(again.command, again)
    return list(suggestions.values())


def command_line(configuration: Configuration, changed: Mapping[str, str], multirun: bool = False) -> str:
    """Return the shell command of a configuration with some keys changed."""
    added = {key.lstrip("+"): key for key in configuration.runs[0].added}
    words = [
        shlex.quote(f"{added.get(key, key)}={value}") for key, value in {**_keys(configuration), **changed}.items()
    ]
    return " ".join([PROGRAM, *(["-m"] if multirun else []), *words])


def _faster(breakdown: EpochBreakdown, configurations: Sequence[Configuration]) -> Iterator[tuple[str, str, str]]:
    """Yield a key, its new value and the reason, the most promising first."""
    job, bottleneck = breakdown.configuration.job, breakdown.bottleneck
    largest = bottleneck.parts[0]
    share = f"{percent(bottleneck.fractions[largest])} of the epoch"
    if bottleneck.data_stall >= bottleneck.fractions[largest]:  # one stall, or prep and fetch stall together
        if _waits_for_workers(breakdown.configuration):
            yield "persistent_workers", "true", "the DataLoader workers are started again for every epoch"
        yield from _faster_data(breakdown.configuration, bottleneck)
    elif largest == COMPUTE:
        why = f"compute takes {share}"
        if precision := _halved(breakdown.configuration):
            yield "precision", precision, f"{why}, in 32 bits"
        yield "batch", _doubled("batch", configurations), f"{why}: larger batches may use the device better"
        if not job.get("compile", True) and _compiles(breakdown.configuration):
            yield "compile", "true", f"{why}: compiled kernels may be fewer and faster"
    elif largest == COPY:
        if job.get("pin_memory") is False:
            yield "pin_memory", "true", f"copies take {share}, from memory that is not pinned"
        yield "batch", _doubled("batch", configurations), f"copies take {share}: larger ones are fewer"
    elif largest == OVERHEAD:
        if job.get("timing") == "synchronous":
            yield "timing", "deferred", f"overhead takes {share}, and the host waits for each step"
        yield "batch", _doubled("batch", configurations), f"overhead takes {share}: larger batches are fewer"


def _halved(configuration: Configuration) -> str | None:
    """Return the 16-bit precision for a GPU that computes in 32 bits: bf16 if supported; None if there is none."""
    job, ran_on = configuration.job, configuration.runs[0].platform
    accelerated = (job.get("device") or {}).get("accelerator", "cpu") != "cpu"
    if not accelerated or job.get("precision") != "fp32" or configuration.strategy == DATA_PARALLEL:
        return None
    return "bf16" if any(names.search(ran_on.get(kind, "")) for kind, names in AMPERE.items()) else "fp16"


def _compiles(configuration: Configuration) -> bool:
    """Whether the run's torch has torch.compile: 2.0 or newer."""
    release = re.match(r"\d+", configuration.runs[0].platform.get("torch", ""))
    return bool(release and int(release[0]) >= 2)


def _faster_data(configuration: Configuration, bottleneck: Bottleneck) -> Iterator[tuple[str, str, str]]:
    """Yield changes that shorten the data stalls, by the larger one of them."""
    job, stall = configuration.job, max(STALLS, key=lambda part: bottleneck.fractions.get(part, 0.0))
    mostly = "" if stall == DATA_STALL else f", mostly {part_name(stall)}"
    waits = f"data stalls take {percent(bottleneck.data_stall)} of the epoch{mostly}"
    in_files = (job.get("dataset") or {}).get("layout") == "files"
    if stall == FETCH_STALL and in_files:
        if job.get("cache") not in ("warm", None):
            yield "cache", "warm", f"{waits}: data that fits in memory is then read from the page cache"
        if (job.get("storage") or {}).get("name") != "nvme":
            yield "storage", "nvme", f"{waits}: an NVMe disk, if there is one (storage.root=)"
    workers, cores = job.get("workers"), configuration.runs[0].cores
    most = math.inf if cores is None else cores // configuration.ranks
    if isinstance(workers, int) and workers < most:
        more = min(max(1, 2 * workers), most)
        yield "workers", str(more), f"{waits}: more DataLoader workers load more batches at a time"
    if stall == PREP_STALL and in_files:
        yield "dataset.layout", "memory", f"{waits}: images in memory are decoded already"
    if workers:
        yield "prefetch", str(2 * job.get("prefetch", 2)), f"{waits}: more batches in the queue absorb variation"


def _save_energy(breakdown: EpochBreakdown, configurations: Sequence[Configuration]) -> Iterator[tuple[str, str, str]]:
    """Yield a lower power limit if the least energy was at the lowest, or on a GPU without a limit."""
    configuration = breakdown.configuration
    largest = breakdown.bottleneck.parts[0]
    slows = "" if largest == COMPUTE else f", and {part_name(largest)} is its bottleneck, which a limit hardly slows"
    limits = [watts for configuration in configurations for watts in positive_values(configuration, LIMIT)]
    device = configuration.job.get("device") or {}
    if limits and min(limits) in positive_values(configuration, LIMIT):
        why = f"the least energy was found at the lowest limit that was tried{slows}"
        yield "power_limit", _lower(min(limits)), why
    elif not limits and device.get("accelerator", "cpu") != "cpu" and not device.get("rails"):  # a board has modes
        (power_w,) = [cost.power_w for cost in costs([configuration])] or [None]
        if power_w:
            yield "power_limit", _lower(power_w / (configuration.devices or 1)), f"no power limit was tried{slows}"


def _lower(power_w: float) -> str:
    """Return a lower power limit in round watts."""
    return str(10 * max(1, math.floor(LOWER * power_w / 10)))


def _more_repeats(choices: Sequence[Best]) -> Iterator[Suggestion]:
    """Yield more repeats of the fastest and its ties on the same host, in one sweep over the keys that differ."""
    fastest = next((choice for choice in choices if choice.name == "fastest"), None)
    if not fastest:
        return
    every = [fastest.configuration, *(tie.configuration for tie, _ in fastest.ties)]
    tied = [configuration for configuration in every if configuration.host == fastest.configuration.host]
    keys = [_keys(configuration) for configuration in tied]
    axes = {key: list(dict.fromkeys(words.get(key) for words in keys)) for key in dict.fromkeys(itertools.chain(*keys))}
    axes = {key: values for key, values in axes.items() if len(values) > 1}
    is_small = math.prod(map(len, axes.values())) <= MAX_EXTRA * len(tied)
    if len(tied) > 1 and is_small and not any(None in values for values in axes.values()):
        repeats = str(max(3, 2 * max(len(configuration.runs) for configuration in tied)))
        changed = {key: ",".join(map(str, values)) for key, values in axes.items()}
        command = command_line(tied[0], {**changed, "sweep.repeats": repeats, "sweep.order": "random"}, multirun=True)
        others = plural(len(tied) - 1, "other is", "others are")
        yield Suggestion(command, f"{others} not significantly slower than the fastest")


def _keys(configuration: Configuration) -> dict[str, str]:
    """Return the overrides of a configuration."""
    return {key: value for key, value in configuration.runs[0].keys.items() if key.partition(".")[0] not in OWN}


def _doubled(key: str, configurations: Sequence[Configuration]) -> str:
    return str(2 * max(int(configuration.job[key]) for configuration in configurations))


def _was_run(key: str, value: str, configurations: Sequence[Configuration]) -> bool:
    """Whether any of the configurations has this value."""
    top, _, below = key.partition(".")
    for configuration in configurations:
        current = (configuration.job.get(top) or {}).get(below) if below else configuration.value(top)
        if str(current).strip('"') == value:
            return True
    return False


def _waits_for_workers(configuration: Configuration) -> bool:
    """Whether most of the data stall is the start of DataLoader workers in every epoch."""
    stall_s, start_s = (configuration.mean(f"steady/{name}_s") or 0.0 for name in ("data_stall", "loader_start"))
    return not configuration.job.get("persistent_workers", True) and start_s > stall_s / 2
