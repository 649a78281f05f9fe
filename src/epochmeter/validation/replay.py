"""Energy of windows of a recording, by the code that measures runs: meter, windows and uncertainty."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.power_series import PowerSeries
from epochmeter.power.sampler import max_gap_s
from epochmeter.power.uncertainty import Response
from epochmeter.power.window_energy import Reading, WindowEnergy, energy_of_window
from epochmeter.shared.units import NANOSECOND
from epochmeter.validation.switched_load import Readings, Recording


class RecordedPowers(PowerSeries):
    """Power samples that were taken earlier."""

    instruments: Mapping[str, Instrument] = MappingProxyType({})  # none is open

    def read(self, *, fresh: bool = True) -> dict[str, float]:
        """Nothing is read now: `Replay` has the readings."""
        return {}

    def close(self) -> bool:
        """Nothing is open."""
        return True


class Window(NamedTuple):
    """A window by its borders, in seconds since the recording began, and its measured energy."""

    begin_s: float
    end_s: float
    energy: WindowEnergy


class Replay:
    """A meter of recorded readings, which are sampled as in a run: about every `period_s` and at the borders."""

    def __init__(
        self,
        recording: Recording,
        instruments: Mapping[str, Instrument],
        total: Sequence[str],
        responses: Mapping[str, Response],
        borders_s: Sequence[float],
    ) -> None:
        """`responses` replace the stated ones by domain; `borders_s` are in seconds since the recording began."""
        self._recording = recording
        domains = {name: instrument.domain for name, instrument in instruments.items()}
        sampled = {name: domain for name, domain in domains.items() if domain.source == "sampled"}
        counted = {name: domain for name, domain in domains.items() if domain.source == "counter"}
        powers = self._powers(sampled, total) if sampled else None
        counters = {name: instruments[name] for name in counted}
        self.meter = EnergyMeter(counters=counters, powers=powers, total=total, covers=None)
        self.meter.use_responses(responses)
        self._readings = self._take(powers, sampled, counted, [recording.begun_s + at_s for at_s in borders_s])

    def _powers(self, sampled: Mapping[str, Domain], total: Sequence[str]) -> RecordedPowers:
        of_total = [name for name in sampled if name in total] or list(sampled)
        period_s = max(domain.period_s for domain in sampled.values())
        return RecordedPowers(sampled, total=of_total, bridge_s=max_gap_s(period_s))

    def _take(
        self,
        powers: RecordedPowers | None,
        sampled: Mapping[str, Domain],
        counted: Mapping[str, Domain],
        borders_s: Sequence[float],
    ) -> dict[float, Reading]:
        """Add the samples in the order of time; return the readings at the borders."""
        times_s = self._recording.readings[next(iter(self.meter.energy["domains"]))].times_s
        period_s = max((domain.period_s for domain in sampled.values()), default=0.0)
        places = set(np.searchsorted(times_s, borders_s).clip(0, len(times_s) - 1).tolist())
        readings, next_s = {}, times_s[0]
        for place, at_s in enumerate(times_s.tolist()):
            is_border = place in places
            if not (is_border or (sampled and at_s >= next_s)):
                continue
            joules = {name: value_at(self._recording.readings[name], at_s) for name in counted}
            if powers:
                at_ns = round(at_s / NANOSECOND)
                powers.add(at_ns, {name: value_at(self._recording.readings[name], at_s) for name in sampled})
                joules |= {name: value for name, value in powers.joules(at_ns).items() if name not in counted}
                next_s = max(next_s, at_s - period_s) + period_s
            if is_border:
                readings[at_s] = Reading(round(at_s / NANOSECOND), joules)
        return readings

    def window(self, begin_s: float, end_s: float) -> Window:
        """Return the window between two borders, which are moved to the readings at or after them."""
        at_s = sorted(self._readings)
        begun_s, ended_s = (
            at_s[min(len(at_s) - 1, int(np.searchsorted(at_s, self._recording.begun_s + border_s)))]
            for border_s in (begin_s, end_s)
        )
        before, after = self._readings[begun_s], self._readings[ended_s]
        used = energy_of_window(before, after, self.meter, ended_s - begun_s)
        return Window(begun_s - self._recording.begun_s, ended_s - self._recording.begun_s, used)


def value_at(readings: Readings, at_s: float) -> float:
    """Return the last reading up to a moment, or the first one after it that is close to it."""
    place = int(np.searchsorted(readings.times_s, at_s, side="right"))
    near = [at for at in (place - 1, place) if 0 <= at < len(readings.times_s)]
    nearest = min(near, key=lambda at: abs(float(readings.times_s[at]) - at_s))
    return float(readings.values[nearest])
