"""A meter is a cumulative counter of joules: what a window cost is the reading after it less that before."""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, Protocol

from epochmeter.power.power_series import NO_POWERS, Powers, Sampling
from epochmeter.power.uncertainty import Response, part_time_j
from epochmeter.shared.instantiate import build

log = logging.getLogger(__name__)

Joules = Mapping[str, float]
"""Joules by domain: of a reading, since some moment in the past; of a window, within it."""

SOURCES = ("counter", "sampled", "estimated")
"""Where joules come from, the most trustworthy first: a sum is as good as its worst part."""

TICKS = 10
"""A window has a counter's energy if it is at least this many renewal periods long: its error is 10 % at most."""
MEMORIES = 2
"""A window has an energy of sampled power if it is at least this many times the memory of the sensor.

Its error is part of the stated uncertainty; in a shorter window most readings are about the power before it.
"""


class Domain(NamedTuple):
    """A separately metered part of the machine, and the properties of its sensor.

    A reading at time t is the mean of the power from `t - delay - averaging_s` to `t - delay`. The delay grows from
    `lag_s` to `lag_s + renewal_s` until the sensor renews its reading.

    Attributes:
        source: one of `SOURCES`.
        period_s: how often a counter renews its value, or how often power is sampled, in seconds.
        covers: the part of the machine.
        step: resolution: joules of a counter, watts of a power; 0: unknown.
        averaging_s: the time over which the sensor averages power, in seconds; None: unknown.
        lag_s: the delay from the end of that time to the earliest reading, in seconds.
        renewal_s: how often the sensor renews a power reading, in seconds; 0: at each read; None: unknown, estimated
            from the samples.
    """

    source: str
    period_s: float
    covers: str
    step: float = 0.0
    averaging_s: float | None = 0.0
    lag_s: float = 0.0
    renewal_s: float | None = 0.0

    @property
    def response(self) -> Response:
        """How the sensor responds. A counter renews its value every `period_s`."""
        return Response(self.averaging_s, self.lag_s, self.period_s if self.source == "counter" else self.renewal_s)


class Counter(NamedTuple):
    """One domain's instrument that counts: `read` gives joules, or raises OSError or ValueError when it cannot."""

    domain: Domain
    read: Callable[[], float]


class Power(NamedTuple):
    """One domain's instrument that tells power: `read` gives watts, or raises OSError or ValueError."""

    domain: Domain
    read: Callable[[], float]


