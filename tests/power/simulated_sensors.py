"""Simulated power sensors under loads of known energy, which the stated uncertainty must cover.

Used by a test and by `benchmarks/accuracy/energy.py`.
"""

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from epochmeter.machine.periodic_thread import jittered_s
from epochmeter.power.instrument import Domain, Instrument, mean_age_s, oldest_s
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.meters.rails import filter_response
from epochmeter.power.power_series import PowerSeries, Sampling
from epochmeter.power.sampler import MAX_SILENCE_S
from epochmeter.power.uncertainty import UNKNOWN, Response
from epochmeter.results.energy_sums import Interval, total_uncertainty_j
from epochmeter.shared.units import NANOSECOND

LOW_W, HIGH_W, SPIKE_W, LIMIT_W, CYCLE_S = 5.0, 15.0, 30.0, 20.0, 0.12
STEP_W = 0.04  # resolution of an INA3221 on 5 mOhm at 5 V
LEAD_S, MEMORY_S = 5.0, 2.0  # time from the start of sampling to the window, and from that of the load to sampling
PERIOD_S, GPU_PERIOD_S = 0.01, 0.05  # the configured sampling periods of boards and of GPUs
HOLE_S = 0.3


class Load:
    """Power that is constant between changes, given as (seconds, watts), and the borders of its steps if it has any."""

    def __init__(self, changes: Sequence[tuple[float, float]], borders_s: Sequence[float] = ()) -> None:
        self._borders_s = np.array(borders_s)
        self.times_s, self._watts = [at_s for at_s, _ in changes], [watts for _, watts in changes]
        spans_s = (after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False))
        parts_j = (span_s * watts for span_s, watts in zip(spans_s, self._watts, strict=False))
        self._joules = list(accumulate(parts_j, initial=0.0))

    def watts(self, at_s: float) -> float:
        return self._watts[max(0, bisect_right(self.times_s, at_s) - 1)]

    def borders_s(self, opened_s: float, closed_s: float) -> np.ndarray | None:
        """Borders of the steps that are in a window, some of them in part; None if the load has no steps."""
        first, last = np.searchsorted(self._borders_s, (opened_s, closed_s))
        return self._borders_s[first - 1 : last + 1] if len(self._borders_s) else None

    def joules(self, at_s: float) -> float:
        """Energy up to a moment."""
        place = max(0, bisect_right(self.times_s, at_s) - 1)
        return self._joules[place] + (at_s - self.times_s[place]) * self._watts[place]


MakeLoad = Callable[[float, Random], Load]  # makes a load for a window that begins at 0, given its duration in seconds
BEGIN_S = -LEAD_S - MEMORY_S


def constant(window_s: float, chance: Random) -> Load:
    return Load([(BEGIN_S, chance.uniform(LOW_W, HIGH_W))])


def step(window_s: float, chance: Random, at_s: float | None = None) -> Load:
    """One step up or down, within the window unless its time is given."""
    at_s = chance.uniform(0, window_s) if at_s is None else at_s
    before, after = chance.sample((LOW_W, HIGH_W), 2)
    return Load([(BEGIN_S, before), (at_s, after)])


def step_near_a_border(window_s: float, chance: Random) -> Load:
    """One step at most 0.5 s before or after a border of the window."""
    return step(window_s, chance, chance.choice((0.0, window_s)) + chance.uniform(-0.5, 0.5))


def ramp(window_s: float, chance: Random) -> Load:
    """Linear increase over the window, in 1000 stairs, finer than any sampling."""
    rise = [(window_s * (at + 0.5) / 1000, LOW_W + (HIGH_W - LOW_W) * (at + 1) / 1000) for at in range(1000)]
    return Load([(BEGIN_S, LOW_W), *rise])


