"""The energy of a window: joules by domain from two meter readings, their uncertainty, and why any are missing."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from epochmeter.machine.energy_codes import EnergyCode, Finding, Findings
from epochmeter.machine.suspension import suspended_ns
from epochmeter.power.cross_checks import Disagreement, find_disagreements
from epochmeter.power.instrument import mean_age_s, oldest_s, shortest_s
from epochmeter.power.meter import EnergyMeter, Joules
from epochmeter.power.power_series import Sampling
from epochmeter.shared.units import NANOSECOND

MIN_SAMPLES = 3  # fewest samples within a window that has an energy; samples at its borders include power outside of it
IN_STEP_RATIO, IN_STEP_FRACTION = 2.0, 0.05
"""Steps are in step with a sensor if the half-width for power that repeats in each step is larger than this multiple of
that for irregular power, and than this fraction of the energy."""
FAILED_COUNTER = "the counter could not be read, did not advance or ran backwards."
TERM_KEYS = ("energy_j", "net_energy_j", "estimated_energy_j", "machine_energy_j", "energy_uncertainty_j")
"""Energies that can be summed over windows."""


class Reading(NamedTuple):
    """A meter reading: the joules up to `at_ns` (monotonic clock), and how long before and after it was taken.

    `suspended_s` is how long the machine had been suspended since it booted, which the monotonic clock excludes.
    `apart_ns` is the time to the nearest reading, if this one was interpolated or is that one. `failures` has why
    counters are missing, and `conditions` the settings that the energy depends on.
    """

    at_ns: int
    joules: dict[str, float]
    begun_before_ns: int = 0
    ended_after_ns: int = 0
    suspended_s: float = 0.0
    apart_ns: int = 0
    failures: Findings = MappingProxyType({})
    conditions: Mapping[str, str] = MappingProxyType({})

    @property
    def duration_ns(self) -> int:
        return self.begun_before_ns + self.ended_after_ns

    @property
    def begun_ns(self) -> int:
        return self.at_ns - self.begun_before_ns

    @property
    def ended_ns(self) -> int:
        return self.at_ns + self.ended_after_ns


class WindowEnergy(NamedTuple):
    """Energy between two readings: joules by domain, metrics under their short names, and findings on them."""

    joules: dict[str, float]  # joules by domain, also of domains whose instrument is too slow for the window
    metrics: dict[str, float]
    findings: list[Finding]
    unavailable: dict[str, str]  # why a domain of the total has no joules because its instrument failed
    term: Mapping[str, float] = MappingProxyType({})
    """The energy of this window as a term of a sum over windows, even if the window alone is too short.

    It has the available `TERM_KEYS`, `period_s` and `age_s`, the largest and the mean age of a counter's reading, and
    `shortest_s`, the shortest window that has an energy. It has the parts of its uncertainty (`CounterUncertainty`),
    and `idle_uncertainty_j`, that of the idle energy, which is the same in all windows.
    """
    disagreements: tuple[Disagreement, ...] = ()
    """Contradictory energies; the uncertainty of the total includes their differences."""
    is_in_step: bool | None = False
    """Whether the uncertainty is large because a sensor saw the same part of each step only; None: unknown."""

    @property
    def notes(self) -> list[str]:
        """The findings as notes for the record."""
        return [finding.text for finding in self.findings]


class IdlePower(NamedTuple):
    """Mean power while nothing trained, and its 95 % confidence interval (plus or minus)."""

    power_w: float
    uncertainty_w: float


def take_reading(meter: EnergyMeter, *, fresh: bool = True) -> Reading:
    """Read a meter now: sampled power up to the end of the reading, counters on average in its middle.

    `fresh`: take a sample of the power first; otherwise, the last one is extrapolated.
    """
    begun_ns = time.monotonic_ns()
    joules = meter.read(fresh=fresh)
    ended_ns = time.monotonic_ns()
    at_ns = ended_ns if meter.energy["source"] == "sampled" else (begun_ns + ended_ns) // 2
    borders_ns = at_ns - begun_ns, ended_ns - at_ns
    suspended_s = suspended_ns() * NANOSECOND
    return Reading(at_ns, joules, *borders_ns, suspended_s, failures=meter.failures, conditions=meter.conditions())


def energy_of_window(
    before: Reading,
    after: Reading,
    meter: EnergyMeter,
    window_s: float,
    idle: IdlePower | None = None,
    borders_s: np.ndarray | None = None,
) -> WindowEnergy:
    """Compute the energy of a window from the readings before and after it, net of `idle` if that is known.

    A domain has an energy if it was read at both ends, was available in between, and the window is long enough for its
    instrument. If a domain of the total has none, neither has the total.

    Args:
        borders_s: Borders of the consecutive steps of the window (monotonic clock), if they are known.
    """
    seconds = (after.at_ns - before.at_ns) * NANOSECOND
    sampling = meter.sampling(before.ended_ns, after.begun_ns, borders_s)
    unavailable = sampling.unavailable.items() if sampling else ()
    # A counter needs no samples, even if power is sampled under the same name.
    failed = {
        name: Finding(EnergyCode.SENSOR_LOST, f"{why}.")
        for name, why in unavailable
        if meter.domains[name].source == "sampled"
    }
    short = {name: why for name in meter.domains if (why := _too_short_reason(name, meter, seconds, sampling))}
    used = _energy_between(before.joules, after.joules, meter, sampling)
    stopped = {name for name, value in used.items() if value == 0 and _is_counted(name, meter)}
    # A counter may not advance in a short window; it then counts that energy in the next one.
    summable = {name: used[name] for name in sorted(used.keys() - failed - (stopped - short.keys()))}
    available = {name: value for name, value in summable.items() if name not in stopped}
    joules = {name: value for name, value in available.items() if name not in short}
    unmeasured = [name for name in meter.domains if name not in joules]
    stated = {**short, **failed}
    reasons = {name: stated.get(name) or _counter_failure(name, before, after) for name in unmeasured}
    # The readings enclose slightly more time than the window, or were taken shortly before or after its borders.
    apart_s = max(0.0, seconds - window_s) + (before.apart_ns + after.apart_ns) * NANOSECOND
    reading_s = (before.duration_ns + after.duration_ns) * NANOSECOND
    comparable = {name: joules for name, joules in summable.items() if name not in short or _is_counted(name, meter)}
    disagreements = _disagreements(comparable, seconds, meter, sampling, reading_s)
    added = set(meter.energy["domains"])
    doubt_j = sum(one.difference_j for one in disagreements if added.intersection(one.check.domains))
    total = _total_metrics(summable, seconds, apart_s, meter, sampling, doubt_j)
    total |= _net_metrics(total, seconds, idle)
    has_total = meter.total(joules) is not None
    metrics = (total if has_total else {}) | _machine_metrics(meter, joules)
    if meter.energy["source"] != "estimated":
        metrics |= {f"energy_{name}_j": value for name, value in joules.items()}
    # If the total has an energy, domains outside of it, such as a cross-check, may lack one without a note.
    needed = _machine_domains(meter) if has_total else meter.domains
    findings = _findings({name: why for name, why in reasons.items() if name in needed or name in failed})
    if sampling and sampling.failed:
        bridged = f"{sampling.failed} power readings failed; short gaps are interpolated."
        findings.append(Finding(EnergyCode.GAPS_BRIDGED, bridged))
    findings += _changed_conditions(before, after)
    failures = {} if has_total else {name: why.text for name, why in reasons.items() if why != short.get(name)}
    term = _term(summable, total, seconds, meter, sampling)
    if idle and "net_energy_j" in term:
        term["idle_uncertainty_j"] = idle.uncertainty_w * seconds
    in_step = _is_in_step(metrics, meter, sampling)
    return WindowEnergy(available, metrics, findings, failures, term, disagreements, in_step)


def _counter_failure(name: str, before: Reading, after: Reading) -> Finding:
    """Return why a counter gave no energy in a window that is long enough for it."""
    stated = after.failures.get(name) or before.failures.get(name)
    if stated and stated.code is not EnergyCode.NOT_READ:
        return stated._replace(text=f"{stated.text}.")
    if not (name in before.joules and name in after.joules):
        return Finding(EnergyCode.NOT_READ, FAILED_COUNTER)
    is_reset = after.joules[name] < before.joules[name]
    return Finding(EnergyCode.COUNTER_RESET if is_reset else EnergyCode.COUNTER_STOPPED, FAILED_COUNTER)


def _changed_conditions(before: Reading, after: Reading) -> list[Finding]:
    """Return a finding per setting that the energy depends on and that changed within the window."""
    names = sorted(name for name, value in before.conditions.items() if after.conditions.get(name, value) != value)
    return [
        Finding(
            EnergyCode.SETTINGS_CHANGED, f"{name} changed from {before.conditions[name]} to {after.conditions[name]}."
        )
        for name in names
    ]


def _is_counted(name: str, meter: EnergyMeter) -> bool:
    return meter.domains[name].source != "sampled"


def _disagreements(
    joules: Joules, seconds: float, meter: EnergyMeter, sampling: Sampling | None, reading_s: float
) -> tuple[Disagreement, ...]:
    """Compare domains that measure the same energy, or a part of it.

    They are read one after the other, so in `reading_s` seconds, the duration of both readings, their energies differ.
    """

    def half_width_j(names: Sequence[str]) -> float:
        between_j = reading_s / seconds * sum(joules[name] for name in names)
        return between_j + meter.half_width_j(joules, seconds, sampling, names)

    return tuple(find_disagreements(meter.cross_checks, joules, half_width_j))


def _is_in_step(metrics: Mapping[str, float], meter: EnergyMeter, sampling: Sampling | None) -> bool | None:
    """Whether sensors of the total saw the same part of each step only; None if it is unknown."""
    in_step_j = meter.in_step_j(sampling) if "energy_j" in metrics else 0.0
    if not in_step_j or not sampling:
        return None if in_step_j is None else False
    return in_step_j > max(IN_STEP_RATIO * sampling.structure_j, IN_STEP_FRACTION * metrics["energy_j"])


def _energy_between(before: Joules, after: Joules, meter: EnergyMeter, sampling: Sampling | None) -> dict[str, float]:
    """Joules of each domain between two readings, with the corrections of sampled domains added.

    A counter that ran backwards was reset, and is left out.
    """
    used = {}
    for name in meter.domains.keys() & before.keys() & after.keys():
        increase_j = after[name] - before[name]
        if meter.domains[name].source == "sampled":
            used[name] = increase_j + (sampling.correction_j.get(name, 0.0) if sampling else 0.0)
        elif increase_j >= 0:
            used[name] = increase_j
    return used


def _too_short_reason(name: str, meter: EnergyMeter, seconds: float, sampling: Sampling | None) -> Finding | None:
    """Why a window is too short for a domain's instrument; None if it is long enough."""
    domain = meter.domains[name]
    if seconds < (least_s := shortest_s(domain)):
        text = f"window of {seconds:.3g} s, at least {least_s:.3g} s needed by this instrument."
        return Finding(EnergyCode.WINDOW_TOO_SHORT, text)
    inside = sampling.samples_per_domain.get(name, 0) if sampling else 0
    if domain.source == "sampled" and inside < MIN_SAMPLES:
        text = f"{inside} power samples in {seconds:.3g} s, at least {MIN_SAMPLES} needed."
        return Finding(EnergyCode.TOO_FEW_SAMPLES, text)
    return None


