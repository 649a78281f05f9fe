"""Suggest the next runs: commands that change the bottleneck of the best configurations and were not run yet."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from epochmeter.report.analyses.best import Best
from epochmeter.report.analyses.epoch_breakdown import EpochBreakdown
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

PROGRAM, REPORT = "python src/train.py", "python src/report.py"
OWN = (*REPEATED, "tracking", "sweep", "hydra")
"""Overrides that are not part of the configuration."""
MAX_COMMANDS = 4
"""Half of them for time and half for energy, without repeats."""
MAX_REPEATED = 3
"""Configurations to repeat, if each needs its own command."""
LOWER = 0.75
"""The next power limit, as a fraction of the lowest power or limit so far."""
AMPERE = {
    "GPU": re.compile(r"\b(?:[ABHL]\d|G[BH]\d|RTX [345]0[5-9]0)"),
    "board": re.compile("Orin|Thor"),
}
"""Names of devices with the tensor cores of Ampere or newer: `A100`, `L40S`, `GH200`, `RTX 3090`."""
MIN_START = 0.5
"""Fraction of the data stall from which on the start of the DataLoader workers is the cause."""


@dataclass(frozen=True)
class Suggestion:
    """A command, and the reason why it may help."""

    command: str
    why: str


def suggest_runs(
    points: Sequence[Configuration], choices: Sequence[Best], bounds: Sequence[EpochBreakdown]
) -> list[Suggestion]:
    """Suggest runs that may be faster, then runs that may need less energy, then repeats; none that was run."""
    known = {id(bound.point): bound for bound in bounds}
    found: dict[str, Suggestion] = {}
    for name, ways in (("fastest", _faster), ("least_energy", _save_energy)):
        choice = next((choice for choice in choices if choice.name == name), None)
        bound = known.get(id(choice.point)) if choice else None
        if choice and bound:
            alike = [point for point in points if point.value("model") == choice.point.value("model")]
            asked = ((key, value, why) for key, value, why in ways(bound, alike) if not _was_run(key, value, alike))
            for key, value, why in itertools.islice(asked, MAX_COMMANDS // 2):
                command = typed(choice.point, {key: value})
                found.setdefault(command, Suggestion(command, why))
    for again in _more_repeats(choices):
        found.setdefault(again.command, again)
    return list(found.values())


def typed(point: Configuration, changed: Mapping[str, str], multirun: bool = False) -> str:
    """Return the shell command of a configuration with some keys changed."""
    added = {key.lstrip("+"): key for key in point.runs[0].added}
    words = [shlex.quote(f"{added.get(key, key)}={value}") for key, value in {**_keys(point), **changed}.items()]
    return " ".join([PROGRAM, *(["-m"] if multirun else []), *words])


def _faster(bound: EpochBreakdown, points: Sequence[Configuration]) -> Iterator[tuple[str, str, str]]:
    """Yield a key, its new value and the reason, the most promising first."""
    job, found = bound.point.job, bound.bottleneck
    largest = found.parts[0]
    share = f"{percent(found.fractions[largest])} of the epoch"
    if found.data_stall >= found.fractions[largest]:  # one stall, or prep and fetch stall together
        if _starts(bound.point) and not job.get("persistent_workers", True):
            yield "persistent_workers", "true", "the DataLoader workers are started again for every epoch"
        yield from _faster_data(bound.point, found)
    elif largest == COMPUTE:
        why = f"compute takes {share}"
        if precision := _halved(bound.point):
            yield "precision", precision, f"{why}, in 32 bits"
        yield "batch", _doubled("batch", points), f"{why}: larger batches may use the device better"
        if not job.get("compile", True) and _compiles(bound.point):
            yield "compile", "true", f"{why}: compiled kernels may be fewer and faster"
    elif largest == COPY:
        if job.get("pin_memory") is False:
            yield "pin_memory", "true", f"copies take {share}, from memory that is not pinned"
        yield "batch", _doubled("batch", points), f"copies take {share}: larger ones are fewer"
    elif largest == OVERHEAD:
        if job.get("timing") == "synchronous":
            yield "timing", "deferred", f"overhead takes {share}, and the host waits for each step"
        yield "batch", _doubled("batch", points), f"overhead takes {share}: larger batches are fewer"


def _halved(point: Configuration) -> str | None:
    """Return the 16-bit precision for a GPU that computes in 32 bits: bf16 if supported; None if there is none."""
    job, ran_on = point.job, point.runs[0].platform
    accelerated = (job.get("device") or {}).get("accelerator", "cpu") != "cpu"
    if not accelerated or job.get("precision") != "fp32" or point.strategy == DATA_PARALLEL:
        return None
    return "bf16" if any(names.search(ran_on.get(kind, "")) for kind, names in AMPERE.items()) else "fp16"


def _compiles(point: Configuration) -> bool:
    """Whether the run's torch has torch.compile: 2.0 or newer."""
    release = re.match(r"\d+", point.runs[0].platform.get("torch", ""))
    return bool(release and int(release[0]) >= 2)


