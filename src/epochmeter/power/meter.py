"""Energy meters: cumulative counters of joules by domain, and the instruments that they are made of.

The energy of a window is the reading after it minus the reading before it. Energy is in joules, power in watts.
"""

import logging
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypedDict

import numpy as np

from epochmeter.machine.energy_codes import CODES, EnergyCode, Finding, Findings, code_of, finding_of
from epochmeter.machine.recorded.root import root_folder
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import SOURCES, Domain, Instrument, oldest_s
from epochmeter.power.power_series import NO_POWER_SAMPLES, PowerSamples, Sampling
from epochmeter.power.uncertainty import Response, assumed_part_time_j, is_same_s, misses_power
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.shared.problem import Problem

log = logging.getLogger(__name__)

Joules = Mapping[str, float]  # joules by domain: since an arbitrary moment in a reading, or of a window


class EnergyScope(TypedDict):
    """Several domains together."""

    covers: str | None
    domains: list[str]


class EnergyInfo(EnergyScope, total=False):
    """How the total is measured: `source` is one of `SOURCES`, or `none`."""

    source: str
    reason: str | None  # why there is no total, or less than was configured
    codes: list[str]  # of `EnergyCode`, if the energy is absent or doubtful
    hint: str  # what to do about it, if there is advice
    machine: EnergyScope  # all domains, if they cover more than the total
    limit_w: float  # the largest power of the domains of the total together, if each has one


class Powers(Protocol):
    """Sampled power: a `Sampler`, or samples that were recorded earlier."""

    domains: dict[str, Domain]

    @property
    def instruments(self) -> Mapping[str, Instrument]:
        """The power sensors by domain."""

    @property
    def settled_s(self) -> float:
        """Time after a window's end, in seconds, at which a reading covers all power of the window."""

    def read(self, *, fresh: bool = True) -> dict[str, float]:
        """Joules of each domain up to now; domains that cannot be read are missing."""

    def sampling(self, opened_ns: int, closed_ns: int, borders_s: np.ndarray | None = None) -> Sampling:
        """Sampling statistics of a window."""

    def drain(self, before_ns: int) -> PowerSamples:
        """Return the samples before a moment, each once."""

    def close(self) -> bool:
        """Stop sampling; False if a read hangs."""


OVER_MEAN = 2.0  # assumed largest ratio of the power at a border to its mean, where neither samples nor a limit show it
SHOWS_PEAK = 1.5  # largest ratio of a sensor's averaging time to the age of a counter's reading whose peak it shows


class CounterUncertainty(NamedTuple):
    """The half-width of the 95 % interval of an energy from its counters, in parts.

    Attributes:
        step_j: One step of each counter.
        stale_j: The energy that a reading may lack, since it is up to a period old, or late.
        unsampled_j: Power that a part-time sensor missed, which is independent from window to window.
        in_step_j: The same, if power repeats in each step; its sign may be the same in all windows.
    """

    step_j: float = 0.0
    stale_j: float = 0.0
    unsampled_j: float = 0.0
    in_step_j: float = 0.0

    @property
    def half_width_j(self) -> float:
        """All parts together: the age of a reading is independent of the power that the sensor missed."""
        return self.step_j + math.hypot(self.stale_j, max(self.unsampled_j, self.in_step_j))


