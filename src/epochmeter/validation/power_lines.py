"""Checks of energy counters and power sensors, with a known load that is switched on and off."""

import math
import statistics
from collections.abc import Callable, Iterator

import numpy as np

from epochmeter.power.cross_checks import CALIBRATION
from epochmeter.power.instrument import Domain
from epochmeter.power.renewals import STATED_RANGE
from epochmeter.validation.bench import Bench
from epochmeter.validation.line import Finding, Found, Untestable
from epochmeter.validation.sensor_response import Measured
from epochmeter.validation.switched_load import Readings, Work

COARSER = 1.5  # a resolution may be coarser than stated by this ratio, as most readings are not neighbors
AVERAGING_OFF, LAG_OFF = 0.2, 0.1
"""Largest difference from a stated averaging time and lag, as fractions of the sensor's memory."""
AVERAGING_OFF_S, LAG_OFF_S = 0.004, 0.008
"""The same in seconds, for sensors with hardly any memory."""
DRIFT, SPREAD = 0.05, 0.03  # largest change of the idle power, and coefficient of variation of joules per GFLOP
MAX_IDLE = 0.95  # idle power, as a fraction of the power under load
GIGA = 1e9


def no_instruments(bench: Bench) -> Iterator[Untestable]:
    """Yield why nothing about energy can be tested, if so."""
    if not bench.instruments:
        problem = bench.no_energy
        yield Untestable(why=problem.message if problem else "this machine has no energy counter and no power sensor",
                         hint=problem.hint if problem else "")  # fmt: skip


def of_each(bench: Bench, found: Callable[[str, Domain, Measured], Found]) -> Iterator[Found]:
    """Yield a finding of each instrument whose response was measured, and why it was not of each other one."""
    yield from no_instruments(bench)
    for name, instrument in bench.instruments.items():
        measured = bench.responses[name]
        if isinstance(measured, str):
            yield Untestable(why=measured, subject=name)
        else:
            yield found(name, instrument.domain, measured)


def resolution(bench: Bench) -> Iterator[Found]:
    """The smallest difference of two readings."""

    def found(name: str, domain: Domain, measured: Measured) -> Found:
        unit = "J" if domain.source == "counter" else "W"
        if not measured.step:
            return Untestable(why="too few different readings show it", subject=name)
        return Finding(
            subject=name, value=measured.step, unit=unit, high=COARSER * domain.step if domain.step else None,
            failure=f"coarser than stated, {domain.step:g} {unit}: stated uncertainties may be too small",
        )  # fmt: skip

    return of_each(bench, found)


def renewal(bench: Bench) -> Iterator[Found]:
    """How often a new reading appears."""

    def found(name: str, domain: Domain, measured: Measured) -> Found:
        stated_s = domain.period_s if domain.source == "counter" else domain.response.renewal_s
        if not measured.is_held:
            why = "each reading was a new one: it is renewed at least as often as it was read"
            return Untestable(why=why, subject=name)
        low, high = (factor * stated_s for factor in STATED_RANGE) if stated_s else (None, None)
        return Finding(
            subject=name, value=measured.response.held_s, unit="s", high=high,
            low=None if domain.source == "counter" else low,
            failure=f"stated {stated_s:g} s" if stated_s else "",
        )  # fmt: skip

    return of_each(bench, found)


def averaging(bench: Bench) -> Iterator[Found]:
    """How much of the time a reading averages over."""

    def found(name: str, domain: Domain, measured: Measured) -> Found:
        stated, value_s = domain.response, measured.response.averaging_s or 0.0
        if not has_response(domain, measured):
            return Untestable(why="it is renewed faster than it was read", subject=name)
        if stated.averaging_s is None:
            return Finding(subject=name, value=value_s, unit="s", low=0.0)
        off_s = max(AVERAGING_OFF_S, AVERAGING_OFF * stated.memory_s)
        return Finding(
            subject=name, value=value_s, unit="s", low=max(0.0, stated.averaging_s - off_s),
            high=stated.averaging_s + off_s,
            failure=f"stated {stated.averaging_s:g} s: runs of this machine use the measured response",
            details={"unsampled": measured.response.unsampled, "explained": measured.explained},
        )  # fmt: skip

    return of_each(bench, found)


def lag(bench: Bench) -> Iterator[Found]:
    """How late a reading is."""

    def found(name: str, domain: Domain, measured: Measured) -> Found:
        stated, value_s = domain.response, measured.response.lag_s
        if not has_response(domain, measured):
            return Untestable(why="it is renewed faster than it was read", subject=name)
        off_s = max(LAG_OFF_S, LAG_OFF * max(stated.memory_s, measured.response.memory_s))
        return Finding(
            subject=name, value=value_s, unit="s", low=stated.lag_s - off_s, high=stated.lag_s + off_s,
            failure=f"stated {stated.lag_s:g} s: runs of this machine use the measured response",
        )  # fmt: skip

    return of_each(bench, found)


def has_response(domain: Domain, measured: Measured) -> bool:
    """Whether the measured response is that of the instrument, rather than that of the readings here."""
    return domain.source == "sampled" or measured.is_held


