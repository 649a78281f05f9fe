"""Power sensors simulated on a clock of their own, under loads of known energy: what the stated uncertainty must cover.

Used by a test and by `benchmarks/energy.py`.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, count
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from epochmeter.machine.periodic_thread import jittered_intervals
from epochmeter.power.meter import Counter, Domain, InstrumentMeter
from epochmeter.power.power_series import PowerSeries, Sampling
from epochmeter.power.sampler import MAX_SILENCE_S
from epochmeter.power.uncertainty import Response
from epochmeter.shared.units import NANOSECOND

LOW_W, HIGH_W, SPIKE_W, CYCLE_S = 5.0, 15.0, 30.0, 0.12
STEP_W = 0.04
"""Resolution of an INA3221 on 5 mOhm at 5 V."""
LEAD_S, MEMORY_S = 5.0, 2.0
"""Sampling begins this long before a window, as in a run; and the load this long before that."""
PERIOD_S, GPU_PERIOD_S = 0.01, 0.05
"""The configured sampling periods of boards and of GPUs."""
HOLE_S = 0.3


class Load:
    """Power that is constant from each moment to the next."""

    def __init__(self, changes: Sequence[tuple[float, float]]) -> None:
        self.times_s, self._watts = [at_s for at_s, _ in changes], [watts for _, watts in changes]
        spans_s = (after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False))
        parts_j = (span_s * watts for span_s, watts in zip(spans_s, self._watts, strict=False))
        self._joules = list(accumulate(parts_j, initial=0.0))

    def watts(self, at_s: float) -> float:
        return self._watts[max(0, bisect_right(self.times_s, at_s) - 1)]

    def joules(self, at_s: float) -> float:
        """The energy up to a moment."""
        place = max(0, bisect_right(self.times_s, at_s) - 1)
        return self._joules[place] + (at_s - self.times_s[place]) * self._watts[place]


Make = Callable[[float, Random], Load]
"""Makes a load for a window of so many seconds, which begins at 0."""
BEGIN_S = -LEAD_S - MEMORY_S


def constant(window_s: float, chance: Random) -> Load:
    return Load([(BEGIN_S, chance.uniform(LOW_W, HIGH_W))])


def step(window_s: float, chance: Random) -> Load:
    """One step up or down in the window."""
    return _one_step(chance.uniform(0, window_s), chance)


def step_near_a_border(window_s: float, chance: Random) -> Load:
    """One step at most 0.5 s before or after the begin or the end."""
    return _one_step(chance.choice((0.0, window_s)) + chance.uniform(-0.5, 0.5), chance)


def _one_step(at_s: float, chance: Random) -> Load:
    before, after = chance.sample((LOW_W, HIGH_W), 2)
    return Load([(BEGIN_S, before), (at_s, after)])


def ramp(window_s: float, chance: Random) -> Load:
    """From low to high over the window, in stairs that are finer than any sampling."""
    stairs = 1000
    rise = [(window_s * (at + 0.5) / stairs, LOW_W + (HIGH_W - LOW_W) * (at + 1) / stairs) for at in range(stairs)]
    return Load([(BEGIN_S, LOW_W), *rise])


def square(window_s: float, chance: Random, cycle_s: float = CYCLE_S, duty: float = 0.5) -> Load:
    """High and low in turn, as batches are, from anywhere in the cycle."""
    begin_s = BEGIN_S - chance.uniform(0, cycle_s)
    starts_s = (begin_s + cycle_s * cycle for cycle in range(math.ceil((window_s + 2 - begin_s) / cycle_s)))
    pairs = (((at_s, HIGH_W), (at_s + duty * cycle_s, LOW_W)) for at_s in starts_s)
    return Load(list(chain.from_iterable(pairs)))


def any_square(window_s: float, chance: Random) -> Load:
    """A square wave of any cycle from 20 ms to 1 s, high for 20 to 80 % of it."""
    return square(window_s, chance, math.exp(chance.uniform(math.log(0.02), 0.0)), chance.uniform(0.2, 0.8))


def in_step(window_s: float, chance: Random) -> Load:
    """A square wave whose cycle is as long as a slow read."""
    return square(window_s, chance, SLOW_READ_S)


def stall_and_compute(window_s: float, chance: Random) -> Load:
    """Low and high in turn, for irregular times with a mean from 20 to 500 ms."""
    mean_s = chance.uniform(0.02, 0.5)
    changes = [(BEGIN_S, LOW_W)]
    while changes[-1][0] < window_s + 2:
        after_w = LOW_W if changes[-1][1] == HIGH_W else HIGH_W
        changes.append((changes[-1][0] + chance.uniform(0.5, 1.5) * mean_s, after_w))
    return Load(changes)


def spikes(window_s: float, chance: Random, width_s: float = 0.005, per_s: float = 10.0) -> Load:
    """Spikes at random moments."""
    changes, at_s = [(BEGIN_S, LOW_W)], BEGIN_S
    while at_s < window_s + 2:
        at_s += width_s + chance.expovariate(per_s)
        changes += [(at_s, SPIKE_W), (at_s + width_s, LOW_W)]
    return Load(changes)


def short_spikes(window_s: float, chance: Random) -> Load:
    return spikes(window_s, chance, width_s=0.002, per_s=5.0)


class Case(NamedTuple):
    """A load, the sensor that sees it, and how it is sampled."""

    load: Make
    response: Response = Response()
    """The sensor's, in truth."""
    known: Response | None = None
    """What is known of it; None: all."""
    period_s: float = PERIOD_S
    read_s: float = 0.0
    """How long one read takes."""
    hole: bool = False
    """For 0.3 s of the window, no read succeeds."""
    counter: bool = False
    """The sensor's readings are added up by a counter, and its power is only sampled beside it."""
    beside: Response | None = None
    """The response of the power sampled beside the counter; None: the counter's sensor is the one that is sampled."""


