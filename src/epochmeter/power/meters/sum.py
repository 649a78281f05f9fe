"""Several meters as one: the first measures the run's energy, such as the GPUs', and all together the machine's."""

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from epochmeter.machine.amd import find_card, find_cards
from epochmeter.power.meter import Joules, Meter, NullMeter, open_meter
from epochmeter.power.meters.amd import open_amd
from epochmeter.power.meters.nvml import open_nvml
from epochmeter.power.power_series import PowerSamples, Sampling
from epochmeter.power.uncertainty import Sensors


def open_sum(*, gpus: Sequence[str], root: Path, parts: Sequence[Mapping[str, object]]) -> Meter:
    """Open several meters as one; the first part only, with the reason, if a part does not measure.

    An estimate is never added to a measurement.
    """
    meters = [open_meter(part, gpus=gpus, root=root) for part in parts]
    if not meters:
        return NullMeter("meter=sum: meter.parts is empty.")
    unmeasured = [meter.energy for meter in meters if meter.energy["source"] in ("none", "estimated")]
    if not unmeasured:
        return SumMeter(meters)
    first, *rest = meters
    for meter in rest:
        meter.close()
    if first.energy not in unmeasured:
        own = (first.energy["reason"] or "").removesuffix(".")
        lacking = [f"no machine_energy_j: {energy['reason']}" for energy in unmeasured]
        first.energy["reason"] = "; ".join(filter(None, [own, *lacking]))
    return first


def open_gpus(*, gpus: Sequence[str], root: Path, sensors: Sensors | None = None) -> Meter:
    """Open the meter of the GPUs used, which are of one vendor."""
    is_amd = bool(gpus) and find_card(gpus[0], find_cards(root)) is not None
    return (open_amd if is_amd else open_nvml)(gpus=gpus, root=root, sensors=sensors)


class SumMeter(Meter):
    """Meters with different domain names."""

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = meters
        self.domains = {name: domain for meter in meters for name, domain in meter.domains.items()}
        reasons = [meter.energy["reason"] for meter in meters]
        self.energy = {
            **meters[0].energy,
            "reason": " ".join(filter(None, reasons)) or None,
            "machine": {
                "covers": " + ".join(meter.energy["covers"] or "" for meter in meters),
                "domains": [name for meter in meters for name in meter.energy["domains"]],
            },
        }

    def read(self) -> dict[str, float]:
        return {name: joules for meter in self._meters for name, joules in meter.read().items()}

    def total(self, values: Mapping[str, float]) -> float | None:
        return self._meters[0].total(values)

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling | None:
        """The sampling of the first part, with the domains of all; 0 samples if the first is not sampled."""
        parts = [meter.sampling(opened_ns, closed_ns) for meter in self._meters]
        sampled = [part for part in parts if part]
        if not sampled:
            return None
        first = parts[0] or Sampling(samples=0, gap_max_s=0.0, failed=0, unavailable={}, peak_w=None, half_width_j=0.0)
        return first._replace(
            failed=sum(part.failed for part in sampled),
            unavailable={name: why for part in sampled for name, why in part.unavailable.items()},
            correction_j={name: joules for part in sampled for name, joules in part.correction_j.items()},
            samples_per_domain={name: count for part in sampled for name, count in part.samples_per_domain.items()},
        )

    def half_width_j(self, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        return self._meters[0].half_width_j(joules, seconds, sampling)

    def unsampled_j(self, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        return self._meters[0].unsampled_j(joules, seconds, sampling)

    def drain(self, before_ns: int) -> PowerSamples:
        """The samples of all parts in the order of time; the total is read when the first part is."""
        parts = [meter.drain(before_ns) for meter in self._meters]
        times_ns = np.concatenate([np.array(part.times_ns) for part in parts])
        order = np.argsort(times_ns, kind="stable")

        def merged(number: int, values: array) -> array:
            """The values of a part in the order of all samples; NaN for the samples of other parts."""
            columns = [values if part is parts[number] else np.full(len(part.times_ns), np.nan) for part in parts]
            return array("d", np.concatenate(columns)[order])

        watts = {name: merged(i, values) for i, part in enumerate(parts) for name, values in part.watts.items()}
        total_w = merged(0, parts[0].total_w)
        return PowerSamples(array("q", times_ns[order].tolist()), watts, total_w, parts[0].response)

    def close(self) -> None:
        for meter in self._meters:
            meter.close()