def counter_and_power(bench: Bench) -> Iterator[Found]:
    """Two measurements of the same energy, through their responses, so that borders are no error."""
    yield from no_instruments(bench)
    if bench.instruments and not bench.cross_checks:
        yield Untestable(why="no energy here is measured by two instruments")
    for check in bench.cross_checks:
        name = f"{' + '.join(check.parts)} / {' + '.join(check.reference)}"
        joules = [_whole_j(bench, names) for names in (check.parts, check.reference)]
        reasons = [value for value in joules if isinstance(value, str)]
        if reasons:
            yield Untestable(why=reasons[0], subject=name)
            continue
        parts_j, reference_j = (float(value) for value in joules)
        yield Finding(
            subject=name, value=parts_j / reference_j, unit="", high=1 + CALIBRATION,
            low=1 - CALIBRATION if check.relation == "equal to" else 0.0,
            failure="they differ by more than the calibration that NVIDIA states for a sensor: one of them is wrong",
            details={"parts_j": parts_j, "reference_j": reference_j},
        )  # fmt: skip


def _whole_j(bench: Bench, names: tuple[str, ...]) -> float | str:
    """Return the energy of domains while the load was switched, or why it is unknown."""
    timeline, joules = bench.switched.timeline, 0.0
    for name in names:
        measured = bench.responses.get(name, "it has no instrument")
        if isinstance(measured, str):
            return f"{name}: {measured}"
        joules += float(measured.joules(timeline, np.zeros(1), np.array([timeline.window_s]))[0])
    return joules


def idle_power(bench: Bench) -> Iterator[Found]:
    """Power without load: below that of the load; above 0, except for a part, which may be off."""
    yield from no_instruments(bench)
    for name, instrument in bench.instruments.items():
        powers_w = _idle_w(bench, name, instrument.domain)
        measured = bench.responses[name]
        if isinstance(powers_w, str) or isinstance(measured, str):
            yield Untestable(why=powers_w if isinstance(powers_w, str) else str(measured), subject=name)
            continue
        yield Finding(
            subject=name, value=statistics.fmean(powers_w), unit="W", high=MAX_IDLE * measured.load_w,
            low=1e-3 if [*bench.total] == [name] else 0.0,
            failure="without load, the power is not lower than with it", details={"load_w": measured.load_w},
        )  # fmt: skip


def idle_drift(bench: Bench) -> Iterator[Found]:
    """How much the idle power differs before and after the load."""
    yield from no_instruments(bench)
    for name, instrument in bench.instruments.items():
        powers_w = _idle_w(bench, name, instrument.domain)
        if isinstance(powers_w, str):
            yield Untestable(why=powers_w, subject=name)
            continue
        before_w, after_w = powers_w
        rounded_w = instrument.domain.step if instrument.domain.source == "sampled" else 0.0
        changed_w = max(0.0, abs(after_w - before_w) - rounded_w)
        relative = changed_w / abs(before_w) if before_w else math.inf
        yield Finding(
            subject=name, value=relative if changed_w else 0.0, unit="%", high=DRIFT,
            failure="the idle power changes: net energies depend on when it is measured",
            hint="let the device rest: `sweep.cool_below_c=`", details={"before_w": before_w, "after_w": after_w},
        )  # fmt: skip


def _idle_w(bench: Bench, name: str, domain: Domain) -> tuple[float, float] | str:
    powers_w = []
    for begun_s, ended_s, readings in (bench.idle.before, bench.idle.after):
        if problem := readings[name].problem(begun_s, ended_s):
            return problem
        power_w = mean_w(readings[name], domain)
        if power_w is None:
            return "the counter did not advance without load"
        powers_w.append(power_w)
    return powers_w[0], powers_w[1]


def mean_w(readings: Readings, domain: Domain) -> float | None:
    """Return the mean power of some readings: of a counter, between the first and the last time it advanced."""
    if domain.source != "counter":
        return float(readings.values.mean()) if len(readings.values) else None
    ticks = np.flatnonzero(np.diff(readings.values)) + 1
    if len(ticks) < 2:
        return None
    first, last = ticks[0], ticks[-1]
    seconds = readings.times_s[last] - readings.times_s[first]
    return float((readings.values[last] - readings.values[first]) / seconds)


def energy_per_work(bench: Bench) -> Iterator[Found]:
    """How well the energy of the same number of operations repeats."""
    yield from no_instruments(bench)
    for name in bench.total if bench.instruments else ():
        domain = bench.instruments[name].domain
        works = [_work_j(work, readings[name], domain) for work, readings in bench.works[1:]]  # the first: warm-up
        reasons = [value for value in works if isinstance(value, str)]
        if reasons:
            yield Untestable(why=reasons[0], subject=name)
            continue
        per_gflop = [float(value) for value in works]
        mean_j = statistics.fmean(per_gflop)
        if not mean_j > 0:
            yield Untestable(why=f"it measured {mean_j:g} J per GFLOP", subject=name)
            continue
        yield Finding(
            subject=name, value=statistics.stdev(per_gflop) / mean_j, unit="%", high=SPREAD,
            failure="the same work does not take the same energy: clocks or temperature change",
            hint="let the device rest, or lock its clocks", details={"energy_per_gflop_j": mean_j},
        )  # fmt: skip


def _work_j(work: Work, readings: Readings, domain: Domain) -> float | str:
    """Return joules per GFLOP, from the power while readings have power of the work only; or why it is unknown."""
    within = readings.between(work.begun_s + domain.response.settled_s, work.ended_s + domain.response.lag_s)
    if problem := within.problem(work.begun_s + domain.response.settled_s, work.ended_s):
        return problem
    power_w = mean_w(within, domain)
    if power_w is None:
        return "the work was too short for the counter"
    return power_w * (work.ended_s - work.begun_s) / (work.flop / GIGA)
