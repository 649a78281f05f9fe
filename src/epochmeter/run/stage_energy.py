"""The energy of a run's process outside of its windows: before the first, between two, and after the last."""

from collections.abc import Mapping

from epochmeter.machine.energy_codes import EnergyCode, EnergyReason, Finding
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import Reading, energy_of_window
from epochmeter.results.run_info import StageEnergy
from epochmeter.shared.units import NANOSECOND

START, BETWEEN, FINISH = "start", "between", "finish"
MEASURED = ("counter", "sampled")
OVERLAPPING = Finding(EnergyCode.READ_APART, "the windows overlap.")
NO_ENERGY = {"energy_j": 0.0, "energy_uncertainty_j": 0.0}


class StageMeter:
    """Adds up the energy between windows, from the readings at their borders.

    A stage of which an energy is not known, such as windows that overlap, is absent.

    Attributes:
        stages: Energy and its 95 % confidence interval (plus or minus) by stage.
        reasons: Why the energy of a stage is not known, by stage.
    """

    def __init__(self, meter: EnergyMeter) -> None:
        self.stages: dict[str, StageEnergy] = {}
        self._meter = meter
        self._last: Reading | None = None  # the last border; None before the process has started
        self.reasons: dict[str, list[EnergyReason]] = {}

    def begin(self, reading: Reading) -> None:
        """Begin with a reading, as the process is started."""
        self._last = reading

    def add_window(self, before: Reading, after: Reading) -> None:
        """Add the stage before a window, given by the readings at its borders; call it for each window, in order."""
        if self._last is not None:
            self._add(BETWEEN if START in {*self.stages, *self.reasons} else START, self._last, before)
            self._last = after

    def end(self, reading: Reading, unknown: Finding = OVERLAPPING) -> None:
        """End with a reading, when the process has ended; `unknown` is why no stage is known if none has begun."""
        if self._last is not None:
            self._add(FINISH, self._last, reading)
        elif self._meter.energy["source"] in MEASURED:
            self.reasons = {stage: [unknown.to_record()] for stage in (START, BETWEEN, FINISH)}

    def _add(self, stage: str, begun: Reading, ended: Reading) -> None:
        if self._meter.energy["source"] not in MEASURED:
            return
        term: Mapping[str, float] = NO_ENERGY if begun.at_ns == ended.at_ns else {}
        findings = [OVERLAPPING]
        if begun.at_ns < ended.at_ns:
            used = energy_of_window(begun, ended, self._meter, (ended.at_ns - begun.at_ns) * NANOSECOND)
            term, findings = used.term, used.findings
        if stage in self.reasons or "energy_j" not in term or "energy_uncertainty_j" not in term:
            self.reasons.setdefault(stage, [finding.to_record() for finding in findings])
            self.stages.pop(stage, None)
            return
        earlier = self.stages.get(stage, {"energy_j": 0.0, "uncertainty_j": 0.0})
        self.stages[stage] = {
            "energy_j": earlier["energy_j"] + term["energy_j"],
            "uncertainty_j": earlier["uncertainty_j"] + term["energy_uncertainty_j"],
        }