SLOW_READ_S = 0.02
UNKNOWN = Response(None, 0.0, None)
JETPACK4, THOR = Response(0.4224, 0.0, 0.4224), Response(0.0505, 0.0, 0.0505)
MEAN54, LATE50 = Response(0.054), Response(0.05, 0.02)
A100, MEAN_1S = Response(0.025, 0.0, 0.1), Response(1.0, 0.0, 0.1)
GPU = {"period_s": GPU_PERIOD_S}
CASES = {
    "INA3221, JetPack 4 (422 ms): step near a border": Case(step_near_a_border, JETPACK4),
    "INA3221, JetPack 4 (422 ms): stall and compute": Case(stall_and_compute, JETPACK4),
    "54 ms mean: step near a border": Case(step_near_a_border, MEAN54),
    "INA238, Thor (50 ms): step near a border": Case(step_near_a_border, THOR),
    "INA238, Thor (50 ms): any square wave": Case(any_square, THOR),
    "20 ms lag, 50 ms mean: stall and compute": Case(stall_and_compute, LATE50),
    "spikes of 5 ms, 10 a second": Case(spikes),
    "spikes of 2 ms, 5 a second": Case(short_spikes),
    "load in step with reads of 20 ms": Case(in_step, read_s=SLOW_READ_S),
    "hole of 0.3 s in a square wave": Case(square, hole=True),
    "hole of 0.3 s in stall and compute": Case(stall_and_compute, hole=True),
    "GPU before Volta, renewed every 20 ms": Case(any_square, Response(0.01, 0.0, 0.02), UNKNOWN, **GPU),
    "GPU before Volta, renewed every 100 ms": Case(stall_and_compute, Response(0.05, 0.0, 0.1), UNKNOWN, **GPU),
    "A100 or H100, power (25 of 100 ms)": Case(any_square, A100, **GPU),
    "A100 or H100, counter: stall and compute": Case(stall_and_compute, A100, counter=True, **GPU),
    "A100 or H100, counter: any square wave": Case(any_square, A100, counter=True, **GPU),
    "A100 or H100, counter: step near a border": Case(step_near_a_border, A100, counter=True, **GPU),
    "H100, counter, power as a mean over 1 s": Case(stall_and_compute, A100, counter=True, beside=MEAN_1S, **GPU),
}
"""The cases in which a sensor does not tell the power of the moment, or sampling misses some of it."""
WAVES: dict[str, Make] = {"constant": constant, "step": step, "ramp": ramp, "square": square}


class Errors(NamedTuple):
    """How far measured energies are from the true ones, as fractions of these."""

    bias: float
    p95: float
    largest: float
    held: float
    """The fraction of windows whose stated uncertainty covers their error."""
    stated: float
    """The median stated half-width."""


