"""Time series of power samples: integration to joules, sampling statistics and uncertainty of a window.

Times are of the monotonic clock in nanoseconds, power is in watts and energy in joules.
"""

import math
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from epochmeter.power.instrument import Domain
from epochmeter.power.step_sampling import in_step_j
from epochmeter.power.uncertainty import RENEWAL_S, Response, border_j, correction_j, interior_j, renewal_s, slowest
from epochmeter.shared.types import FloatArray
from epochmeter.shared.units import NANOSECOND

CONTEXT_S = 10.0  # length of a window's context: earlier samples that show the possible structure of its power
NO_SAMPLE = "no sample was taken"  # why power since the last sample is unknown if no read has failed since


class Sampling(NamedTuple):
    """Sampling statistics of a window; `samples`, `gap_max_s` and `peak_w` are of the total."""

    samples: int
    gap_max_s: float  # longest time without a sample
    failed: int  # failed reads; gaps between two good reads are interpolated linearly
    unavailable: dict[str, str]  # why a domain has no energy in this window
    peak_w: float | None
    half_width_j: float
    """Half-width of the total energy's 95 % confidence interval: sampling, rounding, and the sensor's response."""
    structure_j: float = 0.0
    """The part of `half_width_j` from power that the samples miss; it also applies to a counter that samples."""
    correction_j: Mapping[str, float] = MappingProxyType({})
    """Joules to add to each domain's energy: corrects the sensor's delay and the extrapolation to the borders."""
    samples_per_domain: Mapping[str, int] = MappingProxyType({})
    in_step_j: float | None = None
    """Half-width for power that repeats in each step, if a sensor measures part of the time; None without known steps.

    `half_width_j` includes it instead of `structure_j` if it is larger.
    """


class PowerSamples(NamedTuple):
    """Samples in the order of time: watts by domain and of the total; NaN if not read."""

    times_ns: "array[int]"
    watts: dict[str, FloatArray]
    total_w: FloatArray
    response: Response | None = None  # response of the total's sensors, if it is stated and the same for all of them


NO_POWER_SAMPLES = PowerSamples(array("q"), {}, array("d"))


class EnergyIntegrator:
    """Integrator of one domain's power: linear between good samples (trapezoidal rule)."""

    def __init__(self) -> None:
        self.at_ns: int | None = None
        self.watts = 0.0
        self.joules = 0.0
        self.gaps: list[tuple[int, int, str]] = []
        """Gaps in which power is unknown: begin, end and reason."""
        self.reason = "it was never read"

    def add(self, at_ns: int, watts: float, bridge_ns: int) -> None:
        if self.at_ns is not None and at_ns - self.at_ns > bridge_ns:
            self.gaps.append((self.at_ns, at_ns, self.reason))
        elif self.at_ns is not None:
            self.joules += (at_ns - self.at_ns) * NANOSECOND * (self.watts + watts) / 2
        self.at_ns, self.watts, self.reason = at_ns, watts, NO_SAMPLE

    def joules_at(self, at_ns: int, bridge_ns: int) -> float | None:
        """Joules up to a moment at or after the last sample; None if that sample is older than the longest bridge."""
        if self.at_ns is None or at_ns - self.at_ns > bridge_ns:
            return None
        return self.joules + (at_ns - self.at_ns) * NANOSECOND * self.watts

    def unavailable(self, opened_ns: int, closed_ns: int, bridge_ns: int) -> str | None:
        """Why the energy between two moments is unknown; None if it is known."""
        if self.at_ns is None:
            return self.reason
        if self.at_ns < opened_ns and self.reason != NO_SAMPLE:
            return f"no reading in the window: {self.reason}"
        current_gap = [(self.at_ns, closed_ns, self.reason)] if closed_ns - self.at_ns > bridge_ns else []
        within = [gap for gap in (*self.gaps, *current_gap) if gap[0] < closed_ns and gap[1] > opened_ns]
        return f"no reading for {(within[0][1] - within[0][0]) * NANOSECOND:.1f} s: {within[0][2]}" if within else None