class EnergyMeter:
    """A cumulative counter of joules by domain, from energy counters and sampled power.

    A domain that cannot be read is missing from a reading, never 0. If it has both, its joules are the counter's.

    Example:
        >>> from epochmeter.power.meter import Domain, EnergyMeter, Instrument
        >>> counter = Instrument(Domain("counter", 1.0, "the machine"), lambda: 40.5)
        >>> meter = EnergyMeter(counters={"socket": counter}, total=["socket"], covers="the machine")
        >>> meter.read()
        {'socket': 40.5}

    Args:
        total: The domains that add up to the total. All other domains are parts of these or cross-checks.
        sampled_in_part: Whether the samples are of a part of the total only.
        cross_checks: Expected relations of the energies of domains.
        codes: Those of the reason, if it says that the energy is absent or doubtful.
        conditions: Returns settings of the machine that the energy depends on, which nobody may change in a window.
    """

    def __init__(
        self,
        *,
        total: Sequence[str],
        covers: str | None,
        counters: Mapping[str, Instrument] | None = None,
        powers: Powers | None = None,
        sampled_in_part: bool = False,
        cross_checks: Sequence[CrossCheck] = (),
        reason: str | None = None,
        codes: Sequence[EnergyCode] = (),
        conditions: Callable[[], Mapping[str, str]] = dict,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.conditions = conditions
        self._counters = dict(counters or {})
        self._powers = powers
        self._total = tuple(total)
        self._in_part = sampled_in_part
        self.cross_checks = tuple(cross_checks)
        self._close = close
        self._failures: dict[str, Finding] = {}  # of the counters that could not be read last
        self.domains = dict(powers.domains) if powers else {}
        self.domains |= {name: counter.domain for name, counter in self._counters.items()}
        # A sensor that only checks a counter must not delay a border when it hangs.
        self._total_is_sampled = any(self.domains[name].source == "sampled" for name in total)
        source = max((self.domains[name].source for name in total), key=SOURCES.index, default="none")
        self.energy: EnergyInfo = {"source": source, "covers": covers, "domains": [*total], "reason": reason}
        if codes:
            self.energy["codes"] = [code.value for code in codes]
        limits_w = [self._limit_w(name) for name in total]
        if limits_w and all(limits_w):
            self.energy["limit_w"] = math.fsum(filter(None, limits_w))

    def _limit_w(self, name: str) -> float | None:
        """Return the largest power of a domain; of a counter that of the sensor that checks it."""
        checking = self.domains.get(f"{name}_sampled")
        return self.domains[name].limit_w or (checking.limit_w if checking else None)

    @property
    def instruments(self) -> dict[str, Instrument]:
        """The counters and power sensors by domain; of a domain with both, the counter."""
        return {**(self._powers.instruments if self._powers else {}), **self._counters}

    def use_responses(self, responses: Mapping[str, Response]) -> None:
        """Use responses that were measured, by domain, in place of the assumed ones.

        The renewal period of a counter is replaced by the measured one as well.
        """
        for name, response in responses.items():
            domain = self.domains[name]._replace(response=response)
            if name in self._counters:
                domain = domain._replace(period_s=response.renewal_s or domain.period_s)
                self._counters[name] = self._counters[name]._replace(domain=domain)
            elif self._powers:
                self._powers.domains[name] = domain
            self.domains[name] = domain

    def read(self, *, fresh: bool = True) -> dict[str, float]:
        """Read the joules of each domain since an arbitrary moment; `fresh`: take a sample of the power first."""
        joules = self._powers.read(fresh=fresh and self._total_is_sampled) if self._powers else {}
        for name, counter in self._counters.items():
            joules.pop(name, None)  # integrated samples start at another moment, so they cannot replace a counter
            try:
                joules[name] = counter.read()
                self._failures.pop(name, None)
            except (OSError, ValueError) as error:
                if name not in self._failures:  # once, not at each border of a window
                    log.warning("cannot read the energy of %s: %s", name, error)
                self._failures[name] = finding_of(error)
        return joules

    @property
    def failures(self) -> Findings:
        """Why counters are missing from the last reading."""
        return dict(self._failures)

    def total(self, values: Mapping[str, float]) -> float | None:
        """Add up the domains of the total; None if one of them is missing."""
        if not self._total or not values.keys() >= set(self._total):
            return None
        return sum(values[name] for name in self._total)

    @property
    def settled_s(self) -> float:
        """Time after a window's end, in seconds, at which the power sensors have reported all power of the window."""
        return self._powers.settled_s if self._powers and self._total_is_sampled else 0.0

    def sampling(self, opened_ns: int, closed_ns: int, borders_s: np.ndarray | None = None) -> Sampling | None:
        """Sampling statistics between two moments (monotonic clock, ns); None if nothing is sampled.

        `borders_s` has the borders of the consecutive steps in between, if they are known.
        """
        sampling = self._powers.sampling(opened_ns, closed_ns, borders_s) if self._powers else None
        return sampling._replace(peak_w=None) if sampling and self._in_part else sampling

    def half_width_j(
        self, joules: Joules, seconds: float, sampling: Sampling | None, names: Sequence[str] | None = None
    ) -> float:
        """Half-width of the 95 % confidence interval of the total, or of the sum of other domains, in joules.

        Errors of domains are added: their borders are the same moments, at which the power of all changes alike.
        """
        names = self._total if names is None else names
        sampled_j = self._sampled_half_width_j(joules, seconds, sampling, names) if sampling else 0.0
        return sampled_j + self.counter_uncertainty(joules, seconds, sampling, names).half_width_j

    def counter_uncertainty(
        self, joules: Joules, seconds: float, sampling: Sampling | None, names: Sequence[str] | None = None
    ) -> CounterUncertainty:
        """The parts of `half_width_j` from counters, of the total or of other domains."""
        names = self._total if names is None else names
        counted = self._domains_of(names, "counter")
        highest_w = {name: self._highest_w(name, joules, seconds, sampling) for name in counted}
        return CounterUncertainty(
            step_j=sum(domain.step for domain in counted.values()),
            stale_j=sum(highest_w[name] * oldest_s(domain) for name, domain in counted.items()),
            unsampled_j=self.unsampled_j(joules, seconds, sampling, names),
            in_step_j=(self.in_step_j(sampling) or 0.0) if self._part_time(names) else 0.0,
        )

    def _highest_w(self, name: str, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        """The highest power that a domain with a counter may have at a border, where its reading lacks some of it.

        Sampled power shows it, unless its sensor averages over a longer time. Else it is at most the domain's limit; if
        that is unknown, it is assumed to be at most twice the mean, as power that a part-time sensor misses.
        """
        domain, total_j = self.domains[name], sum(joules.get(other, 0.0) for other in self._total)
        age_s = oldest_s(domain)
        least_w = joules[name] / (seconds + age_s)  # a short window may have the energy of a whole period
        peak_w = sampling.peak_w if sampling and sampling.peak_w else 0.0
        sampled_w = max(least_w, peak_w * (joules[name] / total_j if total_j > 0 else 1.0))
        if peak_w and self._shows_peak(domain):
            return sampled_w
        assumed_w = OVER_MEAN * joules[name] / max(seconds, age_s)
        return max(sampled_w, assumed_w if domain.limit_w is None else domain.limit_w)

    def _shows_peak(self, counted: Domain) -> bool:
        """Whether power is sampled by sensors that average over about the age of a counter's reading at most."""
        sampled = self._powers.domains.values() if self._powers else ()
        averaged_s = [
            one.response.held_s if one.response.averaging_s is None else one.response.averaging_s for one in sampled
        ]
        return max(averaged_s, default=math.inf) <= SHOWS_PEAK * oldest_s(counted)

    def _sampled_half_width_j(self, joules: Joules, seconds: float, sampling: Sampling, names: Sequence[str]) -> float:
        """Half-width of the sampled domains among some; `sampling` has that of all sampled domains of the total.

        Power that the samples miss may be of any domain. The rest of the half-width is in proportion to the energy.
        """
        sampled, total = (self._domains_of(of, "sampled") for of in (names, self._total))
        if not sampled:
            return 0.0
        stated = total or self._domains_of(list(self.domains), "sampled")
        sampled_j, stated_j = (sum(joules.get(name, 0.0) for name in of) for of in (sampled, stated))
        sampled_fraction = sampled_j / stated_j if stated_j > 0 else 1.0
        rounded_j = sum(domain.step / 2 * seconds for name, domain in sampled.items() if name not in stated)
        return sampling.structure_j + sampled_fraction * (sampling.half_width_j - sampling.structure_j) + rounded_j

    def unsampled_j(
        self, joules: Joules, seconds: float, sampling: Sampling | None, names: Sequence[str] | None = None
    ) -> float:
        """The part of `half_width_j` from counters that add up readings of a sensor which measures part of the time.

        It is independent from window to window. Sampled power of the same sensor shows how much the power varies.
        Without it, power is assumed to be between 0 and twice its mean: its standard deviation is at most the mean.
        """
        part_time = self._part_time(self._total if names is None else names)
        if part_time and self._samples_same_sensor(part_time) and sampling and sampling.samples > 1:
            return sampling.structure_j
        return sum(
            assumed_part_time_j(joules[name] / seconds, seconds, domain.response) for name, domain in part_time.items()
        )

    def in_step_j(self, sampling: Sampling | None) -> float | None:
        """The half-width for power that repeats in each step, of which the sensors of the total may miss a part.

        It is None if it is unknown: without borders of steps, or without samples of the sensor that a counter adds up.
        """
        sampled = [self.domains[name] for name in self._total if self.domains[name].source == "sampled"]
        part_time = self._part_time(self._total)
        if not part_time and not any(misses_power(domain.period_s, domain.response) for domain in sampled):
            return 0.0
        if sampling is None or (part_time and not self._samples_same_sensor(part_time)):
            return None
        return sampling.in_step_j

    def _part_time(self, names: Sequence[str]) -> dict[str, Domain]:
        """Those of some domains whose counter adds up readings of a sensor which measures part of the time."""
        counted = self._domains_of(names, "counter")
        return {name: domain for name, domain in counted.items() if domain.response.unsampled}

    def _samples_same_sensor(self, part_time: Mapping[str, Domain]) -> bool:
        """Whether the sampled power is of the sensors whose readings part-time counters add up."""
        sampled = self._powers.domains.values() if self._powers and not self._in_part else ()
        counted_s = [domain.response.averaging_s for domain in part_time.values()]
        sampled_s = [domain.response.averaging_s for domain in sampled]
        pairs = ((counted_s, sampled_s), (sampled_s, counted_s))
        return all(any(is_same_s(one, other) for other in others) for ones, others in pairs for one in ones)

    def _domains_of(self, names: Sequence[str], source: str) -> dict[str, Domain]:
        return {name: self.domains[name] for name in names if self.domains[name].source == source}

    def drain(self, before_ns: int) -> PowerSamples:
        powers = self._powers.drain(before_ns) if self._powers else NO_POWER_SAMPLES
        return powers._replace(total_w=array("d", [math.nan]) * len(powers.times_ns)) if self._in_part else powers

    def close(self) -> None:
        if self._powers is None or self._powers.close():
            self._close()


class NullMeter(EnergyMeter):
    """The meter of a machine without instruments, or of a job that configures none; all keys of a group are ignored.

    Example:
        >>> from epochmeter.power.meter import NullMeter
        >>> NullMeter("there is no socket").energy["reason"]
        'there is no socket'
    """

    def __init__(self, reason: str, hint: str = "", code: str = EnergyCode.NO_SENSOR.value, **_: object) -> None:
        super().__init__(total=(), covers=None, reason=reason, codes=[CODES[code]])
        if hint:
            self.energy["hint"] = hint


def unmetered(problem: Problem) -> NullMeter:
    """Return the meter of a machine on which a problem prevents measurement."""
    return NullMeter(problem.message, problem.hint, code_of(problem).value)


def open_meter(spec: Mapping[str, object], *, gpus: Sequence[str], root: str | Path = "/") -> EnergyMeter:
    """Open the configured meter by its `_target_`, with `gpus`, `root` (a path) and the group's options.

    If the machine does not have it, it is an estimate or a `NullMeter`, with the reason.
    """
    instrument = {key: value for key, value in spec.items() if key != "idle_s"}  # idle_s is an option of the run
    meter: EnergyMeter = instantiate_spec(instrument, gpus=gpus, root=root_folder(root))
    return meter