def measure_idle(meter: EnergyMeter, seconds: float, sleep: Callable[[float], None] = time.sleep) -> WindowEnergy:
    """Measure the idle energy over some seconds; returns at once with nothing if the meter does not measure."""
    if meter.energy["source"] not in ("counter", "sampled") or seconds <= 0:
        return WindowEnergy({}, {}, [], {})
    before = take_reading(meter)
    sleep(seconds)
    after = take_reading(meter)
    return energy_of_window(before, after, meter, (after.at_ns - before.at_ns) * NANOSECOND)


def _term(
    joules: Joules, total: Mapping[str, float], seconds: float, meter: EnergyMeter, sampling: Sampling | None
) -> dict[str, float]:
    """The term of a window in a sum over windows, given the metrics of its total; empty if nothing can be summed."""
    metrics = {**total, **_machine_metrics(meter, joules)}
    term = {name: value for name, value in metrics.items() if name in TERM_KEYS}
    if not term:
        return {}
    domains = [meter.domains[name] for name in meter.energy["domains"]]
    counted = [domain for domain in domains if domain.source == "counter"]
    # The delay of a power sensor is in the half-width of its samples, however short the window is.
    term["period_s"] = max(map(oldest_s, counted), default=0.0)
    term["shortest_s"] = max(map(shortest_s, domains))
    if "energy_uncertainty_j" in term and counted:
        term["age_s"] = max(map(mean_age_s, counted))
        term |= meter.counter_uncertainty(joules, seconds, sampling)._asdict()
    return term


