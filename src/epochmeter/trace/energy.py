"""Energy of the traced steps by module and operator, from sampled power, as by phase in `epochmeter.power.phases`."""

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epochmeter.power.phases.phase_energy import MAX_MISFIT, PhaseEnergy, UnresolvedError, timeline_energy
from epochmeter.power.phases.step_timeline import Timeline
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.uncertainty import Response
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.record import POWER, Record
from epochmeter.shared.units import NANOSECOND
from epochmeter.trace.kineto import Ints

LONGEST = 10  # names with an energy of their own; all other names are estimated together
OTHERS = "(others)"
CONTEXT_NS = 10 * 10**9  # samples before and after the traced steps that are read: more than the delay of any sensor
TAIL_BYTES = 1 << 25
"""Most bytes that are read at the end of the power samples: more than half an hour of samples every 10 ms."""


@dataclass(frozen=True)
class TracedPower:
    """Total power around the traced steps, which begin and end at these times of the monotonic clock."""

    opened_ns: int
    closed_ns: int
    samples: PowerSamples
    half_width_j: float  # of the 95 % confidence interval of the energy of the traced steps

    @property
    def gross_j(self) -> float:
        """Energy of the traced steps, corrected for the delay of the power sensor."""
        sampled_ns, response = np.array(self.samples.times_ns), self.samples.response
        delay_ns = round((response.delay_s if response else 0.0) / NANOSECOND)
        borders = np.array([self.opened_ns, self.closed_ns]) + delay_ns
        if not len(sampled_ns) or not sampled_ns[0] <= borders[0] < borders[1] <= sampled_ns[-1]:
            raise UnresolvedError("no power was sampled at the start or the end of the traced steps.")
        times_ns = np.unique(np.clip(sampled_ns, *borders))
        watts = np.interp(times_ns, sampled_ns, self.samples.total_w)
        return float((np.diff(times_ns) * (watts[1:] + watts[:-1])).sum()) / 2 * NANOSECOND

    def energy_by_name(self, begin_ns: Ints, labels: Ints, names: Sequence[str]) -> PhaseEnergy:
        """Estimate the energy by name.

        `begin_ns` has the starts of consecutive stretches, relative to the first start, and the end of the last
        stretch. `labels` has the index of each stretch's name.
        """
        window_ns, length_ns = self.closed_ns - self.opened_ns, np.diff(begin_ns)
        if abs(int(begin_ns[-1]) - window_ns) > MAX_MISFIT * window_ns:
            return PhaseEnergy(reason="the duration of the steps differs between the trace and the run.")
        longest = np.argsort(-np.bincount(labels, length_ns, len(names)), kind="stable")[:LONGEST]
        group = np.full(len(names), len(longest))
        group[longest] = np.arange(len(longest))
        timeline = Timeline(group[labels], length_ns * NANOSECOND, [*(names[index] for index in longest), OTHERS])
        try:
            return timeline_energy(timeline, self.opened_ns, self.samples, self.gross_j, self.half_width_j)
        except UnresolvedError as reason:
            return PhaseEnergy(reason=str(reason))


def read_power(record: Record) -> TracedPower | str:
    """Return the power that was sampled while the trace of a run was recorded, or why there is none."""
    run = RunFolder(record.folder).run
    traced = run.traced
    if "energy_uncertainty_j" not in traced:
        reason = traced.get("reason") or run.energy.reason or ""
        return reason or "power was not sampled while the steps were traced."
    response = Response(**traced["response"]) if traced["response"] else None
    window_ns = traced["opened_ns"], traced["closed_ns"]
    try:
        times_ns, watts = _read_samples(record, window_ns[0] - CONTEXT_NS, window_ns[1] + CONTEXT_NS)
    except (OSError, ValueError) as error:
        return f"the power samples cannot be read: {error}."
    return TracedPower(*window_ns, PowerSamples(times_ns, {}, watts, response), traced["energy_uncertainty_j"])


def _read_samples(record: Record, since_ns: int, until_ns: int) -> "tuple[array[int], array[float]]":
    """Read times and total power in a window near the end of the record."""
    with open(record.folder / POWER, "rb") as file:
        total = file.readline().rstrip().split(b",").index(b"total_w")
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - TAIL_BYTES) - 1)
        rows = [line.split(b",") for line in file.read().splitlines()[1:]]
    complete = (row for row in rows if len(row) > total and row[total])
    inside = [row for row in complete if since_ns <= int(row[0]) <= until_ns]
    return array("q", [int(row[0]) for row in inside]), array("d", [float(row[total]) for row in inside])