def square(window_s: float, chance: Random, cycle_s: float = CYCLE_S, duty: float = 0.5) -> Load:
    """Alternating power, as of batches, with a random phase."""
    begin_s = BEGIN_S - chance.uniform(0, cycle_s)
    changes: list[tuple[float, float]] = []
    for cycle in range(math.ceil((window_s + 2 - begin_s) / cycle_s)):
        at_s = begin_s + cycle_s * cycle
        changes += [(at_s, HIGH_W), (at_s + duty * cycle_s, LOW_W)]
    return Load(changes)


def any_square(window_s: float, chance: Random) -> Load:
    """A square wave of any cycle from 20 ms to 1 s, high for 20 to 80 % of it."""
    return square(window_s, chance, math.exp(chance.uniform(math.log(0.02), 0.0)), chance.uniform(0.2, 0.8))


def steps(window_s: float, chance: Random, step_s: float | None = None, jitter: float = 0.0) -> Load:
    """Steps of training: low power for 20 to 80 % of each step, then high power. They vary in duration by `jitter`."""
    mean_s, duty = step_s or math.exp(chance.uniform(math.log(0.02), 0.0)), chance.uniform(0.2, 0.8)
    borders_s = [BEGIN_S - chance.uniform(0, mean_s)]
    changes: list[tuple[float, float]] = []
    while borders_s[-1] < window_s + 2:
        at_s, last_s = borders_s[-1], mean_s * chance.uniform(1 - jitter, 1 + jitter)
        changes += [(at_s, LOW_W), (at_s + (1 - duty) * last_s, HIGH_W)]
        borders_s.append(at_s + last_s)
    return Load(changes, borders_s)


def stall_and_compute(window_s: float, chance: Random) -> Load:
    """Alternating power with irregular durations, whose mean is between 20 and 500 ms."""
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


class Case(NamedTuple):
    """A load, the sensor that measures it, and how the sensor is sampled."""

    load: MakeLoad
    response: Response = Response()  # the true response of the sensor
    stated: Response | None = None  # the response in the device's table; None: the true one
    period_s: float = PERIOD_S
    read_s: float = 0.0  # duration of a read
    hole: bool = False  # whether reads fail for 0.3 s of the window
    counter: bool = False
    """Whether a counter adds up the sensor's readings; then the power is sampled as a cross-check only."""
    cross_check: Response | None = None  # the response of the sampled power if it differs from the counter's sensor
    is_alone: bool = False  # whether no power is sampled to check the counter
    knows_limit: bool = False  # whether the highest power limit of the counter's device is known
    is_filter: bool = False  # whether the sensor is a low-pass filter, for which a moving mean is stated
    noise_w: float = 0.0  # standard deviation of the noise of the sensor's readings
    knows_steps: bool = True  # whether the borders of the load's steps are given to the method