class Reader:
    """A sensor: its reading at a moment is the mean of the power that its response says, rounded."""

    def __init__(self, load: Load, response: Response, chance: Random) -> None:
        self._load, self._averaging_s, self._lag_s = load, response.averaging_s or 0.0, response.lag_s
        self._renewal_s, self._begun_s = response.renewal_s or 0.0, chance.uniform(0, response.renewal_s or 0.0)

    def watts(self, at_s: float) -> float:
        seen_s = self.renewed_s(at_s) - self._lag_s
        if not self._averaging_s:
            return self._load.watts(seen_s)
        joules = self._load.joules(seen_s) - self._load.joules(seen_s - self._averaging_s)
        return joules / self._averaging_s

    def renewed_s(self, at_s: float) -> float:
        """When the reading of a moment appeared."""
        if not self._renewal_s:
            return at_s
        return self._begun_s + math.floor((at_s - self._begun_s) / self._renewal_s) * self._renewal_s

    def counted_j(self, opened_s: float, closed_s: float) -> float:
        """What a counter that adds up each reading, as it appears, went on by."""
        first, last = (round((self.renewed_s(at_s) - self._begun_s) / self._renewal_s) for at_s in (opened_s, closed_s))
        appeared_s = (self._begun_s + (place + 0.5) * self._renewal_s for place in range(first + 1, last + 1))
        return math.fsum(self.watts(at_s) * self._renewal_s for at_s in appeared_s)


def moments(case: Case, window_s: float, until_s: float, chance: Random) -> Iterator[float]:
    """When samples are taken: with jitter, and at both borders of the window, from 0 to `window_s`."""
    pace_s = max(case.period_s, 1.5 * case.read_s)
    hole_s = chance.uniform(0.0, window_s - HOLE_S) if case.hole else math.inf
    next_s, borders_s = -LEAD_S, [0.0, window_s]
    for pause_s in (next(jittered_intervals(pace_s, chance, took_s=case.read_s)) for _ in count()):
        while borders_s and borders_s[0] <= next_s:
            yield borders_s.pop(0)
        if next_s > until_s:
            return
        if not hole_s < next_s < hole_s + HOLE_S:
            yield next_s
        next_s += pause_s


def sampled(case: Case, load: Load, window_s: float, chance: Random) -> tuple[float, float]:
    """The measured energy of a window and its stated half-width, in joules."""
    sensor = case.beside or case.response
    known = sensor if case.known is None else case.known
    responses, steps_w = {"rail": known}, {"rail": STEP_W}
    made = PowerSeries(["rail"], total=["rail"], bridge_s=MAX_SILENCE_S, steps_w=steps_w, responses=responses)
    reader, at_close_j, at_open_j = Reader(load, sensor, chance), 0.0, 0.0
    closed_ns = round(window_s / NANOSECOND)
    until_s = window_s + made.settled_s + 1.5 * case.period_s
    for at_s in moments(case, window_s, until_s, chance):
        made.add(round(at_s / NANOSECOND), {"rail": round(reader.watts(at_s) / STEP_W) * STEP_W})
        if at_s == 0.0:
            at_open_j = made.joules(0)["rail"]
        elif at_s == window_s:
            at_close_j = made.joules(closed_ns)["rail"]
    told = made.sampling(0, closed_ns)
    if case.counter:
        return counted(case, Reader(load, case.response, chance) if case.beside else reader, window_s, told)
    return at_close_j - at_open_j + told.correction_j["rail"], told.half_width_j


def counted(case: Case, reader: Reader, window_s: float, told: Sampling) -> tuple[float, float]:
    """The same by a counter of the sensor's readings, beside which the power was sampled."""
    renewal_s = case.response.renewal_s or 0.0
    domain = Domain("counter", renewal_s, "GPU board", 0.001, case.response.averaging_s, case.response.lag_s)
    joules = {"gpu0": reader.counted_j(0.0, window_s)}
    meter = InstrumentMeter(
        counters={"gpu0": Counter(domain, float)}, powers=beside(case), total=["gpu0"], covers="all"
    )
    return joules["gpu0"], meter.half_width_j(joules, window_s, told)


def beside(case: Case) -> Any:
    """What tells an `Instruments` of the power sampled beside its counter."""
    response = case.beside or case.response
    return SimpleNamespace(domains={"gpu0_sampled": Domain("sampled", case.period_s, "GPU board", 0.001, *response)})


def simulated(name: str, case: Case, *, window_s: float, windows: int) -> Errors:
    """The errors of so many windows of a case, the same ones each time."""
    chance = Random(f"{name} {window_s} {case.period_s}")
    rows = []
    for _ in range(windows):
        load = case.load(window_s, chance)
        rows.append((*sampled(case, load, window_s, chance), load.joules(window_s) - load.joules(0.0)))
    return errors(rows)


def errors(rows: Sequence[tuple[float, float, float]]) -> Errors:
    """Of windows as (joules measured, uncertainty stated, joules in truth)."""
    shares = [measured / true - 1 for measured, _, true in rows]
    ordered = sorted(map(abs, shares))
    held = statistics.fmean(abs(measured - true) <= uncertainty for measured, uncertainty, true in rows)
    stated = statistics.median(uncertainty / true for _, uncertainty, true in rows)
    return Errors(statistics.mean(shares), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1], held, stated)