class PowerSeries:
    """Thread-safe samples of several domains, added by one thread and read by another.

    Power between two good samples is interpolated linearly. A gap longer than `bridge_s` has unknown power.
    """

    def __init__(self, domains: Mapping[str, Domain], *, total: Sequence[str], bridge_s: float) -> None:
        self.domains, self.bridge_s = dict(domains), bridge_s
        self._integrators = {name: EnergyIntegrator() for name in domains}
        self._total = tuple(total)
        self._renewal_s = RENEWAL_S
        self._begun_ns: int | None = None
        self._readings: list[tuple[int, int]] = []  # time of each energy reading, and of the last sample in it
        self._times_ns = array("q")
        self._watts = {name: array("d") for name in self._integrators}
        self._drained_count = 0  # samples at the start that were drained and are kept as context
        self._lock = threading.Lock()

    @property
    def settled_s(self) -> float:
        """Time after a window's end, in seconds, at which a reading covers all power of the window."""
        return self._total_response().settled_s

    def _total_response(self) -> Response:
        return slowest([self.domains[name].response.resolved(self._renewal_s) for name in self._total])

    def add(self, at_ns: int, watts: Mapping[str, float], failed: Mapping[str, str] | None = None) -> None:
        """Add a sample; `failed` has the error of each domain that could not be read."""
        failed = failed or {}
        with self._lock:
            self._begun_ns = at_ns if self._begun_ns is None else self._begun_ns
            self._times_ns.append(at_ns)
            for name, integrator in self._integrators.items():
                self._watts[name].append(watts.get(name, math.nan))
                if name in watts:
                    integrator.add(at_ns, watts[name], self._bridge_ns)
                elif name in failed:
                    integrator.reason = failed[name]

    def unavailable(self, at_ns: int) -> dict[str, str]:
        """Domains without a reading for longer than `bridge_s`, with the reason."""
        with self._lock:
            begun_ns = at_ns if self._begun_ns is None else self._begun_ns
            return {
                name: integrator.reason
                for name, integrator in self._integrators.items()
                if at_ns - (begun_ns if integrator.at_ns is None else integrator.at_ns) > self._bridge_ns
            }

    def joules(self, at_ns: int) -> dict[str, float]:
        """Joules of each domain up to now, `at_ns`, with the last sample's power; unavailable domains are missing."""
        with self._lock:
            self._readings.append((at_ns, self._times_ns[-1] if self._times_ns else at_ns))
            energy = {
                name: integrator.joules_at(at_ns, self._bridge_ns) for name, integrator in self._integrators.items()
            }
        return {name: joules for name, joules in energy.items() if joules is not None}

    def sampling(self, opened_ns: int, closed_ns: int, borders_s: np.ndarray | None = None) -> Sampling:
        """Sampling statistics of a window (monotonic clock, ns), from the samples that are still kept.

        `borders_s` has the beginnings of the window's consecutive steps and the end of the last one, if they are known.
        """
        with self._lock:
            around = slice(bisect_left(self._times_ns, opened_ns - round(CONTEXT_S / NANOSECOND)), None)
            times_ns = np.array(self._times_ns[around])
            watts = {name: np.array(values[around]) for name, values in self._watts.items()}
            reasons = {
                name: integrator.unavailable(opened_ns, closed_ns, self._bridge_ns)
                for name, integrator in self._integrators.items()
            }
            readings = self._readings_around(opened_ns, closed_ns)
        within = (times_ns >= opened_ns) & (times_ns <= closed_ns)
        per_domain = {name: int(np.isfinite(values[within]).sum()) for name, values in watts.items()}
        total_w = np.sum([watts[name] for name in self._total], axis=0)
        good = within & np.isfinite(total_w)
        times_s = times_ns.astype(float) * NANOSECOND
        self._renewal_s = self._estimated_renewal_s(times_s, watts) or self._renewal_s
        window_s = opened_ns * NANOSECOND, closed_ns * NANOSECOND
        repeated_j = None if borders_s is None else self._in_step_j(times_s, watts, borders_s)
        half_width_j, structure_j = self._uncertainty_j(times_s, total_w, *window_s, repeated_j or 0.0)
        return Sampling(
            samples=int(good.sum()),
            gap_max_s=int(np.diff(times_ns[good], prepend=opened_ns, append=closed_ns).max()) * NANOSECOND,
            failed=len(watts) * int(within.sum()) - sum(per_domain.values()),
            unavailable={name: why for name, why in reasons.items() if why},
            peak_w=float(total_w[good].max()) if good.any() else None,
            half_width_j=half_width_j,
            structure_j=structure_j,
            in_step_j=repeated_j,
            correction_j={name: self._correction_j(name, times_s, values, readings) for name, values in watts.items()},
            samples_per_domain=per_domain,
        )

    def _readings_around(self, opened_ns: int, closed_ns: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The energy readings at the borders, which are just outside of the window; without one, the border itself."""
        before = [reading for reading in self._readings if reading[0] <= opened_ns] or [(opened_ns, opened_ns)]
        after = [reading for reading in self._readings if reading[0] >= closed_ns] or [(closed_ns, closed_ns)]
        return before[-1], after[0]

    def _estimated_renewal_s(self, times_s: np.ndarray, watts: Mapping[str, np.ndarray]) -> float | None:
        """The longest estimated renewal period of the sensors with an unknown one; None if none can be estimated."""
        unknown = (watts[name] for name, domain in self.domains.items() if domain.response.renewal_s is None)
        estimates = (renewal_s(times_s[np.isfinite(values)], values[np.isfinite(values)]) for values in unknown)
        return max(filter(None, estimates), default=None)

    def _in_step_j(self, times_s: np.ndarray, watts: Mapping[str, np.ndarray], borders_s: np.ndarray) -> float:
        """The part of the half-width from power that repeats in each step: the sum of that of the total's sensors."""
        joules = 0.0
        for name in self._total:
            domain, good = self.domains[name], np.isfinite(watts[name])
            joules += in_step_j(
                times_s[good],
                watts[name][good],
                borders_s,
                domain.response.resolved(self._renewal_s),
                is_estimated=domain.response.renewal_s is None,
                limit_w=domain.limit_w,
            )
        return joules

    def _uncertainty_j(
        self, times_s: np.ndarray, total_w: np.ndarray, opened_s: float, closed_s: float, in_step_j: float
    ) -> tuple[float, float]:
        """Half-width of the total's energy, and its part from power that the samples miss."""
        times_s, total_w = times_s[np.isfinite(total_w)], total_w[np.isfinite(total_w)]
        response = self._total_response()
        interior, structure_j = interior_j(times_s, total_w, opened_s, closed_s, response, in_step_j)
        borders_j = [border_j(times_s, total_w, at_s, response) for at_s in (opened_s, closed_s)]
        # The last power of a sensor that failed was extrapolated.
        unread_j = max(0.0, closed_s - float(times_s[-1])) * float(np.ptp(total_w)) if len(times_s) else 0.0
        random_j = math.hypot(interior, *borders_j, unread_j)
        step_w = sum(self.domains[name].step for name in self._total)
        # A sensor may always round in the same direction.
        return random_j + step_w / 2 * (closed_s - opened_s), structure_j

    def _correction_j(
        self, name: str, times_s: np.ndarray, watts: np.ndarray, readings: Iterable[tuple[int, int]]
    ) -> float:
        """Return the joules to add to the difference of two readings: for the sensor's delay and the extrapolation."""
        good = np.isfinite(watts)
        delay_s = self.domains[name].response.resolved(self._renewal_s).delay_s
        readings_s = ((read_ns * NANOSECOND, last_ns * NANOSECOND) for read_ns, last_ns in readings)
        before_j, after_j = (correction_j(times_s[good], watts[good], *reading_s, delay_s) for reading_s in readings_s)
        return after_j - before_j

    def drain(self, before_ns: int) -> PowerSamples:
        """Return the samples before a moment, each once; the last of them are kept as context of the next window."""
        with self._lock:
            new = slice(self._drained_count, max(self._drained_count, bisect_left(self._times_ns, before_ns)))
            self._drained_count = new.stop
            times_ns = self._times_ns[new]
            watts = {name: values[new] for name, values in self._watts.items()}
            old = min(bisect_left(self._times_ns, before_ns - round(CONTEXT_S / NANOSECOND)), self._drained_count)
            self._times_ns, self._drained_count = self._times_ns[old:], self._drained_count - old
            self._watts = {name: values[old:] for name, values in self._watts.items()}
            self._readings = [reading for reading in self._readings if reading[0] >= before_ns]
            for integrator in self._integrators.values():
                integrator.gaps = [gap for gap in integrator.gaps if gap[1] > before_ns]
        total_w = array("d", map(sum, zip(*(watts[name] for name in self._total), strict=True)))
        response, *others = (self.domains[name].response for name in self._total)
        is_stated = all(map(response.is_same, others)) and None not in response and response != Response()
        return PowerSamples(times_ns, watts, total_w, response if is_stated else None)

    @property
    def _bridge_ns(self) -> int:
        return round(self.bridge_s / NANOSECOND)