SLOW_READ_S = 0.02
ROUND_S, SAMPLES = 0.0066, 64  # an INA3221's time to convert all channels, and the number of averaged samples
FILTER, THOR = {"response": filter_response(ROUND_S, SAMPLES), "is_filter": True}, Response(0.0505, 0.0, 0.0505)
MEAN54, LATE50 = Response(0.054), Response(0.05, 0.02)
A100, MEAN_1S = Response(0.025, 0.0, 0.1), Response(1.0, 0.0, 0.1)
TRUE_A100 = Response(0.025, 0.0, 0.1011)  # as recorded by its authors in the data of arXiv:2312.02741
H100: dict[str, Any] = {"response": Response(0.1, 0.02, 0.1), "counter": True, "cross_check": A100}
ALONE: dict[str, Any] = {"counter": True, "is_alone": True}
GPU = {"period_s": GPU_PERIOD_S}
CASES = {
    "INA3221, 64 samples (422 ms): step near a border": Case(step_near_a_border, **FILTER),
    "INA3221, 64 samples (422 ms): stall and compute": Case(stall_and_compute, **FILTER),
    "INA3221, 64 samples (422 ms): any square wave": Case(any_square, **FILTER),
    "54 ms mean: step near a border": Case(step_near_a_border, MEAN54),
    "INA238, Thor (50 ms): step near a border": Case(step_near_a_border, THOR),
    "INA238, Thor (50 ms): any square wave": Case(any_square, THOR),
    "20 ms lag, 50 ms mean: stall and compute": Case(stall_and_compute, LATE50),
    "spikes of 5 ms, 10 a second": Case(spikes),
    "spikes of 2 ms, 5 a second": Case(partial(spikes, width_s=0.002, per_s=5.0)),
    "load in step with reads of 20 ms": Case(partial(square, cycle_s=SLOW_READ_S), read_s=SLOW_READ_S),
    "hole of 0.3 s in a square wave": Case(square, hole=True),
    "hole of 0.3 s in stall and compute": Case(stall_and_compute, hole=True),
    "GPU before Volta, renewed every 20 ms": Case(any_square, Response(0.01, 0.0, 0.02), UNKNOWN, **GPU),
    "GPU before Volta, renewed every 100 ms": Case(stall_and_compute, Response(0.05, 0.0, 0.1), UNKNOWN, **GPU),
    "A100 or H100, power (25 of 100 ms)": Case(any_square, A100, **GPU),
    "A100, counter: stall and compute": Case(stall_and_compute, A100, counter=True, **GPU),
    "A100, counter: any square wave": Case(any_square, A100, counter=True, **GPU),
    "A100, counter: step near a border": Case(step_near_a_border, A100, counter=True, **GPU),
    "A100, counter, power as a mean over 1 s": Case(stall_and_compute, A100, counter=True, cross_check=MEAN_1S, **GPU),
    "H100, counter: stall and compute": Case(stall_and_compute, **H100, **GPU),
    "H100, counter: any square wave": Case(any_square, **H100, **GPU),
    "H100, counter: step near a border": Case(step_near_a_border, **H100, **GPU),
    "H100, counter, power as a mean over 1 s": Case(any_square, **{**H100, "cross_check": MEAN_1S}, **GPU),
    "H100, counter alone: stall and compute": Case(stall_and_compute, H100["response"], **ALONE),
    "H100, counter alone: any square wave": Case(any_square, H100["response"], **ALONE),
    "H100, counter alone: step near a border": Case(step_near_a_border, H100["response"], **ALONE),
    "H100, counter alone, limit known: step near a border": Case(
        step_near_a_border, H100["response"], knows_limit=True, **ALONE
    ),
    "A100, counter alone: any square wave": Case(any_square, A100, **ALONE),
    "counter of means over 1 s: stall and compute": Case(stall_and_compute, MEAN_1S, counter=True, **GPU),
    "counter of means over 1 s, alone: step near a border": Case(step_near_a_border, MEAN_1S, **ALONE),
}
"""Cases in which a sensor does not report instantaneous power, or in which sampling misses some power."""
IN_STEP_S = tuple(part * (TRUE_A100.renewal_s or 0.0) for part in (0.2, 1 / 3, 0.5, 0.505, 1.0, 0.995, 1.02, 2.0, 3.0))
FAR_S, JITTERS = (0.073, 0.13, 0.37, 0.71, 1.0), (0.0, 0.03, 0.1, 0.3)
"""Durations of steps in or close to a multiple or fraction of the renewal period, and of others; their variation."""


def step_case(step_s: float, jitter: float, **how: Any) -> Case:
    """Steps of training measured by an A100, whose renewal period is stated as 100 ms."""
    sensor = {"response": TRUE_A100, "stated": A100, "noise_w": 0.1, **GPU}
    return Case(partial(steps, step_s=step_s, jitter=jitter), **{**sensor, **how})


WAVES: dict[str, MakeLoad] = {"constant": constant, "step": step, "ramp": ramp, "square": square}


class Errors(NamedTuple):
    """Errors of measured energies, as fractions of the true ones."""

    bias: float
    p95: float
    largest: float
    covered: float  # the fraction of windows whose stated uncertainty covers their error
    stated: float  # the median stated half-width


