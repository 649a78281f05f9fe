"""The verdicts on the energies of a run, of its mean epoch and its total, from those of its windows and its flags."""

from collections.abc import Iterable, Mapping, Sequence

from epochmeter.machine.energy_codes import CODES, EnergyCode, Finding, first_of_each_code, judge
from epochmeter.results.documents import EnergyVerdict
from epochmeter.results.run_info import Energy, RunInfo
from epochmeter.results.summary import (
    Window,
    averaged_windows,
    collect_flags,
    mean_energy_note,
    no_total_note,
    training_windows,
)

FLAG_CODES = {
    "gpu_shared": EnergyCode.SHARED_GPU,
    "setting_changed": EnergyCode.SETTINGS_CHANGED,
    "concurrent_training": EnergyCode.CONCURRENT,
}
"""Flag of a run -> code of its energy. A flag may be set before the first window, or after the last one."""
NO_MEAN_EPOCH = "no mean epoch: there is no epoch after the warm-up, or there were several trainings"
NO_WINDOW = "no window was measured"


def energy_verdicts(
    windows: Sequence[Window], run: RunInfo, metrics: Mapping[str, float], warmup_epochs: int
) -> dict[str, EnergyVerdict]:
    """Return the verdict on the energy by section of the metrics: `steady` and `total`."""
    every = training_windows(windows)
    steady = averaged_windows(every, warmup_epochs)
    total_notes = no_total_note(every) if every else [NO_WINDOW]
    steady_notes = mean_energy_note(every, warmup_epochs) if steady else [NO_MEAN_EPOCH]
    if not every:
        steady_notes = [NO_WINDOW]
    sections = {"steady": (steady, steady_notes), "total": (every, total_notes)}
    in_windows = collect_flags(windows)  # these are reasons of their windows
    flags = {flag: text for flag, text in run.flags.items() if flag in FLAG_CODES and flag not in in_windows}
    return {
        section: _verdict(of_section, notes, flags, run.energy, has_energy=f"{section}/energy_j" in metrics)
        for section, (of_section, notes) in sections.items()
    }


def verdict_of_run(verdicts: Mapping[str, EnergyVerdict], metrics: Mapping[str, float | None]) -> EnergyVerdict:
    """Return the verdict on the energy that represents a run: of its mean epoch, or of all of it without one."""
    return verdicts.get("total" if metrics.get("steady/e2e_s") is None else "steady", {})


def _verdict(
    windows: Sequence[Window], notes: Iterable[str], flags: Mapping[str, str], energy: Energy, *, has_energy: bool
) -> EnergyVerdict:
    recorded = [reason for window in windows for reason in window.get("energy_reasons", [])]
    findings = [
        Finding(CODES[reason["code"]], reason["text"])
        for reason in first_of_each_code(recorded)
        if reason["code"] in CODES  # a later version may have others
    ]
    known = {finding.code.value for finding in findings}
    of_meter = [code for code in energy.codes if code in CODES and code not in known]
    findings += [Finding(CODES[code], energy.reason or "") for code in of_meter]
    missing = "the energy of windows is missing" if not has_energy and not findings else ""
    findings += [Finding(EnergyCode.OTHER_WINDOW, note) for note in (*notes, missing) if note]
    if has_energy:
        findings += [Finding(FLAG_CODES[flag], text) for flag, text in flags.items()]
    verdict = judge(findings, has_energy=has_energy)
    reasons = [finding.to_record() for finding in verdict.findings]
    return {"energy_valid": verdict.is_valid, **({"energy_reasons": reasons} if reasons else {})}