class Meter(Protocol):
    """Reads the joules used so far, domain by domain; a domain that cannot be read is left out, never 0.

    `energy` says how trustworthy the total is: its `source` (counter, sampled, estimated, none), what it `covers`,
    however that is metered, the `domains` that make it, and the `reason` where it is none or less than was asked for.
    If more of the machine is metered than the total, `machine` has `covers` and `domains` of all of it.
    """

    domains: dict[str, Domain]
    energy: dict[str, Any]

    def read(self) -> dict[str, float]:
        """The joules of each domain since some moment in the past, by their instruments now."""

    def total(self, values: Mapping[str, float]) -> float | None:
        """The domains that make the total, added up; None where one of them is missing."""

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling | None:
        """How well the stretch between two readings was sampled; None where nothing is."""

    def half_width_j(self, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        """What the total of a stretch may be wrong by, by its instruments, of which this meter told `sampling`."""

    def drain(self, before_ns: int) -> Powers:
        """Hands over the samples of power before a moment, and forgets them."""

    def close(self) -> None:
        """Lets go of the instruments."""


class Sampled(Protocol):
    """Powers that are sampled, and the joules that they make: a `Sampler`, or a service's own samples."""

    domains: dict[str, Domain]

    def joules(self, *, fresh: bool = True) -> dict[str, float]:
        """Each power's joules up to now, by a sample taken now where `fresh`; without those that cannot be read."""

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling: ...

    def drain(self, before_ns: int) -> Powers: ...

    def close(self) -> bool:
        """Whether nothing reads any more."""


class Absent:
    """The meter of a machine that has none, or of a job that asks for none."""

    def __init__(self, reason: str) -> None:
        self.domains: dict[str, Domain] = {}
        self.energy: dict[str, Any] = {"source": "none", "covers": None, "domains": [], "reason": reason}

    def read(self) -> dict[str, float]:
        return {}

    def total(self, values: Mapping[str, float]) -> None:
        return None

    def sampling(self, opened_ns: int, closed_ns: int) -> None:
        return None

    def half_width_j(self, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        return 0.0

    def drain(self, before_ns: int) -> Powers:
        return NO_POWERS

    def close(self) -> None:
        pass


class Instruments:
    """The meter that is made of counters, read at borders, and of powers, sampled in between.

    `total` names the domains that make the total: the others lie inside them, or check them. A domain that is both
    counted and sampled has its joules by the counter. What is sampled is the total's power, unless it is but a part.
    """

    def __init__(
        self,
        *,
        total: Sequence[str],
        covers: str,
        counters: Mapping[str, Counter] | None = None,
        powers: Sampled | None = None,
        sampled_in_part: bool = False,
        reason: str | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._counters = counters or {}
        self._powers = powers
        self._total = tuple(total)
        self._in_part = sampled_in_part
        self._close = close
        self.domains = dict(powers.domains) if powers else {}
        self.domains |= {name: counter.domain for name, counter in self._counters.items()}
        # What only checks a counter may hang, and hold up no border.
        self._samples_count = any(self.domains[name].source == "sampled" for name in total)
        source = max((self.domains[name].source for name in total), key=SOURCES.index)
        self.energy: dict[str, Any] = {"source": source, "covers": covers, "domains": [*total], "reason": reason}

    def read(self) -> dict[str, float]:
        joules = self._powers.joules(fresh=self._samples_count) if self._powers else {}
        for name, counter in self._counters.items():
            joules.pop(name, None)  # sampled beside: they count from another moment, and never stand in
            try:
                joules[name] = counter.read()
            except (OSError, ValueError) as error:
                log.warning("The energy of %s cannot be read: %s", name, error)
        return joules

    def total(self, values: Mapping[str, float]) -> float | None:
        return sum(values[name] for name in self._total) if values.keys() >= set(self._total) else None

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling | None:
        if not self._powers:
            return None
        told = self._powers.sampling(opened_ns, closed_ns)
        return told._replace(peak_w=None) if self._in_part else told

    def half_width_j(self, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        counted = {name: self.domains[name] for name in self._total if self.domains[name].source == "counter"}
        total_j = sum(joules[name] for name in self._total)
        # A counter's reading is up to a period old at either end, where power may be at its peak.
        peak_w = sampling.peak_w if sampling and sampling.peak_w else 0.0
        over_mean = max(1.0, peak_w * seconds / total_j) if total_j > 0 else 1.0
        half_width_j = sum(
            joules[name] / seconds * over_mean * (domain.period_s + domain.lag_s) + domain.step
            for name, domain in counted.items()
        )
        if sampling and len(counted) < len(self._total):
            half_width_j += sampling.half_width_j
        part_time = {name: domain for name, domain in counted.items() if part_time_of(domain)}
        return half_width_j + self._missed_j(part_time, joules, seconds, sampling)

    def _missed_j(
        self, part_time: Mapping[str, Domain], joules: Joules, seconds: float, sampling: Sampling | None
    ) -> float:
        """The error of counters that add up readings of a sensor which measures only part of the time.

        Sampled power of the same sensor shows how much the power varies; a mean over a longer time would hide it.
        Without it, power is assumed to be between 0 and twice its mean, so that its standard deviation is at most the
        mean.
        """
        if not part_time:
            return 0.0
        if sampling and sampling.samples > 1 and self._samples_all_of(part_time):
            return sampling.structure_j
        means_w = ((domain, joules[name] / seconds) for name, domain in part_time.items())
        extremes = ((domain, (0.0, watts, 2 * watts)) for domain, watts in means_w)
        return sum(part_time_j(watts, seconds, domain.period_s, part_time_of(domain)) for domain, watts in extremes)

    def _samples_all_of(self, part_time: Mapping[str, Domain]) -> bool:
        """Whether the samples are of all the total's power, by the sensors whose readings these counters add up."""
        beside = self._powers.domains.values() if self._powers and not self._in_part else ()
        return {domain.averaging_s for domain in beside} == {domain.averaging_s for domain in part_time.values()}

    def drain(self, before_ns: int) -> Powers:
        powers = self._powers.drain(before_ns) if self._powers else NO_POWERS
        return powers._replace(total_w=array("d", [math.nan]) * len(powers.times_ns)) if self._in_part else powers

    def close(self) -> None:
        if self._powers is None or self._powers.close():
            self._close()


def open_meter(spec: Mapping[str, Any], *, gpus: Sequence[str], root: str | PathLike[str] = "/") -> Meter:
    """The meter that the job asks for, on the GPUs it uses (their UUIDs) and the machine found below `root`.

    A machine that lacks it gets what stands in for it: an estimate, or an absent meter, with the reason.
    """
    instrument = {key: value for key, value in spec.items() if key != "idle_s"}  # which is for whoever reads it
    return build(instrument, gpus=gpus, root=root)


def open_none(*, gpus: Sequence[str], root: str | PathLike[str], reason: str) -> Meter:
    """Nothing is metered, for the reason that the job's configuration gives."""
    return Absent(reason)


def part_time_of(domain: Domain) -> float:
    """The fraction of time in which a counter's sensor does not measure; 0 for one that integrates all the time."""
    return 0.0 if domain.averaging_s == 0 else domain.response.unsampled


def shortest_s(domain: Domain) -> float:
    """The shortest window that a domain's instrument can measure, in seconds."""
    return MEMORIES * domain.response.memory_s if domain.source == "sampled" else TICKS * domain.period_s