def _total_metrics(
    joules: Joules,
    seconds: float,
    apart_s: float,
    meter: EnergyMeter,
    sampling: Sampling | None,
    doubt_j: float,
) -> dict[str, float]:
    total_j = meter.total(joules)
    if total_j is None:
        return {}
    if meter.energy["source"] == "estimated":
        return {"estimated_energy_j": total_j}
    mean_w = total_j / seconds
    half_width_j = abs(mean_w) * apart_s + meter.half_width_j(joules, seconds, sampling) + doubt_j
    metrics = {"energy_j": total_j, "power_mean_w": mean_w}
    if sampling and sampling.samples:
        metrics |= {"power_samples": sampling.samples, "power_gap_max_s": sampling.gap_max_s}
        metrics |= {} if sampling.peak_w is None else {"power_peak_w": sampling.peak_w}
    return {**metrics, "energy_uncertainty_j": half_width_j}


def _net_metrics(total: Mapping[str, float], seconds: float, idle: IdlePower | None) -> dict[str, float]:
    """Return the energy above idle. Errors of the two measurements are independent, so their squares are added."""
    if idle is None or "energy_j" not in total:
        return {}
    return {
        "net_energy_j": total["energy_j"] - idle.power_w * seconds,
        "net_energy_uncertainty_j": math.hypot(total["energy_uncertainty_j"], idle.uncertainty_w * seconds),
    }


def _machine_metrics(meter: EnergyMeter, joules: Joules) -> dict[str, float]:
    """The machine's energy; none unless it has domains and all of them have an energy."""
    domains = _machine_domains(meter)
    has_all = domains and joules.keys() >= set(domains)
    return {"machine_energy_j": math.fsum(joules[name] for name in domains)} if has_all else {}


def _machine_domains(meter: EnergyMeter) -> Sequence[str]:
    return meter.energy["machine"]["domains"] if "machine" in meter.energy else ()


def _findings(reasons: Findings) -> list[Finding]:
    """Return the findings on domains without an energy, those of the same reason as one."""
    domains: dict[Finding, list[str]] = {}
    for name, reason in sorted(reasons.items()):
        domains.setdefault(reason, []).append(name)
    return [
        reason._replace(text=f"no energy of {', '.join(names)}: {reason.text}") for reason, names in domains.items()
    ]
