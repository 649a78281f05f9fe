"""Scaling: configurations on several devices, compared with the same on one device.

Weak scaling keeps the batch size per device; strong scaling keeps the global batch size. Speedup is the ratio of the
samples per second, efficiency is speedup divided by the number of devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from epochmeter.report.analyses.ratios import Ratios
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
from epochmeter.report.statistics import MIN_EFFECT, Estimate, difference, mean, positive_means

WEAK, STRONG = "weak", "strong"
SPEED, MEMORY = "steady/samples_per_s", "steady/gpu_memory_peak_bytes"
ENERGY = "steady/energy_per_sample_j"
VARIED = ("strategy", "batch")
"""Keys in which a configuration on several devices may differ from that on one."""


@dataclass(frozen=True)
class Scaling:
    """A configuration on several devices, compared with the same on one.

    Attributes:
        kind: `weak` or `strong`.
        device_batch: Samples per step on one device.
        speedup: Samples per second, as a multiple of those on one device.
        energy: Energy per sample, as a multiple of that on one device.
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

    @property
    def values(self) -> list[dict[str, object]]:
        """All numbers, as the JSON file has them."""
        return [*map(asdict, self.compared), *map(asdict, self.unpaired)]


def analyze(runs: Sequence[Run]) -> ScalingAnalysis | None:
    """Compare configurations on several devices with one device, by weak and strong scaling; None without any."""
    if all(run.job.get("strategy", {}).get("name", SINGLE) == SINGLE for run in runs):
        return None
    configurations = group_repeats(runs)
    names = [name for name in dict.fromkeys(["model", "dataset", *varied(configurations)]) if name not in VARIED]
    several_hosts = on_several_hosts(configurations)
    measured = [configuration for configuration in configurations if positive_values(configuration, SPEED)]
    measures = _measures(measured)
    ones: dict[str, list[Configuration]] = {}
    for configuration in measured:
        if configuration.devices == 1:
            ones.setdefault(fingerprint(configuration.job, VARIED), []).append(configuration)
    compared: list[Scaling] = []
    unpaired: list[Unpaired] = []
    for configuration in measured:
        if configuration.devices != 1:
            title = configuration.named(names, several_hosts)
            partners = ones.get(fingerprint(configuration.job, VARIED), [])
            results = _compare_kinds(configuration, partners, title, measures)
            compared += results
            unpaired += [] if results else [_unpaired(configuration, partners, title)]
    return ScalingAnalysis(compared, unpaired) if compared or unpaired else None


class _Measures(NamedTuple):
    """Speed of each configuration, and ratios of speed and of energy per sample."""

    speeds: Mapping[Configuration, Estimate]
    speedups: Ratios
    energies: Ratios


def _measures(measured: Sequence[Configuration]) -> _Measures:
    means = positive_means([configuration.values(SPEED) for configuration in measured])
    speedups, energies = (Ratios.of_metric(name, measured) for name in (SPEED, ENERGY))
    return _Measures(dict(zip(measured, means, strict=True)), speedups, energies)


def _compare_kinds(
    configuration: Configuration, ones: Sequence[Configuration], title: str, measures: _Measures
) -> list[Scaling]:
    """Compare with one device of the same host, preferably by `strategy=single`."""
    here = sorted((one for one in ones if one.host == configuration.host), key=lambda one: one.strategy != SINGLE)
    results = []
    for kind, batch in {WEAK: configuration.device_batch, STRONG: configuration.global_batch}.items():
        one = next((one for one in here if one.device_batch == batch), None)
        if one and (speedup := measures.speedups.between(configuration, one)):
            results.append(_compare(kind, configuration, one, title, speedup, measures))
    return results


def _compare(
    kind: str, configuration: Configuration, one: Configuration, title: str, speedup: Estimate, measures: _Measures
) -> Scaling:
    devices = configuration.devices or 1
    rounds = [[run.round for run in member.runs] for member in (configuration, one)]
    why = no_energy([configuration, one])
    steps = [member.per_step("compute_s") for member in (configuration, one)]
    return Scaling(
        title=title,
        kind=kind,
        strategy=configuration.strategy,
        devices=devices,
        device_batch=configuration.device_batch or 0.0,
        numbers=configuration.numbers,
        one_numbers=one.numbers,
        samples_per_s=measures.speeds[configuration],
        speedup=speedup,
        efficiency=speedup.scaled(1 / devices),
        energy=None if why else measures.energies.between(configuration, one),
        no_energy=why,
        overhead_s=difference(*steps, rounds=rounds) if kind == WEAK and all(steps) else None,
        step_s=mean(steps[1]).value if steps[1] else None,
        memory_bytes=configuration.mean(MEMORY),
    )


def _unpaired(configuration: Configuration, ones: Sequence[Configuration], title: str) -> Unpaired:
    batches = [batch for batch in (configuration.device_batch, configuration.global_batch) if batch]
    hosts = dict.fromkeys(one.host or "unknown host" for one in ones if one.device_batch in batches)
    return Unpaired(title, configuration.strategy, configuration.devices, configuration.numbers, batches, list(hosts))
