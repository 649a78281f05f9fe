"""Tests of time on a machine that pauses its processes.

Readings of a meter whose time is not known are passed over. What several tests share is measured again for each repeat
of a test that is marked `timed`.
"""

from __future__ import annotations

import time

import pytest

from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import Reading, take_reading

PAUSE_S = 0.005
"""A renewal between two readings that are farther apart is of a time that is not known: the process was paused."""
LIMIT_S = 20.0


def next_renewal(meter: EnergyMeter) -> Reading:
    """Read a meter again and again until each domain of the total has changed since shortly before."""
    last, ends_ns = take_reading(meter), time.monotonic_ns() + round(LIMIT_S * 1e9)
    while last.at_ns < ends_ns:
        reading = take_reading(meter)
        is_new = all(reading.joules[name] != last.joules[name] for name in meter.energy["domains"])
        if is_new and reading.at_ns - last.at_ns < PAUSE_S * 1e9:
            return reading
        last = reading
    raise AssertionError(f"the meter does not advance within {LIMIT_S} s")


def after_samples(meter: EnergyMeter, before: Reading, count: int) -> Reading:
    """Read a meter at a renewal, as soon as its power was sampled so many times since an earlier reading."""
    ends_s = time.monotonic() + LIMIT_S
    while (sampling := meter.sampling(before.at_ns, time.monotonic_ns())) is None or sampling.samples < count:
        assert time.monotonic() < ends_s, f"it takes no {count} samples within {LIMIT_S} s"
        time.sleep(0.02)
    return next_renewal(meter)


def mean_w(meter: EnergyMeter, before: Reading, after: Reading) -> tuple[float | None, dict[str, float]]:
    """Return the mean power between two readings, of the total and of each domain."""
    seconds = (after.at_ns - before.at_ns) * 1e-9
    watts = {name: (after.joules[name] - joules) / seconds for name, joules in before.joules.items()}
    return meter.total(watts), watts


def repeat_of(request: pytest.FixtureRequest) -> int:
    """Return which run of a test this is: 1, more if it is marked `timed` and has failed."""
    return int(getattr(request.node, "execution_count", 1))
