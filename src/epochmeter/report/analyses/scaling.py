"""Scaling: configurations on several devices, compared with the same on one device of the same host.

Weak scaling keeps the batch size per device; strong scaling keeps the global batch size. Speedup is the ratio of the
samples per second, efficiency is speedup divided by the number of devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epochmeter.config.schema import SCRIPT
from epochmeter.report.analyses.ratios import Ratios
from epochmeter.report.runs.configuration import (
    DATA_PARALLEL,
    SINGLE,
    Configuration,
    NoEnergy,
    groups,
    no_energy,
    on_several_hosts,
    varied,
)
from epochmeter.report.runs.costs import positive_values
from epochmeter.report.statistics import Estimate, contrast, mean, positive_means

WEAK, STRONG = "weak", "strong"
SPEED, MEMORY = "steady/samples_per_s", "steady/gpu_memory_peak_bytes"
ENERGY = "steady/energy_per_sample_j"
VARIED = ("strategy", "batch", "nodes")
"""Keys in which a configuration on several devices may differ from that on one."""


@dataclass(frozen=True)
class Scaling:
    """A configuration on several devices, compared with the same on one: speed and energy per sample are multiples.

    Attributes:
        device_batch: Samples per step on one device.
        overhead_s: Compute time per step minus that on one device (`step_s`): gradient exchange, and waiting for the
            slowest rank. None under strong scaling, where the batch size per device differs.
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
    def unit(self) -> str:
        """The unit of parallelism: devices of DataParallel, else ranks, which may share a device."""
        return "devices" if self.strategy == DATA_PARALLEL else "ranks"


def analyze(configurations: Sequence[Configuration]) -> list[Scaling]:
    """Compare configurations on several devices with one device; those compared in two ways come twice, weak first.

    Measured scripts, whose batch size is not known, are not compared.
    """
    configurations = [configuration for configuration in configurations if configuration.strategy != SCRIPT]
    if all(configuration.strategy == SINGLE for configuration in configurations):
        return []
    measured = [configuration for configuration in configurations if positive_values(configuration, SPEED)]
    together = [
        group for group in groups(measured, VARIED) if any(configuration.strategy != SINGLE for configuration in group)
    ]
    shown = [configuration for group in together for configuration in group]
    names = [name for name in dict.fromkeys(["model", "dataset", *varied(shown)]) if name not in VARIED]
    several_hosts = on_several_hosts(shown)
    means = positive_means({configuration: configuration.values(SPEED) for configuration in measured})
    speedups, energies = (
        Ratios({configuration: configuration.values(name) for configuration in measured}) for name in (SPEED, ENERGY)
    )
    compared = list[Scaling]()
    for group in together:
        ones = sorted(
            (configuration for configuration in group if configuration.devices == 1),
            key=lambda one: one.strategy == SINGLE,
        )
        for configuration in (configuration for configuration in group if configuration.devices != 1):
            title = configuration.named(names, several_hosts)
            batches = (
                {WEAK: configuration.device_batch, STRONG: configuration.global_batch} if configuration.devices else {}
            )
            # Of several on one device, the last is compared with.
            pairs = {kind: one for kind, batch in batches.items() for one in ones if one.device_batch == batch}
            for kind, one in pairs.items():
                if speedup := speedups.between(configuration, one):
                    gap = no_energy([configuration, one], ENERGY)
                    energy = None if gap else energies.between(configuration, one)
                    more = {"title": title, "samples_per_s": means[configuration], "energy": energy, "no_energy": gap}
                    compared.append(_compare(kind, configuration, one, speedup, **more))
    return compared


def without_partner(results: Sequence[Scaling], configurations: Sequence[Configuration]) -> list[str]:
    """Return the titles of configurations on several devices that are not compared; none if no configuration is."""
    compared = {number for result in results for number in result.numbers}
    several = (
        configuration
        for configuration in configurations
        if configuration.devices != 1 and configuration.strategy != SCRIPT
    )
    return (
        [configuration.title for configuration in several if configuration.numbers[0] not in compared]
        if compared
        else []
    )


def _compare(kind: str, configuration: Configuration, one: Configuration, speedup: Estimate, **more: Any) -> Scaling:
    sides, devices = {"several": configuration, "one": one}, configuration.devices or 1
    steps = {name: side.per_step("compute_s") for name, side in sides.items()}
    rounds = {name: [run.round for run in side.runs] for name, side in sides.items()}
    is_weak = kind == WEAK and all(steps.values())
    return Scaling(
        kind=kind,
        strategy=configuration.strategy,
        devices=devices,
        device_batch=configuration.device_batch or 0.0,
        numbers=tuple(configuration.numbers),
        one_numbers=one.numbers,
        speedup=speedup,
        efficiency=speedup.map(lambda ratio: ratio / devices),
        overhead_s=contrast({"several": 1.0, "one": -1.0}, steps, rounds) if is_weak else None,
        step_s=mean(steps["one"]).value if steps["one"] else None,
        memory_bytes=configuration.mean(MEMORY),
        **more,
    )
