"""Scaling: configurations on several devices, compared with the same on one device.

Weak scaling keeps the batch size per device; strong scaling keeps the global batch size. Speedup is the ratio of the
samples per second, efficiency is speedup divided by the number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epochmeter.report.analyses.ratios import ratios_of
from epochmeter.report.runs.configuration import (
    SINGLE,
    Configuration,
    NoEnergy,
    group_repeats,
    no_energy,
    on_several_hosts,
    varied,
)
from epochmeter.report.runs.costs import positive_values
from epochmeter.report.runs.run import Run, fingerprint
from epochmeter.report.statistics import MIN_EFFECT, Estimate, contrast, mean, positive_means

WEAK, STRONG = "weak", "strong"
SPEED, MEMORY = "steady/samples_per_s", "steady/gpu_memory_peak_bytes"
ENERGY = "steady/energy_per_sample_j"
VARIED = ("strategy", "batch")
"""Keys in which a configuration on several devices may differ from that on one."""


@dataclass(frozen=True)
class Scaling:
    """A configuration on several devices, compared with the same on one: speed and energy per sample are multiples.

    Attributes:
        device_batch: Samples per step on one device.
        overhead_s: Compute time per step minus that on one device: gradient exchange, and waiting for the slowest
            rank. None under strong scaling, where the batch size per device differs.
        step_s: Compute time per step on one device.
        memory_bytes: Peak memory of the device that uses most; None if no accelerator reports it.
    """

    title: str
    kind: str
    strategy: str
    devices: int
    device_batch: float
    numbers: Sequence[int]
    one_numbers: Sequence[int]
    samples_per_s: Estimate
    speedup: Estimate
    efficiency: Estimate
    energy: Estimate | None
    no_energy: NoEnergy | None
    overhead_s: Estimate | None
    step_s: float | None
    memory_bytes: float | None

    @property
    def is_superlinear(self) -> bool:
        """Whether the efficiency is significantly above one."""
        return self.efficiency.value > 1 + MIN_EFFECT and not self.efficiency.contains(1)

    @property
    def has_overhead(self) -> bool:
        """Whether the compute time per step significantly differs from that on one device."""
        if self.overhead_s is None or self.step_s is None or self.overhead_s.contains(0):
            return False
        return self.overhead_s.low is not None or abs(self.overhead_s.value) > MIN_EFFECT * self.step_s


@dataclass(frozen=True)
class Unpaired:
    """A configuration on several devices without a run on one; `elsewhere` are other hosts that have one."""

    title: str
    strategy: str
    devices: int | None
    numbers: Sequence[int]
    batches: Sequence[float]
    elsewhere: Sequence[str]


@dataclass(frozen=True)
class ScalingAnalysis:
    """All configurations on several devices; those compared in two ways come twice, weak scaling first."""

    compared: Sequence[Scaling]
    unpaired: Sequence[Unpaired]

    @property
    def described(self) -> list[Scaling]:
        """One comparison per configuration, by weak scaling if possible."""
        return [*{tuple(result.numbers): result for result in reversed(self.compared)}.values()][::-1]


def analyze(runs: Sequence[Run]) -> ScalingAnalysis | None:
    """Compare configurations on several devices with one device, by weak and strong scaling; None without any."""
    if all(run.job.get("strategy", {}).get("name", SINGLE) == SINGLE for run in runs):
        return None
    configurations = group_repeats(runs)
    names = [name for name in dict.fromkeys(["model", "dataset", *varied(configurations)]) if name not in VARIED]
    titles = {entry: entry.named(names, on_several_hosts(configurations)) for entry in configurations}
    measured = [entry for entry in configurations if positive_values(entry, SPEED)]
    means = dict(zip(measured, positive_means([entry.values(SPEED) for entry in measured]), strict=True))
    speedups, energies = (ratios_of({entry: entry.values(name) for entry in measured}) for name in (SPEED, ENERGY))
    ones: dict[str, list[Configuration]] = {}
    for entry in measured:
        if entry.devices == 1:
            ones.setdefault(fingerprint(entry.job, VARIED), []).append(entry)
    compared, unpaired = list[Scaling](), list[Unpaired]()
    for entry in measured:
        partners = ones.get(fingerprint(entry.job, VARIED), [])
        pairs = _pairs(entry, partners) if entry.devices != 1 else {}
        for kind, one in pairs.items():
            if speedup := speedups(entry, one):
                result = _compare(kind, entry, one, means[entry], speedup)
                energy = None if result.no_energy else energies(entry, one)
                compared.append(replace(result, title=titles[entry], energy=energy))
        if entry.devices != 1 and not pairs:
            batches = [batch for batch in (entry.device_batch, entry.global_batch) if batch]
            hosts = dict.fromkeys(one.host or "unknown host" for one in partners if one.device_batch in batches)
            unpaired.append(Unpaired(titles[entry], entry.strategy, entry.devices, entry.numbers, batches, [*hosts]))
    return ScalingAnalysis(compared, unpaired) if compared or unpaired else None


def _pairs(entry: Configuration, ones: Sequence[Configuration]) -> dict[str, Configuration]:
    """Return the configuration on one device of the same host by kind of scaling, preferably by `strategy=single`."""
    here = sorted((one for one in ones if one.host == entry.host), key=lambda one: one.strategy != SINGLE)
    batches = {WEAK: entry.device_batch, STRONG: entry.global_batch}
    return {kind: one for kind, batch in batches.items() for one in here[::-1] if one.device_batch == batch}


def _compare(
    kind: str, entry: Configuration, one: Configuration, samples_per_s: Estimate, speedup: Estimate
) -> Scaling:
    """Return a comparison without its title and its energy."""
    devices = entry.devices or 1
    steps = {"several": entry.per_step("compute_s"), "one": one.per_step("compute_s")}
    rounds = {"several": [run.round for run in entry.runs], "one": [run.round for run in one.runs]}
    is_weak = kind == WEAK and all(steps.values())
    return Scaling(
        title="",
        kind=kind,
        strategy=entry.strategy,
        devices=devices,
        device_batch=entry.device_batch or 0.0,
        numbers=entry.numbers,
        one_numbers=one.numbers,
        samples_per_s=samples_per_s,
        speedup=speedup,
        efficiency=speedup.scaled(1 / devices),
        energy=None,
        no_energy=no_energy([entry, one]),
        overhead_s=contrast({"several": 1.0, "one": -1.0}, steps, rounds) if is_weak else None,
        step_s=mean(steps["one"]).value if steps["one"] else None,
        memory_bytes=entry.mean(MEMORY),
    )
