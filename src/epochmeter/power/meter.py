"""Energy meters: cumulative counters of joules by domain, and the instruments that they are made of.

The energy of a window is the reading after it minus the reading before it. Energy is in joules, power in watts.
"""

import logging
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

from epochmeter.power.power_series import NO_POWER_SAMPLES, PowerSamples, Sampling
from epochmeter.power.uncertainty import Response, part_time_j
from epochmeter.shared.instantiate import instantiate_spec

if TYPE_CHECKING:
    from epochmeter.power.sampler import Sampler

log = logging.getLogger(__name__)

Joules = Mapping[str, float]  # joules by domain: since an arbitrary moment in a reading, or of a window

SOURCES = ("counter", "sampled", "estimated")
"""Kinds of energy measurement, the most accurate first: a sum is as accurate as its worst part."""

MIN_TICKS = 10  # shortest window that a counter can measure, in its renewal periods: the error is 10 % at most
MIN_MEMORY_SPANS = 2
"""The same for sampled power, in multiples of the sensor's memory: most readings contain only power of the window."""


class Domain(NamedTuple):
    """A separately metered part of the machine, and the properties of its sensor; `source` is one of `SOURCES`."""

    source: str
    period_s: float  # how often a counter renews its value, or how often power is sampled, in seconds
    covers: str
    step: float = 0.0  # resolution: joules of a counter, watts of a power; 0: unknown
    response: Response = Response()  # response of the power sensor, also of one whose readings a counter adds up


class EnergyScope(TypedDict):
    """Several domains together."""

    covers: str | None
    domains: list[str]


class EnergyInfo(EnergyScope, total=False):
    """How the total is measured: `source` is one of `SOURCES`, or `none`."""

    source: str
    reason: str | None  # why there is no total, or less than was configured
    machine: EnergyScope  # all domains, if they cover more than the total


class Instrument(NamedTuple):
    """An energy counter or a power sensor."""

    domain: Domain
    read: Callable[[], float]  # returns joules or watts; raises OSError or ValueError


