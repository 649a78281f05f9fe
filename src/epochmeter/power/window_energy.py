"""What a stretch of time used: its energy by domain, how far that can be trusted, and why any of it is missing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from epochmeter.power.meter import MEMORIES, TICKS, Domain, Joules, Meter, shortest_s
from epochmeter.power.power_series import Sampling
from epochmeter.shared.units import NANOSECOND

FEWEST = 3
"""How many samples have to lie within a stretch: those at its borders tell of what was before it and after it."""
TERMS = ("energy_j", "net_energy_j", "estimated_energy_j", "machine_energy_j", "energy_uncertainty_j")
"""Energies that can be summed over windows."""


class Reading(NamedTuple):
    """The joules of a meter so far, when they were read, and how long that took."""

    at_ns: int
    joules: dict[str, float]
    took_ns: int = 0

    @property
    def begun_ns(self) -> int:
        return self.at_ns - self.took_ns // 2

    @property
    def ended_ns(self) -> int:
        return self.begun_ns + self.took_ns


class Consumption(NamedTuple):
    """What was used between two readings: joules by domain, metrics under their short names, and what to say."""

    joules: dict[str, float]
    """Also of domains for whose instrument the stretch was too short to tell."""
    metrics: dict[str, float]
    notes: list[str]
    lost: dict[str, str]
    """Why a domain of the total has no joules, where it is its instrument that told nothing."""
    term: Mapping[str, float] = MappingProxyType({})
    """The energy of this window as a term of a sum over windows, even if the window alone is too short.

    It has the known ones of `TERMS`, and for the slowest instrument of the total `period_s`, the age that a reading may
    have, and `shortest_s`, the shortest window that has an energy.
    """


def reading(meter: Meter) -> Reading:
    """The joules now; stamped with the middle of their reading, which may take a millisecond."""
    begun_ns = time.monotonic_ns()
    joules = meter.read()
    took_ns = time.monotonic_ns() - begun_ns
    return Reading(begun_ns + took_ns // 2, joules, took_ns)


def consumption(
    before: Reading, after: Reading, meter: Meter, window_s: float, idle_w: float | None = None
) -> Consumption:
    """What was used between two readings that enclose a window of so many seconds; net of `idle_w` too.

    A domain has joules where it was read at both ends, was not lost in between, and the stretch is long enough for its
    instrument and its samples; where that is not so for a part of the total, the total is absent too.
    """
    seconds = (after.at_ns - before.at_ns) * NANOSECOND
    sampling = meter.sampling(before.ended_ns, after.begun_ns)
    unread = sampling.lost if sampling else {}
    lost = {name: why for name, why in unread.items() if _is_sampled(meter, name)}
    used = spent(before.joules, after.joules, meter.domains)
    moved = sampling.correction_j if sampling else {}
    used = {name: joules + moved.get(name, 0.0) * _is_sampled(meter, name) for name, joules in used.items()}
    known = {name: used[name] for name in sorted(used) if name not in lost}
    short = {name: why for name in meter.domains if (why := too_short(name, meter, seconds, sampling))}
    joules = {name: value for name, value in known.items() if name not in short}
    # A counter may not advance in a short window; it then counts that energy in the next one.
    still = {name: 0.0 for name in short.keys() - lost if before.joules.get(name, -1.0) == after.joules.get(name)}
    measured = _measured({**still, **known}, seconds, window_s, meter, sampling, idle_w)
    machine = meter.energy.get("machine", {}).get("domains", ())
    term = {name: value for name, value in (measured | _machine(machine, {**still, **known})).items() if name in TERMS}
    if term:
        slowest = max((meter.domains[name] for name in meter.energy["domains"]), key=shortest_s)
        # The delay of a power sensor is in the half-width of its samples, however short the window is.
        period_s = 0.0 if slowest.source == "sampled" else slowest.period_s
        term |= {"period_s": period_s, "shortest_s": shortest_s(slowest)}
    total_j = meter.total(joules)
    metrics = {} if total_j is None else measured
    metrics |= _machine(machine, joules)
    if meter.energy["source"] != "estimated":
        metrics |= {f"energy_{name}_j": value for name, value in joules.items()}
    # A domain beside a total that is there, such as a cross-check that takes longer windows, is no loss.
    needed = meter.domains if total_j is None else machine
    missing = [name for name in meter.domains if name in lost or (name in needed and name not in joules)]
    reasons = {name: _why(name, lost, short) for name in missing}
    notes = _notes(reasons)
    if sampling and sampling.failed:
        notes.append(f"{sampling.failed} readings of power failed, and are bridged where they are few.")
    silent = {name: why for name, why in reasons.items() if total_j is None and (name in lost or name not in short)}
    return Consumption(known, metrics, notes, silent, term)


def _is_sampled(meter: Meter, name: str) -> bool:
    return meter.domains[name].source == "sampled"


def spent(before: Joules, after: Joules, domains: Mapping[str, Domain]) -> dict[str, float]:
    """The joules between two readings, of each domain that has any.

    A counter that ran backwards was reset, and one that stood still is slower than the window: neither tells what was
    used, so the domain is left out. A sampled power may well be 0 W.
    """
    read_twice = before.keys() & after.keys()
    return {
        name: after[name] - before[name]
        for name in read_twice
        if after[name] > before[name] or domains[name].source == "sampled"
    }


def too_short(name: str, meter: Meter, seconds: float, sampling: Sampling | None) -> str | None:
    """Why a stretch is too short for a domain's instrument; None where it is not."""
    domain = meter.domains[name]
    if seconds < shortest_s(domain):
        if domain.source == "sampled":
            how = (
                f"a sensor with {domain.response.memory_s:.3g} s of past power in a reading; the minimum is {MEMORIES}"
            )
        else:
            how = f"a counter that is renewed every {domain.period_s:g} s; the minimum is {TICKS}"
        return f"{seconds:.3g} s is too short for {how} times that."
    inside = sampling.inside.get(name, 0) if sampling else 0
    if domain.source == "sampled" and inside < FEWEST:
        return f"of the samples of its power {inside} lie within these {seconds:.3g} s, and it takes {FEWEST}."
    return None


