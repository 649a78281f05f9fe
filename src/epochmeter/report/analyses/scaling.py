"""Scaling: configurations on several devices, compared with the same on one device.

Weak scaling keeps the batch size per device; strong scaling keeps the global batch size. Speedup is the ratio of the
samples per second, efficiency is speedup divided by the number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import (
    DATA_PARALLEL,
    SINGLE,
    Configuration,
    device_unit,
    fingerprint,
    group_repeats,
    no_energy,
    on_several_hosts,
    ratio_of,
    varied,
)
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT, Estimate, difference, mean, positive_mean, ratio
from epochmeter.report.words import ABSENT, Grid, interval, megabytes, number, percent, plain_values, spread, times
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS

WEAK, STRONG = "weak", "strong"
WITH = {WEAK: "the same batch each (weak scaling)", STRONG: "the same batch in all (strong scaling)"}
SPEED, MEMORY = "steady/samples_per_s", "steady/gpu_memory_peak_bytes"
VARIED = ("strategy", "batch")
"""Keys in which a job on several devices may differ from that on one."""


@dataclass(frozen=True)
class Scaling:
    """A configuration on several devices, compared with the same on one.

    Attributes:
        kind: `weak` or `strong`.
        device_batch: Samples per step on one device.
        global_batch: Samples per step on all devices.
        one_numbers: Numbers of the runs on one device.
        speedup: Samples per second, as a multiple of those on one device.
        efficiency: Speedup divided by the number of devices.
        energy: Energy per sample, as a multiple of that on one device.
        no_energy: Why the energies are not compared.
        overhead_s: Compute time per step minus that on one device with the same batch size: gradient exchange, and
            waiting for the slowest rank. None under strong scaling, where the batch size per device differs.
        step_s: Compute time per step on one device.
        memory_bytes: Peak memory of the device that uses most; None if no accelerator reports it.
        one_memory_bytes: The same on one device.
    """

    title: str
    kind: str
    strategy: str
    devices: int
    device_batch: float
    global_batch: float
    numbers: Sequence[int]
    one_numbers: Sequence[int]
    samples_per_s: Estimate
    one_samples_per_s: Estimate
    speedup: Estimate
    efficiency: Estimate
    energy: Estimate | None
    no_energy: str | None
    overhead_s: Estimate | None
    step_s: float | None
    memory_bytes: float | None
    one_memory_bytes: float | None


@dataclass(frozen=True)
class Unpaired:
    """A configuration on several devices without a run on one, and what is missing."""

    title: str
    missing: str
    numbers: Sequence[int]


def scalings(rows: Sequence[Run]) -> list[Scaling | Unpaired]:
    """Compare each configuration on several devices with one device, by weak and strong scaling where runs exist."""
    if all(row.job.get("strategy", {}).get("name", SINGLE) == SINGLE for row in rows):
        return []
    every = group_repeats(rows)
    names = [name for name in dict.fromkeys(["model", "dataset", *varied(every)]) if name not in VARIED]
    hosted = on_several_hosts(every)
    ones: dict[str, list[Configuration]] = {}
    for point in every:
        if point.devices == 1 and point.values(SPEED):
            ones.setdefault(fingerprint(point.job, VARIED), []).append(point)
    told: list[Scaling | Unpaired] = []
    for point in every:
        if point.devices != 1 and point.values(SPEED):
            told += _compare(point, ones.get(fingerprint(point.job, VARIED), []), point.named(names, hosted))
    return told


def scaling(kind: str, point: Configuration, one: Configuration, title: str) -> Scaling:
    """Compare a configuration with one on a single device; both have a known speed and number of devices."""
    devices, device_batch = point.devices or 1, point.device_batch or 0.0
    speedup = ratio(point.values(SPEED), one.values(SPEED))
    why = no_energy([point, one])
    steps = [each.per_step("compute_s") for each in (point, one)]
    return Scaling(
        title=title,
        kind=kind,
        strategy=point.strategy,
        devices=devices,
        device_batch=device_batch,
        global_batch=devices * device_batch,
        numbers=point.numbers,
        one_numbers=one.numbers,
        samples_per_s=positive_mean(point.values(SPEED)),
        one_samples_per_s=positive_mean(one.values(SPEED)),
        speedup=speedup,
        efficiency=speedup.scaled(1 / devices),
        energy=None if why else ratio_of("steady/energy_per_sample_j", point, one),
        no_energy=why,
        overhead_s=difference(*steps) if kind == WEAK and all(steps) else None,
        step_s=mean(steps[1]).value if steps[1] else None,
        memory_bytes=point.mean(MEMORY),
        one_memory_bytes=one.mean(MEMORY),
    )


def sentences(told: Scaling) -> list[str]:
    """Return the sentences on one comparison, the answer first."""
    several = f"{told.devices} {device_unit(told.strategy)}"
    where = f"{told.title}: {told.strategy} on {several}, batch {told.device_batch:g} each"
    speed = f"{times(told.speedup)} the samples/s of one device with {WITH[told.kind]}"
    unshown = ", which shows no difference" if told.speedup.contains(1) else ""
    said = [f"{where}: {speed}{unshown}; scaling efficiency {percent(told.efficiency)}."]
    if beyond(told.efficiency):
        said.append(
            "That is more than linear scaling: something else differs, such as other load on the machine, the threads "
            "of a rank, or cached data."
        )
    if told.overhead_s is not None and told.step_s:
        said.append(overhead(told.overhead_s, told.step_s, told.strategy))
    if told.energy:
        unshown = ", which shows no difference" if told.energy.contains(1) else ""
        said.append(f"A sample takes {times(told.energy)} the energy it takes on one device{unshown}.")
    return said


def beyond(efficiency: Estimate) -> bool:
    """Whether an efficiency is significantly above one."""
    return efficiency.value > 1 + MIN_EFFECT and not efficiency.contains(1)


def overhead(more_s: Estimate, step_s: float, strategy: str) -> str:
    """Return the sentence on the compute time that several devices add to a step, which takes `step_s` on one."""
    step_ms, more = 1e3 * step_s, more_s.scaled(1e3)
    cost = interval(more, max(abs(more.value), step_ms / 100), "ms")
    if more.contains(0) or (more.low is None and abs(more.value) <= MIN_EFFECT * step_ms):
        return f"A step's compute shows no difference from one device's {number(step_ms)} ms: {cost} more."
    if more.value < 0:
        less = f"A step's compute takes {cost} beside one device's {number(step_ms)} ms: less than no cost"
        return f"{less}, so something else differs, such as clocks or what else ran."
    what = "Copying the model, scattering and gathering" if strategy == DATA_PARALLEL else "Exchanging gradients"
    beside = f"{number(100 * more_s.value / step_s, 10)} % of one device's {number(step_ms)} ms"
    return f"{what}, and waiting for the slowest, adds {cost} of compute to each step: {beside}."


def page(rows: Sequence[Run]) -> Page | None:
    """Return the page of scaling; None if no run is on several devices."""
    told = scalings(rows)
    if not told:
        return None
    found = [each for each in told if isinstance(each, Scaling)]
    unpaired = [each for each in told if isinstance(each, Unpaired)]
    # In words once for each job, by weak scaling where there is that; the table has all.
    worded = {tuple(each.numbers): each for each in reversed(found)}.values()
    said = [" ".join(sentences(each)) for each in reversed(worded)]
    said += [f"{each.title}: no scaling: {each.missing}." for each in unpaired]
    sections = [Section([*said, *notes(found)], [grid(found)])] if found else [Section(said)]
    numbers = {run for each in told for run in each.numbers} | {run for each in found for run in each.one_numbers}
    return Page("scaling", "Scaling", sections, plain_values(told), sorted(numbers))


def notes(found: Sequence[Scaling]) -> list[str]:
    """Return notes on all comparisons."""
    said = ["One rank's data stall appears as compute time of the other ranks, which wait for it."]
    if any(each.speedup.low is None for each in found):
        said.append(f"No intervals for configurations that ran once: {RECOMMENDED_REPEATS} gives them.")
    reasons = dict.fromkeys(each.no_energy for each in found if each.no_energy)
    said += [f"Energies are not compared: {why.rstrip('.')}." for why in reasons]
    if all(each.memory_bytes is None for each in found):
        said.append("No device memory: no accelerator reports it.")
    return said


def grid(found: Sequence[Scaling]) -> Grid:
    rows = []
    for each in found:
        more_ms = None if each.overhead_s is None else each.overhead_s.scaled(1e3)
        rows.append([
            each.title, each.strategy, str(each.devices), f"{each.device_batch:g}", each.kind,
            spread(each.samples_per_s), spread(each.one_samples_per_s), spread(each.speedup), spread(each.efficiency),
            spread(each.energy) if each.energy else ABSENT,
            spread(more_ms, 1e3 * each.step_s) if more_ms and each.step_s else ABSENT,
            megabytes(each.memory_bytes), megabytes(each.one_memory_bytes),
        ])  # fmt: skip
    columns = ["job", "strategy", "devices", "batch each", "scaling", "samples/s", "of one", "speed-up", "efficiency",
               "J/sample to one's", "ms more a step", "MB each", "MB of one"]  # fmt: skip
    return Grid("Several devices compared with one", columns, rows)


def _compare(point: Configuration, ones: Sequence[Configuration], title: str) -> list[Scaling | Unpaired]:
    """Compare a configuration with those on one device of its host; name other hosts that have some."""
    if point.devices is None or point.device_batch is None:
        what = f"how many {device_unit(point.strategy)} {point.strategy} had is not known"
        return [Unpaired(title, what, point.numbers)]
    batches = {WEAK: point.device_batch, STRONG: point.global_batch}
    fitting = [one for one in ones if one.device_batch in batches.values()]
    here = sorted((one for one in fitting if one.host == point.host), key=lambda one: one.strategy != SINGLE)
    told: list[Scaling | Unpaired] = []
    for kind, batch in batches.items():
        alike = [one for one in here if one.device_batch == batch]
        told += [scaling(kind, point, one, title) for one in alike[:1]]
    if told:
        return told
    asked = f"strategy=single batch={point.device_batch:g} or {point.global_batch:g}"
    there = ", ".join(dict.fromkeys(one.host or "unknown host" for one in fitting))
    beside = f"{point.value('strategy')}{f' on its host: it ran on {there}' if there else ''}"
    return [Unpaired(title, f"no run of {asked} to compare with {beside}", point.numbers)]