class Meter:
    """A cumulative counter of joules by domain, from energy counters and sampled power.

    A domain that cannot be read is missing from a reading, never 0. If it has both, its joules are the counter's.

    Args:
        total: The domains that add up to the total. All other domains are parts of these or cross-checks.
        sampled_in_part: Whether the samples are of a part of the total only.
    """

    def __init__(
        self,
        *,
        total: Sequence[str],
        covers: str | None,
        counters: Mapping[str, Instrument] | None = None,
        powers: "Sampler | None" = None,
        sampled_in_part: bool = False,
        reason: str | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._counters = counters or {}
        self._powers = powers
        self._total = tuple(total)
        self._in_part = sampled_in_part
        self._close = close
        self._reported: set[str] = set()  # counters that cannot be read
        self.domains = dict(powers.domains) if powers else {}
        self.domains |= {name: counter.domain for name, counter in self._counters.items()}
        # A sensor that only checks a counter must not delay a border when it hangs.
        self._total_is_sampled = any(self.domains[name].source == "sampled" for name in total)
        source = max((self.domains[name].source for name in total), key=SOURCES.index, default="none")
        self.energy: EnergyInfo = {"source": source, "covers": covers, "domains": [*total], "reason": reason}

    def read(self) -> dict[str, float]:
        """Read the joules of each domain since an arbitrary moment."""
        joules = self._powers.read(fresh=self._total_is_sampled) if self._powers else {}
        for name, counter in self._counters.items():
            joules.pop(name, None)  # integrated samples start at another moment, so they cannot replace a counter
            try:
                joules[name] = counter.read()
                self._reported.discard(name)
            except (OSError, ValueError) as error:
                if name not in self._reported:  # once, not at each border of a window
                    log.warning("cannot read the energy of %s: %s", name, error)
                self._reported.add(name)
        return joules

    def total(self, values: Mapping[str, float]) -> float | None:
        """Add up the domains of the total; None if one of them is missing."""
        if not self._total or not values.keys() >= set(self._total):
            return None
        return sum(values[name] for name in self._total)

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling | None:
        """Sampling statistics between two moments (monotonic clock, ns); None if nothing is sampled."""
        sampling = self._powers.sampling(opened_ns, closed_ns) if self._powers else None
        return sampling._replace(peak_w=None) if sampling and self._in_part else sampling

    def half_width_j(self, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        """Half-width of the 95 % confidence interval of the total, in joules."""
        counted = self._counted()
        total_j = sum(joules[name] for name in self._total)
        # A counter's reading is up to a period old at either end, where power may be at its peak.
        peak_w = sampling.peak_w if sampling and sampling.peak_w else 0.0
        over_mean = max(1.0, peak_w * seconds / total_j) if total_j > 0 else 1.0
        joule_seconds = (joules[name] * (domain.period_s + domain.response.lag_s) for name, domain in counted.items())
        stale_j = sum(joule_seconds) / seconds * over_mean
        steps_j = sum(domain.step for domain in counted.values())
        sampled_j = sampling.half_width_j if sampling and len(counted) < len(self._total) else 0.0
        # The age of a reading is independent of the power that the sensor missed within the window.
        return sampled_j + steps_j + math.hypot(stale_j, self.unsampled_j(joules, seconds, sampling))

    def unsampled_j(self, joules: Joules, seconds: float, sampling: Sampling | None) -> float:
        """The part of `half_width_j` from counters that add up readings of a sensor which measures part of the time.

        It is independent from window to window. Sampled power of the same sensor shows how much the power varies.
        Without it, power is assumed to be between 0 and twice its mean: its standard deviation is at most the mean.
        """
        part_time = {name: domain for name, domain in self._counted().items() if domain.response.unsampled}
        sampled = self._powers.domains.values() if self._powers and not self._in_part else ()
        counted_s = {domain.response.averaging_s for domain in part_time.values()}
        is_same_sensor = {domain.response.averaging_s for domain in sampled} == counted_s
        if part_time and is_same_sensor and sampling and sampling.samples > 1:
            return sampling.structure_j
        missed_j = 0.0
        for name, domain in part_time.items():
            mean_w = joules[name] / seconds
            missed_j += part_time_j((0.0, mean_w, 2 * mean_w), seconds, domain.response)
        return missed_j

    def _counted(self) -> dict[str, Domain]:
        return {name: self.domains[name] for name in self._total if self.domains[name].source == "counter"}

    def drain(self, before_ns: int) -> PowerSamples:
        powers = self._powers.drain(before_ns) if self._powers else NO_POWER_SAMPLES
        return powers._replace(total_w=array("d", [math.nan]) * len(powers.times_ns)) if self._in_part else powers

    def close(self) -> None:
        if self._powers is None or self._powers.close():
            self._close()


class NullMeter(Meter):
    """The meter of a machine without instruments, or of a job that configures none; all keys of a group are ignored."""

    def __init__(self, reason: str, **_: object) -> None:
        super().__init__(total=(), covers=None, reason=reason)


def open_meter(spec: Mapping[str, object], *, gpus: Sequence[str], root: str | Path = "/") -> Meter:
    """Open the configured meter by its `_target_`, with `gpus`, `root` (a path) and the group's options.

    If the machine does not have it, it is an estimate or a `NullMeter`, with the reason.
    """
    instrument = {key: value for key, value in spec.items() if key != "idle_s"}  # idle_s is an option of the run
    return cast(Meter, instantiate_spec(instrument, gpus=gpus, root=Path(root)))


def shortest_s(domain: Domain) -> float:
    """The shortest window that a domain's instrument can measure, in seconds."""
    return MIN_MEMORY_SPANS * domain.response.memory_s if domain.source == "sampled" else MIN_TICKS * domain.period_s