def _faster_data(point: Configuration, found: Bottleneck) -> Iterator[tuple[str, str, str]]:
    """Yield changes that shorten the data stalls, by the larger one of them."""
    job, stall = point.job, max(STALLS, key=lambda part: found.fractions.get(part, 0.0))
    mostly = "" if stall == DATA_STALL else f", mostly {part_name(stall)}"
    waits = f"data stalls take {percent(found.data_stall)} of the epoch{mostly}"
    in_files = (job.get("dataset") or {}).get("layout") == "files"
    if stall == FETCH_STALL and in_files:
        if job.get("cache") not in ("warm", None):
            yield "cache", "warm", f"{waits}: data that fits in memory is then read from the page cache"
        if (job.get("storage") or {}).get("name") != "nvme":
            yield "storage", "nvme", f"{waits}: an NVMe disk, if there is one (storage.root=)"
    workers, cores = job.get("workers"), point.runs[0].cores
    most = math.inf if cores is None else cores // point.ranks
    if isinstance(workers, int) and workers < most:
        more = min(max(1, 2 * workers), most)
        yield "workers", str(more), f"{waits}: more DataLoader workers load more batches at a time"
    if stall == PREP_STALL and in_files:
        yield "dataset.layout", "memory", f"{waits}: images in memory are decoded already"
    if workers:
        yield "prefetch", str(2 * job.get("prefetch", 2)), f"{waits}: more batches in the queue absorb variation"


def _save_energy(bound: EpochBreakdown, points: Sequence[Configuration]) -> Iterator[tuple[str, str, str]]:
    """Yield a lower power limit if the least energy was at the lowest, or on a GPU without a limit."""
    point = bound.point
    largest = bound.bottleneck.parts[0]
    slows = "" if largest == COMPUTE else f", and {part_name(largest)} is its bottleneck, which a limit hardly slows"
    limits = [watts for each in points for watts in positive_values(each, LIMIT)]
    device = point.job.get("device") or {}
    if limits and min(limits) in positive_values(point, LIMIT):
        why = f"the least energy was found at the lowest limit that was tried{slows}"
        yield "power_limit", _lower(min(limits)), why
    elif not limits and device.get("accelerator", "cpu") != "cpu" and not device.get("rails"):  # a board has modes
        (power_w,) = [cost.power_w for cost in costs([point])] or [None]
        if power_w:
            yield "power_limit", _lower(power_w / (point.devices or 1)), f"no power limit was tried{slows}"


def _lower(power_w: float) -> str:
    """Return a lower power limit in round watts."""
    return str(10 * max(1, math.floor(LOWER * power_w / 10)))


def _more_repeats(choices: Sequence[Best]) -> Iterator[Suggestion]:
    """Yield more repeats of the fastest and its ties on the same host.

    They are one sweep if their keys make a grid, else one sweep per configuration and a report of all.
    """
    fastest = next((choice for choice in choices if choice.name == "fastest"), None)
    if not fastest:
        return
    every = [fastest.point, *fastest.not_significantly_different]
    alike = [point for point in every if point.host == fastest.point.host]
    if len(alike) < 2:
        return
    more = str(max(3, 2 * max(len(point.runs) for point in alike)))
    repeats = {"sweep.repeats": more, "sweep.order": "random"}
    count = len(alike) - 1
    why = f"{count} other{'s are' if count > 1 else ' is'} not significantly slower than the fastest"
    if grid := _grid(alike):
        yield Suggestion(typed(alike[0], {**grid, **repeats}, multirun=True), why)
        return
    commands = list(dict.fromkeys(typed(point, repeats, multirun=True) for point in alike))[:MAX_REPEATED]
    if len(commands) > 1:
        yield Suggestion(commands[0], why)
        for command in commands[1:]:
            yield Suggestion(command, "another of the ties, as often" if count > 1 else "the other, as often")
        names = ",".join(ascii_uppercase[: len(commands)])
        yield Suggestion(f"{REPORT} 'sweep=[{names}]'", "then a report of the sweeps that these commands made")


def _grid(points: Sequence[Configuration]) -> dict[str, str]:
    """Return the differing keys with all of their values if the configurations are that grid; else empty."""
    jobs = [_keys(point) for point in points]
    every = {key: list(dict.fromkeys(keys.get(key) for keys in jobs)) for key in dict.fromkeys(itertools.chain(*jobs))}
    axes = {key: [str(value) for value in values] for key, values in every.items() if len(values) > 1}
    whole = all(key in keys for key in axes for keys in jobs)
    there = {tuple(keys.get(key) for key in axes) for keys in jobs}
    if not whole or not math.prod(map(len, axes.values())) == len(there) == len(points):
        return {}
    return {key: ",".join(values) for key, values in axes.items()}


def _keys(point: Configuration) -> dict[str, str]:
    """Return the overrides of a configuration."""
    return {key: value for key, value in point.runs[0].keys.items() if key.partition(".")[0] not in OWN}


def _doubled(key: str, points: Sequence[Configuration]) -> str:
    return str(2 * max(int(point.job[key]) for point in points))


def _was_run(key: str, value: str, points: Sequence[Configuration]) -> bool:
    """Whether any of the configurations has this value."""
    top, _, below = key.partition(".")
    for point in points:
        found = (point.job.get(top) or {}).get(below) if below else point.value(top)
        if str(found).strip('"') == value:
            return True
    return False


def _starts(point: Configuration) -> bool:
    stall_s, start_s = (point.mean(f"steady/{name}_s") for name in ("data_stall", "loader_start"))
    return bool(stall_s and start_s and start_s > MIN_START * stall_s)
