"""Several meters as one: the first measures the run's energy, such as the GPUs', and all together the machine's."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from epochmeter.machine.amd import find_card, find_cards
from epochmeter.machine.energy_codes import EnergyCode, Findings
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import NODE_SCOPE, Instrument
from epochmeter.power.meter import CounterUncertainty, EnergyInfo, EnergyMeter, Joules, NullMeter, open_meter
from epochmeter.power.meters.amd import open_amd
from epochmeter.power.meters.gpu import WITH_CPU
from epochmeter.power.meters.nvml import open_nvml
from epochmeter.power.meters.rapl import PACKAGE_SCOPE
from epochmeter.power.power_series import PowerSamples, Sampling
from epochmeter.power.uncertainty import Response, Sensors
from epochmeter.shared.types import FloatArray


def open_sum(*, gpus: Sequence[str], root: Path, parts: Sequence[Mapping[str, object]]) -> EnergyMeter:
    """Open several meters as one; the first part only, with the reason, if the parts cannot be added.

    An estimate is never added to a measurement, and no energy is added twice.
    """
    meters = [open_meter(spec, gpus=gpus, root=root) for spec in parts]
    if not meters:
        return NullMeter("meter=sum: meter.parts is empty.", code=EnergyCode.NOT_CONFIGURED.value)
    unmeasured = [meter.energy for meter in meters if meter.energy["source"] in ("none", "estimated")]
    overlap = overlap_of(meters)
    if not unmeasured and not overlap:
        return SumMeter(meters)
    first, *rest = meters
    for meter in rest:
        meter.close()
    if first.energy not in unmeasured:
        unmeasured_because = (first.energy["reason"] or "").removesuffix(".")
        reasons = [*(energy["reason"] for energy in unmeasured), overlap]
        lacking = [f"no machine_energy_j: {reason}" for reason in reasons if reason]
        first.energy["reason"] = "; ".join(filter(None, [unmeasured_because, *lacking]))
        overlaps = [EnergyCode.SCOPE_UNKNOWN.value] if overlap else []
        first.energy["codes"] = [EnergyCode.PART_ABSENT.value, *_codes_of(unmeasured), *overlaps]
        if hint := next((energy["hint"] for energy in unmeasured if "hint" in energy), ""):
            first.energy["hint"] = hint
    return first


def _codes_of(energies: Sequence[EnergyInfo]) -> list[str]:
    """Return the codes of several energies, each once."""
    return [*dict.fromkeys(code for energy in energies for code in energy.get("codes", []))]


def overlap_of(meters: Sequence[EnergyMeter]) -> str | None:
    """Why the sum of meters would count some energy twice; None if it would not."""
    counts = Counter(name for meter in meters for name in meter.domains)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        return f"several of meter.parts measure {', '.join(repeated)}."
    scopes = {domain.covers for meter in meters for domain in meter.domains.values()}
    if NODE_SCOPE in scopes and len(meters) > 1:
        return "the energy of the node includes all other parts."
    if PACKAGE_SCOPE in scopes and (with_cpu := sorted(scopes & WITH_CPU)):
        return f"the energy of the {with_cpu[0]} includes the CPU package."
    return None


def open_gpus(*, gpus: Sequence[str], root: Path, sensors: Sensors | None = None) -> EnergyMeter:
    """Open the meter of the GPUs used, which are of one vendor."""
    is_amd = bool(gpus) and find_card(gpus[0], find_cards(root)) is not None
    return (open_amd if is_amd else open_nvml)(gpus=gpus, root=root, sensors=sensors)


class SumMeter(EnergyMeter):
    """Meters with different domain names."""

    def __init__(self, meters: Sequence[EnergyMeter]) -> None:
        self._meters = meters
        self.domains = {name: domain for meter in meters for name, domain in meter.domains.items()}
        self.conditions = lambda: {name: value for meter in meters for name, value in meter.conditions().items()}
        first, *others = meters
        # The half-width of sampled power is known of the first part only.
        counted = [check for meter in others for check in meter.cross_checks if self._is_counted(check)]
        self.cross_checks = (*first.cross_checks, *counted)
        reasons = [meter.energy["reason"] for meter in meters]
        self.energy = {
            **meters[0].energy,
            "reason": " ".join(filter(None, reasons)) or None,
            "machine": {
                "covers": " + ".join(meter.energy["covers"] or "" for meter in meters),
                "domains": [name for meter in meters for name in meter.energy["domains"]],
            },
        }
        if codes := _codes_of([meter.energy for meter in meters]):
            self.energy["codes"] = codes

    def _is_counted(self, check: CrossCheck) -> bool:
        return all(self.domains[name].source == "counter" for name in check.domains)

    @property
    def instruments(self) -> dict[str, Instrument]:
        return {name: instrument for meter in self._meters for name, instrument in meter.instruments.items()}

    def use_responses(self, responses: Mapping[str, Response]) -> None:
        for name, response in responses.items():
            owner = self._owner([name])
            owner.use_responses({name: response})
            self.domains[name] = owner.domains[name]

    def read(self, *, fresh: bool = True) -> dict[str, float]:
        return {name: joules for meter in self._meters for name, joules in meter.read(fresh=fresh).items()}

    @property
    def failures(self) -> Findings:
        return {name: finding for meter in self._meters for name, finding in meter.failures.items()}

    @property
    def settled_s(self) -> float:
        return max(meter.settled_s for meter in self._meters)

    def total(self, values: Mapping[str, float]) -> float | None:
        return self._meters[0].total(values)

    def sampling(self, opened_ns: int, closed_ns: int, borders_s: np.ndarray | None = None) -> Sampling | None:
        """The sampling of the first part, with the domains of all; 0 samples if the first is not sampled."""
        parts = [meter.sampling(opened_ns, closed_ns, borders_s) for meter in self._meters]
        sampled = [sampling for sampling in parts if sampling]
        if not sampled:
            return None
        first = parts[0] or Sampling(samples=0, gap_max_s=0.0, failed=0, unavailable={}, peak_w=None, half_width_j=0.0)
        return first._replace(
            failed=sum(sampling.failed for sampling in sampled),
            unavailable={name: why for sampling in sampled for name, why in sampling.unavailable.items()},
            correction_j={name: joules for sampling in sampled for name, joules in sampling.correction_j.items()},
            samples_per_domain={
                name: count for sampling in sampled for name, count in sampling.samples_per_domain.items()
            },
        )

    def half_width_j(
        self, joules: Joules, seconds: float, sampling: Sampling | None, names: Sequence[str] | None = None
    ) -> float:
        return self._owner(names).half_width_j(joules, seconds, sampling, names)

    def counter_uncertainty(
        self, joules: Joules, seconds: float, sampling: Sampling | None, names: Sequence[str] | None = None
    ) -> CounterUncertainty:
        return self._owner(names).counter_uncertainty(joules, seconds, sampling, names)

    def unsampled_j(
        self, joules: Joules, seconds: float, sampling: Sampling | None, names: Sequence[str] | None = None
    ) -> float:
        return self._owner(names).unsampled_j(joules, seconds, sampling, names)

    def _owner(self, names: Sequence[str] | None) -> EnergyMeter:
        """The meter of some domains; of the total (None) the first one."""
        return next(meter for meter in self._meters if meter.domains.keys() >= set(names or ()))

    def in_step_j(self, sampling: Sampling | None) -> float | None:
        return self._meters[0].in_step_j(sampling)

    def drain(self, before_ns: int) -> PowerSamples:
        """The samples of all parts in the order of time; the total is read when the first part is."""
        parts = [meter.drain(before_ns) for meter in self._meters]
        times_ns = np.concatenate([np.array(samples.times_ns) for samples in parts])
        order = np.argsort(times_ns, kind="stable")

        def merged(number: int, values: FloatArray) -> FloatArray:
            """The values of a part in the order of all samples; NaN for the samples of other parts."""
            columns = [
                values if samples is parts[number] else np.full(len(samples.times_ns), np.nan) for samples in parts
            ]
            return array("d", np.concatenate(columns)[order])

        watts = {name: merged(i, values) for i, samples in enumerate(parts) for name, values in samples.watts.items()}
        total_w = merged(0, parts[0].total_w)
        return PowerSamples(array("q", times_ns[order].tolist()), watts, total_w, parts[0].response)

    def close(self) -> None:
        for meter in self._meters:
            meter.close()
