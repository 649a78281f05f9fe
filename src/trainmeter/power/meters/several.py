"""Several meters as one, such as a GPU's and its CPU's: domains side by side, totals added up."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from operator import itemgetter
from os import PathLike
from typing import Any

from trainmeter.power.meter import SOURCES, Absent, Joules, Meter, open_meter
from trainmeter.power.series import Powers, Sampling


def open_sum(*, gpus: Sequence[str], root: str | PathLike[str], parts: Sequence[Mapping[str, Any]]) -> Meter:
    """The sum of the meters that `parts` specifies; absent, with the reasons, unless each of them measures, or each
    estimates."""
    meters = [open_meter(part, gpus=gpus, root=root) for part in parts]
    if fault := unfit(meters):
        for meter in meters:
            meter.close()
        return Absent(fault)
    return Sum(meters)


def unfit(meters: Sequence[Meter]) -> str | None:
    """Why meters make no sum, or None where they do."""
    if not meters:
        return "meter=sum adds up meter.parts, and there are none."
    if absent := [meter.energy["reason"] for meter in meters if meter.energy["source"] == "none"]:
        return " ".join(absent)
    guessed = [meter.energy for meter in meters if meter.energy["source"] == "estimated"]
    if 0 < len(guessed) < len(meters):
        why = " ".join(energy["reason"] for energy in guessed if energy["reason"])
        covers = " + ".join(energy["covers"] for energy in guessed)
        return f"meter=sum adds no estimate to a measurement, and {covers} is but estimated: {why}"
    return None


class Sum:
    """The meter that is made of meters, whose domains all have names of their own."""

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = meters
        self.domains = {name: domain for meter in meters for name, domain in meter.domains.items()}
        reasons = [meter.energy["reason"] for meter in meters]
        self.energy: dict[str, Any] = {
            "source": max((meter.energy["source"] for meter in meters), key=SOURCES.index),
            "covers": " + ".join(meter.energy["covers"] for meter in meters),
            "domains": [name for meter in meters for name in meter.energy["domains"]],
            "reason": " ".join(reason for reason in reasons if reason) or None,
        }

    def read(self) -> dict[str, float]:
        return {name: joules for meter in self._meters for name, joules in meter.read().items()}

    def total(self, values: Mapping[str, float]) -> float | None:
        totals = [meter.total(values) for meter in self._meters]
        return None if None in totals else math.fsum(total for total in totals if total is not None)

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling | None:
        """That of the parts that are sampled; the sum's peak is not known, for they peak at different moments."""
        parts = [meter.sampling(opened_ns, closed_ns) for meter in self._meters]
        sampled = [part for part in parts if part]
        if not sampled:
            return None
        return Sampling(
            samples=min(part.samples for part in sampled),
            gap_max_s=max(part.gap_max_s for part in sampled),
            failed=sum(part.failed for part in sampled),
            lost={name: why for part in sampled for name, why in part.lost.items()},
            peak_w=None,
            half_width_j=sum(part.half_width_j for part in sampled),
            inside={name: count for part in sampled for name, count in part.inside.items()},
            parts=parts,
        )

    def half_width_j(self, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        """Added up: what is wrong with one part's instruments may well be wrong with another's."""
        parts = sampling.parts if sampling else [None] * len(self._meters)
        return sum(meter.half_width_j(joules, seconds, part) for meter, part in zip(self._meters, parts, strict=True))

    def drain(self, before_ns: int) -> Powers:
        """The samples of all parts in the order of time; at no moment are all of them read, so the total is not."""
        parts = [meter.drain(before_ns) for meter in self._meters]
        rows = [
            (at_ns, {name: values[row] for name, values in part.watts.items()})
            for part in parts
            for row, at_ns in enumerate(part.times_ns)
        ]
        rows.sort(key=itemgetter(0))
        names = [name for part in parts for name in part.watts]
        return Powers(
            array("q", (at_ns for at_ns, _ in rows)),
            {name: array("d", (watts.get(name, math.nan) for _, watts in rows)) for name in names},
            array("d", [math.nan]) * len(rows),
        )

    def close(self) -> None:
        for meter in self._meters:
            meter.close()