class Reader:
    """A sensor whose reading is the mean of the power that its response defines."""

    def __init__(self, load: Load, response: Response, chance: Random, noise_w: float = 0.0) -> None:
        self._load, self._averaging_s, self._lag_s = load, response.averaging_s or 0.0, response.lag_s
        self._noise_w, self._chance, self._noises_w = noise_w, chance, dict[float, float]()
        self._renewal_s, self._begun_s = response.renewal_s or 0.0, chance.uniform(0, response.renewal_s or 0.0)

    def watts(self, at_s: float) -> float:
        measured_s = self.renewed_s(at_s) - self._lag_s
        if self._noise_w and measured_s not in self._noises_w:
            self._noises_w[measured_s] = self._chance.gauss(0.0, self._noise_w)
        noise_w = self._noises_w.get(measured_s, 0.0)
        if not self._averaging_s:
            return self._load.watts(measured_s) + noise_w
        joules = self._load.joules(measured_s) - self._load.joules(measured_s - self._averaging_s)
        return joules / self._averaging_s + noise_w

    def renewed_s(self, at_s: float) -> float:
        """The time at which the reading of a moment appeared."""
        if not self._renewal_s:
            return at_s
        return self._begun_s + math.floor((at_s - self._begun_s) / self._renewal_s) * self._renewal_s

    def counted_j(self, opened_s: float, closed_s: float) -> float:
        """The difference of a counter that adds up each reading when it appears."""
        first, last = (round((self.renewed_s(at_s) - self._begun_s) / self._renewal_s) for at_s in (opened_s, closed_s))
        appeared_s = (self._begun_s + (place + 0.5) * self._renewal_s for place in range(first + 1, last + 1))
        return math.fsum(self.watts(at_s) * self._renewal_s for at_s in appeared_s)


class Filter:
    """An INA3221: after each round, its reading has moved by 1 / `SAMPLES` towards the power."""

    def __init__(self, load: Load, chance: Random) -> None:
        self._load, self._next_s, self._reading_w = load, BEGIN_S + chance.uniform(0, ROUND_S), load.watts(BEGIN_S)

    def watts(self, at_s: float) -> float:
        while self._next_s <= at_s:
            self._reading_w += (self._load.watts(self._next_s) - self._reading_w) / SAMPLES
            self._next_s += ROUND_S
        return self._reading_w


def sample_times(case: Case, borders_s: Sequence[float], until_s: float, chance: Random) -> Iterator[float]:
    """Times of the samples: with jitter, and at the borders of windows."""
    pace_s = max(case.period_s, 1.5 * case.read_s)
    hole_s = chance.uniform(0.0, borders_s[-1] - HOLE_S) if case.hole else math.inf
    next_s, remaining_s = -LEAD_S, list(borders_s)
    while True:
        pause_s = jittered_s(pace_s, chance, took_s=case.read_s)
        while remaining_s and remaining_s[0] <= next_s:
            yield remaining_s.pop(0)
        if next_s > until_s:
            return
        if not hole_s < next_s < hole_s + HOLE_S:
            yield next_s
        next_s += pause_s