def rest(meter: Meter, seconds: float, sleep: Callable[[float], None] = time.sleep) -> Consumption:
    """What is used while nothing trains; nothing is waited for where nothing measures."""
    if meter.energy["source"] not in ("counter", "sampled") or seconds <= 0:
        return Consumption({}, {}, [], {})
    before = reading(meter)
    sleep(seconds)
    after = reading(meter)
    return consumption(before, after, meter, (after.at_ns - before.at_ns) * NANOSECOND)


def _measured(
    joules: Joules, seconds: float, window_s: float, meter: Meter, sampling: Sampling | None, idle_w: float | None
) -> dict[str, float]:
    """The metrics of the total; none if one of its domains has no energy."""
    total_j = meter.total(joules)
    if total_j is None:
        return {}
    if meter.energy["source"] == "estimated":
        return {"estimated_energy_j": total_j}
    mean_w = total_j / seconds
    # Between the readings lies more than the window.
    half_width_j = abs(mean_w) * max(0.0, seconds - window_s) + meter.half_width_j(joules, seconds, sampling)
    metrics = {"energy_j": total_j, "power_mean_w": mean_w}
    if idle_w is not None:
        metrics["net_energy_j"] = total_j - idle_w * seconds
    if sampling and sampling.samples:
        metrics |= {"power_samples": sampling.samples, "power_gap_max_s": sampling.gap_max_s}
        metrics |= {} if sampling.peak_w is None else {"power_peak_w": sampling.peak_w}
    return {**metrics, "energy_uncertainty_j": half_width_j}


def _machine(domains: Sequence[str], joules: Joules) -> dict[str, float]:
    """The machine's energy; none unless it has domains and all of them have an energy."""
    if not domains or not joules.keys() >= set(domains):
        return {}
    return {"machine_energy_j": math.fsum(joules[name] for name in domains)}


def _why(name: str, lost: Mapping[str, str], short: Mapping[str, str]) -> str:
    """Why a domain has no joules."""
    if name in lost:
        return f"{lost[name]}."
    return short.get(name, "the counter gave nothing, stood still or ran backwards.")


def _notes(reasons: Mapping[str, str]) -> list[str]:
    """A line for each reason, with all domains that have it."""
    names: dict[str, list[str]] = {}
    for name, reason in sorted(reasons.items()):
        names.setdefault(reason, []).append(name)
    return [f"no energy of {', '.join(alike)}: {reason}" for reason, alike in names.items()]
