"""The energy of a run's process outside of its windows: before the first, between two, and after the last."""

import math
from collections.abc import Mapping, Sequence

from epochmeter.machine.energy_codes import EnergyCode, EnergyReason, Finding
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import Reading, energy_of_window
from epochmeter.results.energy_sums import Interval, sum_uncertainty
from epochmeter.results.run_info import StageEnergy
from epochmeter.shared.units import NANOSECOND

START, BETWEEN, FINISH = "start", "between", "finish"
MEASURED = ("counter", "sampled")
OVERLAPPING = Finding(EnergyCode.READ_APART, "the windows overlap.")


class StageMeter:
    """Adds up the energy between windows, from the readings at their borders.

    A stage of which an energy is not known, such as windows that overlap, is absent.

    Attributes:
        stages: Energy and its 95 % confidence interval (plus or minus) by stage, when the process has ended.
        reasons: Why the energy of a stage is not known, by stage.
    """

    def __init__(self, meter: EnergyMeter) -> None:
        self.stages: dict[str, StageEnergy] = {}
        self._meter = meter
        self._last: Reading | None = None  # the last border; None before the process has started
        self.reasons: dict[str, list[EnergyReason]] = {}
        self._intervals: dict[str, list[Interval]] = {}

    def begin(self, reading: Reading) -> None:
        """Begin with a reading, as the process is started."""
        self._last = reading

    def add_window(self, before: Reading, after: Reading) -> None:
        """Add the stage before a window, given by the readings at its borders; call it for each window, in order."""
        if self._last is not None:
            self._add(BETWEEN if START in self._intervals else START, self._last, before)
            self._last = after

    def end(self, reading: Reading, unknown: Finding = OVERLAPPING) -> None:
        """End with a reading, when the process has ended; `unknown` is why no stage is known if none has begun."""
        if self._last is not None:
            self._add(FINISH, self._last, reading)
            known = {stage: of for stage, of in self._intervals.items() if stage not in self.reasons}
            everything = [interval for intervals in known.values() for interval in intervals]
            self.stages = {stage: _energy(of, everything) for stage, of in known.items()}
        elif self._meter.energy["source"] in MEASURED:
            self.reasons = {stage: [unknown.to_record()] for stage in (START, BETWEEN, FINISH)}

    def _add(self, stage: str, begun: Reading, ended: Reading) -> None:
        if self._meter.energy["source"] not in MEASURED:
            return
        intervals = self._intervals.setdefault(stage, [])
        if begun.at_ns == ended.at_ns:
            return
        term: Mapping[str, float] = {}
        findings = [OVERLAPPING]
        if begun.at_ns < ended.at_ns:
            used = energy_of_window(begun, ended, self._meter, (ended.at_ns - begun.at_ns) * NANOSECOND)
            term, findings = used.term, used.findings
        if stage not in self.reasons and "energy_j" in term and "energy_uncertainty_j" in term:
            intervals.append(Interval(begun.at_ns, ended.at_ns, term))
        else:
            self.reasons.setdefault(stage, [finding.to_record() for finding in findings])


def _energy(intervals: Sequence[Interval], others: Sequence[Interval]) -> StageEnergy:
    uncertainty = sum_uncertainty(intervals, others)
    return {
        "energy_j": math.fsum(interval.term["energy_j"] for interval in intervals),
        "uncertainty_j": uncertainty.half_width_j,
        "parts": uncertainty._asdict(),
    }
