"""Scaling: configurations on several devices, compared with the same on one device.

Weak scaling keeps the batch size per device; strong scaling keeps the global batch size. Speedup is the ratio of the
samples per second, efficiency is speedup divided by the number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epochmeter.report.formatting import ABSENT, interval, number, quantity
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
from epochmeter.report.words import Grid, percent, plain_values, spread, times
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS

WEAK, STRONG = "weak", "strong"
SCALING_TEXTS = {
    WEAK: "the same batch per device (weak scaling)",
    STRONG: "the same global batch (strong scaling)",
}
NOT_SIGNIFICANT = " (no significant difference)"
SPEED, MEMORY = "steady/samples_per_s", "steady/gpu_memory_peak_bytes"
VARIED = ("strategy", "batch")
"""Keys in which a configuration on several devices may differ from that on one."""


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
    configurations = group_repeats(rows)
    names = [name for name in dict.fromkeys(["model", "dataset", *varied(configurations)]) if name not in VARIED]
    several_hosts = on_several_hosts(configurations)
    ones: dict[str, list[Configuration]] = {}
    for configuration in configurations:
        if configuration.devices == 1 and configuration.values(SPEED):
            ones.setdefault(fingerprint(configuration.job, VARIED), []).append(configuration)
    results: list[Scaling | Unpaired] = []
    for configuration in configurations:
        if configuration.devices != 1 and configuration.values(SPEED):
            results += _compare(
                configuration,
                ones.get(fingerprint(configuration.job, VARIED), []),
                configuration.named(names, several_hosts),
            )
    return results


def scaling(kind: str, configuration: Configuration, one: Configuration, title: str) -> Scaling:
    """Compare a configuration with one on a single device; both have a known speed and number of devices."""
    devices, device_batch = configuration.devices or 1, configuration.device_batch or 0.0
    speedup = ratio(configuration.values(SPEED), one.values(SPEED))
    why = no_energy([configuration, one])
    steps = [member.per_step("compute_s") for member in (configuration, one)]
    return Scaling(
        title=title,
        kind=kind,
        strategy=configuration.strategy,
        devices=devices,
        device_batch=device_batch,
        global_batch=devices * device_batch,
        numbers=configuration.numbers,
        one_numbers=one.numbers,
        samples_per_s=positive_mean(configuration.values(SPEED)),
        one_samples_per_s=positive_mean(one.values(SPEED)),
        speedup=speedup,
        efficiency=speedup.scaled(1 / devices),
        energy=None if why else ratio_of("steady/energy_per_sample_j", configuration, one),
        no_energy=why,
        overhead_s=difference(*steps) if kind == WEAK and all(steps) else None,
        step_s=mean(steps[1]).value if steps[1] else None,
        memory_bytes=configuration.mean(MEMORY),
        one_memory_bytes=one.mean(MEMORY),
    )


def sentences(result: Scaling) -> list[str]:
    """Return the sentences on one comparison, the answer first."""
    several = f"{result.devices} {device_unit(result.strategy)}"
    where = f"{result.title}: {result.strategy} on {several}, batch {result.device_batch:g} per device"
    speed = f"{times(result.speedup)} the samples/s of one device with {SCALING_TEXTS[result.kind]}"
    unshown = NOT_SIGNIFICANT if result.speedup.contains(1) else ""
    texts = [f"{where}: {speed}{unshown}; scaling efficiency {percent(result.efficiency)}."]
    if is_superlinear(result.efficiency):
        texts.append(
            "Scaling is superlinear, so something else differs, such as other load on the machine, the threads of a "
            "rank, or cached data."
        )
    if result.overhead_s is not None and result.step_s:
        texts.append(overhead(result.overhead_s, result.step_s, result.strategy))
    if result.energy:
        unshown = NOT_SIGNIFICANT if result.energy.contains(1) else ""
        texts.append(f"Energy per sample: {times(result.energy)} that on one device{unshown}.")
    return texts


def is_superlinear(efficiency: Estimate) -> bool:
    """Whether an efficiency is significantly above one."""
    return efficiency.value > 1 + MIN_EFFECT and not efficiency.contains(1)


def overhead(more_s: Estimate, step_s: float, strategy: str) -> str:
    """Return the sentence on the compute time that several devices add to a step, which takes `step_s` on one."""
    step = quantity(step_s, "s")
    difference_s = interval(more_s, "s", max(abs(more_s.value), step_s / 100))
    if more_s.contains(0) or (more_s.low is None and abs(more_s.value) <= MIN_EFFECT * step_s):
        return f"Compute time per step does not differ significantly from one device's {step}: {difference_s}."
    if more_s.value < 0:
        lead = f"Compute time per step is shorter than one device's {step}: {difference_s}"
        return f"{lead}. Something else differs, such as clocks or other load."
    what = "Copying the model, scattering and gathering" if strategy == DATA_PARALLEL else "Gradient exchange"
    relative = f"{number(100 * more_s.value / step_s, 10)} % of one device's {step}"
    return f"{what} and waiting for the slowest device add {difference_s} of compute time per step, {relative}."


def page(rows: Sequence[Run]) -> Page | None:
    """Return the page of scaling; None if no run is on several devices."""
    results = scalings(rows)
    if not results:
        return None
    compared = [result for result in results if isinstance(result, Scaling)]
    unpaired = [result for result in results if isinstance(result, Unpaired)]
    # One sentence per configuration, on weak scaling if possible; the table has all comparisons.
    described = {tuple(result.numbers): result for result in reversed(compared)}.values()
    texts = [" ".join(sentences(result)) for result in reversed(described)]
    texts += [f"{result.title}: no scaling: {result.missing}." for result in unpaired]
    sections = [Section([*texts, *notes(compared)], [grid(compared)])] if compared else [Section(texts)]
    numbers = {run for result in results for run in result.numbers} | {
        run for result in compared for run in result.one_numbers
    }
    return Page("scaling", "Scaling", sections, plain_values(results), sorted(numbers))


def notes(results: Sequence[Scaling]) -> list[str]:
    """Return notes on all comparisons."""
    texts = ["A data stall of one rank appears as compute time of the other ranks, which wait for it."]
    if any(result.speedup.low is None for result in results):
        texts.append(f"No intervals for configurations that ran once. hint: {RECOMMENDED_REPEATS} gives them.")
    reasons = dict.fromkeys(result.no_energy for result in results if result.no_energy)
    texts += [f"Energies are not compared: {why.rstrip('.')}." for why in reasons]
    if all(result.memory_bytes is None for result in results):
        texts.append("No device memory: no accelerator reports it.")
    return texts


def grid(results: Sequence[Scaling]) -> Grid:
    """Return the table of all comparisons."""
    rows = []
    for result in results:
        rows.append([
            result.title, result.strategy, str(result.devices), f"{result.device_batch:g}", result.kind,
            spread(result.samples_per_s), spread(result.one_samples_per_s), spread(result.speedup),
            spread(result.efficiency),
            spread(result.energy) if result.energy else ABSENT,
            interval(result.overhead_s, "s", result.step_s),
            quantity(result.memory_bytes, "B"), quantity(result.one_memory_bytes, "B"),
        ])  # fmt: skip
    columns = ["configuration", "strategy", "devices", "batch per device", "scaling", "samples/s",
               "samples/s, one device", "speed-up", "efficiency", "energy per sample, ratio", "overhead per step",
               "memory per device", "memory, one device"]  # fmt: skip
    return Grid("Several devices compared with one", columns, rows)


def _compare(configuration: Configuration, ones: Sequence[Configuration], title: str) -> list[Scaling | Unpaired]:
    """Compare a configuration with those on one device of its host; name other hosts that have some."""
    if configuration.devices is None or configuration.device_batch is None:
        what = f"the number of {device_unit(configuration.strategy)} of {configuration.strategy} is not known"
        return [Unpaired(title, what, configuration.numbers)]
    batches = {WEAK: configuration.device_batch, STRONG: configuration.global_batch}
    fitting = [one for one in ones if one.device_batch in batches.values()]
    here = sorted((one for one in fitting if one.host == configuration.host), key=lambda one: one.strategy != SINGLE)
    results: list[Scaling | Unpaired] = []
    for kind, batch in batches.items():
        matching = [one for one in here if one.device_batch == batch]
        results += [scaling(kind, configuration, one, title) for one in matching[:1]]
    if results:
        return results
    wanted = f"strategy=single batch={configuration.device_batch:g} or {configuration.global_batch:g}"
    there = ", ".join(dict.fromkeys(one.host or "unknown host" for one in fitting))
    partner = f"{configuration.value('strategy')}{f' on its host: it ran on {there}' if there else ''}"
    return [Unpaired(title, f"no run of {wanted} to compare with {partner}", configuration.numbers)]