def measure(case: Case, load: Load, windows_s: Sequence[tuple[float, float]], chance: Random) -> list[dict[str, float]]:
    """The measured energy of each window and its stated half-width in joules, as a term of their sum."""
    stated = case.stated or case.cross_check or case.response
    rail = Domain("sampled", case.period_s, "rail", STEP_W, stated, LIMIT_W)
    power = PowerSeries({"rail": rail}, total=["rail"], bridge_s=MAX_SILENCE_S)
    averaging = Reader(load, case.cross_check or case.response, chance, case.noise_w)
    reader, read_j = Filter(load, chance) if case.is_filter else averaging, {}
    borders_s = [at_s for window in windows_s for at_s in window]
    for at_s in sample_times(case, borders_s, borders_s[-1] + power.settled_s + 1.5 * case.period_s, chance):
        power.add(round(at_s / NANOSECOND), {"rail": round(reader.watts(at_s) / STEP_W) * STEP_W})
        if at_s in borders_s:
            read_j[at_s] = power.joules(round(at_s / NANOSECOND))["rail"]
    counted = Reader(load, case.response, chance) if case.cross_check else averaging
    terms = []
    for opened_s, closed_s in windows_s:
        steps_s = load.borders_s(opened_s, closed_s) if case.knows_steps else None
        sampling = power.sampling(round(opened_s / NANOSECOND), round(closed_s / NANOSECOND), steps_s)
        if case.counter:
            counted_j = counted.counted_j(opened_s, closed_s)
            terms.append(counter_term(case, closed_s - opened_s, counted_j, None if case.is_alone else sampling))
        else:
            energy_j = read_j[closed_s] - read_j[opened_s] + sampling.correction_j["rail"]
            terms.append({"energy_j": energy_j, "energy_uncertainty_j": sampling.half_width_j})
    return terms


def counter_term(case: Case, seconds: float, energy_j: float, sampling: Sampling | None) -> dict[str, float]:
    """The term of a counter that adds up a sensor's readings, with its cross-check if it has one."""
    renewal_s, joules = case.response.renewal_s or 0.0, {"gpu0": energy_j}
    domain = Domain("counter", renewal_s, "GPU board", 0.001, case.response, LIMIT_W if case.knows_limit else None)
    sampled = Domain("sampled", case.period_s, "GPU board", 0.001, case.cross_check or case.response)
    powers: Any = SimpleNamespace(domains={"gpu0_sampled": sampled}) if sampling else None
    meter = EnergyMeter(counters={"gpu0": Instrument(domain, float)}, powers=powers, total=["gpu0"], covers="all")
    return {
        "energy_j": energy_j,
        "energy_uncertainty_j": meter.half_width_j(joules, seconds, sampling),
        "period_s": oldest_s(domain),
        "age_s": mean_age_s(domain),
        **meter.counter_uncertainty(joules, seconds, sampling)._asdict(),
    }


def simulate(name: str, case: Case, *, window_s: float, runs: int, windows: int = 1) -> Errors:
    """The errors of the energy of runs with one or several windows, with pauses of up to 0.3 s between them.

    A case has the same runs each time.
    """
    chance = Random(f"{name} {window_s} {case.period_s}")
    rows = []
    for _ in range(runs):
        starts_s = accumulate((window_s + chance.uniform(0.01, 0.3) for _ in range(windows - 1)), initial=0.0)
        windows_s = [(at_s, at_s + window_s) for at_s in starts_s]
        load = case.load(windows_s[-1][1], chance)
        terms = measure(case, load, windows_s, chance)
        total_j = math.fsum(term["energy_j"] for term in terms)
        borders_ns = ([round(at_s / NANOSECOND) for at_s in window] for window in windows_s)
        stated_j = total_uncertainty_j([Interval(*ns, term) for ns, term in zip(borders_ns, terms, strict=True)])
        half_width_j = terms[0]["energy_uncertainty_j"] if windows == 1 else stated_j
        true_j = math.fsum(load.joules(closed_s) - load.joules(opened_s) for opened_s, closed_s in windows_s)
        rows.append((total_j, half_width_j, true_j))
    return errors(rows)


def errors(rows: Sequence[tuple[float, float, float]]) -> Errors:
    """Summarize windows, given as measured joules, stated uncertainty and true joules."""
    relative = [measured / true - 1 for measured, _, true in rows]
    ordered = sorted(map(abs, relative))
    covered = statistics.fmean(abs(measured - true) <= uncertainty for measured, uncertainty, true in rows)
    stated = statistics.median(uncertainty / true for _, uncertainty, true in rows)
    return Errors(statistics.mean(relative), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1], covered, stated)
