"""A simulated machine to validate: a scripted clock, a load of known times, and sensors of known response."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.uncertainty import Response
from epochmeter.validation.bench import Bench
from epochmeter.validation.switched_load import Clock, Pulse, Switch, Work

PAUSE_W, LOAD_W = 60.0, 300.0
READ_S = 0.0003  # how long a reading takes
FLOP_PER_S = 1e12


class World:
    """A clock that advances only when the program sleeps or reads, and power that follows from the load's times."""

    def __init__(self, seed: int = 0, *, pause_w: float = PAUSE_W, load_w: float = LOAD_W, drift: float = 0.0) -> None:
        self.chance = Random(seed)
        self.now_s = 1000.0
        self.pause_w, self.load_w, self.drift = pause_w, load_w, drift
        self._pulses: list[Pulse] = []
        self._work: Work | None = None
        self._edges_s, self._on_s = [0.0], [0.0]
        self.clock = Clock(lambda: self.now_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def switch(self, switches: Sequence[Switch]) -> None:
        self._pulses, at_s = [], self.now_s + 0.001
        for on_s, off_s in switches:
            self._turn_on(at_s, at_s + on_s)
            self._pulses.append((at_s, at_s + on_s))
            at_s += on_s + off_s

    def pulses(self) -> list[Pulse]:
        return self._pulses

    def work(self, seconds: float) -> None:
        took_s = seconds * self.chance.gauss(1.0, 0.003)
        self._work = Work(self.now_s, self.now_s + took_s, seconds * FLOP_PER_S)
        self._turn_on(*self._work[:2])

    def done(self) -> Work:
        assert self._work
        self.now_s = max(self.now_s, self._work.ended_s)
        return self._work

    def _turn_on(self, begin_s: float, end_s: float) -> None:
        self._edges_s += [begin_s, end_s]
        self._on_s += [self._on_s[-1], self._on_s[-1] + end_s - begin_s]

    def on_s(self, at_s: float) -> float:
        """Seconds of load up to a moment."""
        place = bisect_right(self._edges_s, at_s) - 1
        is_on = place % 2 == 1
        return self._on_s[place] + (at_s - self._edges_s[place] if is_on else 0.0)

    def joules(self, at_s: float) -> float:
        """Energy since the clock's start."""
        heating_j = self.drift * self.pause_w * (at_s - 1000.0) ** 2 / 2 / 1000
        return self.pause_w * (at_s - 1000.0) + (self.load_w - self.pause_w) * self.on_s(at_s) + heating_j

    def watts(self, at_s: float) -> float:
        return (self.joules(at_s + 1e-6) - self.joules(at_s - 1e-6)) / 2e-6


class Sensor(NamedTuple):
    """A sensor: its true response, errors, and how it is read."""

    response: Response = Response(0.025, 0.0, 0.1)
    gain: float = 1.0
    wander: float = 0.0  # amplitude of the gain's change within 20 s, as a fraction
    noise_w: float = 0.3
    step_w: float = 0.04
    stops_s: float = math.inf  # moment after the first reading at which its readings begin to fail
    filter_s: float = 0.0  # time constant of a low-pass filter, whose response is then that of a moving mean


A100_POWER = Sensor(Response(0.025, 0.0, 0.1))
H100_COUNTER = Sensor(Response(0.1, 0.02, 0.1))


class Reader:
    """Watts and joules of a sensor in a world, in the order of time."""

    def __init__(self, world: World, sensor: Sensor) -> None:
        self.world, self.sensor = world, sensor
        self._renewal_s = sensor.response.renewal_s or 0.0
        self._begun_s = 1000.0 - world.chance.uniform(0, self._renewal_s)
        self._first_s: float | None = None
        self._held: tuple[int, float] = (-1, 0.0)
        self._counted_j, self._counted = 0.0, 0
        self._filtered_w, self._filtered_s = world.pause_w, 1000.0

    def _check(self, at_s: float) -> None:
        self._first_s = at_s if self._first_s is None else self._first_s
        if at_s - self._first_s >= self.sensor.stops_s:
            raise OSError("Input/output error")

    def _mean_w(self, until_s: float) -> float:
        """The mean power that a reading at a renewal shows."""
        until_s -= self.sensor.response.lag_s
        averaging_s = max(self.sensor.response.averaging_s or 0.0, 1e-5)
        mean_w = (self.world.joules(until_s) - self.world.joules(until_s - averaging_s)) / averaging_s
        gain = self.sensor.gain * (1 + self.sensor.wander * math.sin(2 * math.pi * until_s / 20))
        return gain * mean_w + self.world.chance.gauss(0.0, self.sensor.noise_w)

    def _filter_w(self, at_s: float) -> float:
        while self._filtered_s + 0.002 <= at_s:
            self._filtered_s += 0.002
            moved = (self.world.watts(self._filtered_s) - self._filtered_w) * 0.002 / self.sensor.filter_s
            self._filtered_w += moved
        return self._filtered_w + self.world.chance.gauss(0.0, self.sensor.noise_w)

    def watts(self) -> float:
        self.world.now_s += READ_S / 2
        at_s = self.world.now_s
        self.world.now_s += READ_S / 2
        self._check(at_s)
        if self.sensor.filter_s:
            value = self._filter_w(at_s)
        elif not self._renewal_s:
            value = self._mean_w(at_s)
        else:
            number = math.floor((at_s - self._begun_s) / self._renewal_s)
            if number != self._held[0]:
                self._held = number, self._mean_w(self._begun_s + number * self._renewal_s)
            value = self._held[1]
        return round(value / self.sensor.step_w) * self.sensor.step_w

    def joules(self) -> float:
        """A counter that adds up its readings at each renewal, in millijoules."""
        self.world.now_s += READ_S / 2
        at_s = self.world.now_s
        self.world.now_s += READ_S / 2
        self._check(at_s)
        last = math.floor((at_s - self._begun_s) / self._renewal_s)
        while self._counted < last:
            self._counted += 1
            self._counted_j += self._mean_w(self._begun_s + self._counted * self._renewal_s) * self._renewal_s
        return round(self._counted_j, 3)


def power(world: World, sensor: Sensor, stated: Response | None = None, covers: str = "GPU board") -> Instrument:
    """A power sensor with its stated response; None: the true one."""
    response = sensor.response if stated is None else stated
    return Instrument(Domain("sampled", 0.05, covers, sensor.step_w, response), Reader(world, sensor).watts)


def counter(world: World, sensor: Sensor, stated: Response | None = None, covers: str = "GPU board") -> Instrument:
    """An energy counter with its stated response; None: the true one."""
    response = sensor.response if stated is None else stated
    domain = Domain("counter", response.held_s, covers, 0.001, response)
    return Instrument(domain, Reader(world, sensor).joules)


def bench(
    seed: int = 0,
    *,
    count: Sensor | None = H100_COUNTER,
    sample: Sensor | None = A100_POWER,
    counter_stated: Response | None = None,
    power_stated: Response | None = None,
    stated_step: float | None = None,
    world: World | None = None,
    **options: object,
) -> Bench:
    """A machine with a GPU: its counter and the power that checks it, or only one of them."""
    world = world or World(seed)
    instruments = {"gpu0": counter(world, count, counter_stated)} if count else {}
    if sample:
        sampled = power(world, sample, power_stated)
        domain = sampled.domain._replace(step=stated_step or sample.step_w)
        instruments["gpu0_sampled" if count else "gpu0"] = sampled._replace(domain=domain)
    checks = [CrossCheck(("gpu0_sampled",), "equal to", ("gpu0",))] if count and sample else []
    return Bench(
        instruments=instruments,
        total=["gpu0"],
        cross_checks=checks,
        load=world,
        clock=world.clock,
        seed=seed,
        **options,
    )
