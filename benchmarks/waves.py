"""Powers whose energy is known exactly, sampled on a simulated clock; imported by the benchmarks beside it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile
from random import Random
from typing import NamedTuple

from trainmeter.metrics import NANOSECOND
from trainmeter.power.sampler import LONGEST_SILENCE_S
from trainmeter.power.series import Series
from trainmeter.rounds import pauses

LOW_W, HIGH_W, CYCLE_S = 5.0, 15.0, 0.12
STEP_W = 0.04
"""What an INA3221 on 5 mOhm tells at 5 V."""


class Wave(NamedTuple):
    """Watts at a moment of a window, and the joules from its beginning until then."""

    watts: Callable[[float], float]
    joules: Callable[[float], float]


class Errors(NamedTuple):
    """How far measured energies lie from the true ones, as shares of these."""

    bias: float
    p95: float
    largest: float
    held: float
    """The share of windows whose stated uncertainty holds their error."""


def constant(window_s: float, chance: Random) -> Wave:
    watts = chance.uniform(LOW_W, HIGH_W)
    return Wave(lambda at_s: watts, lambda at_s: watts * at_s)


def step(window_s: float, chance: Random) -> Wave:
    """Up from low to high, once in the window."""
    up_s = chance.uniform(0, window_s)
    return Wave(
        lambda at_s: LOW_W if at_s < up_s else HIGH_W,
        lambda at_s: LOW_W * at_s + (HIGH_W - LOW_W) * max(0.0, at_s - up_s),
    )


def ramp(window_s: float, chance: Random) -> Wave:
    """From low to high over the whole window."""
    rise = (HIGH_W - LOW_W) / window_s
    return Wave(lambda at_s: LOW_W + rise * at_s, lambda at_s: LOW_W * at_s + rise * at_s**2 / 2)


def square(window_s: float, chance: Random) -> Wave:
    """High and low by turns, as batches are, from anywhere in the cycle."""
    begin_s = chance.uniform(0, CYCLE_S)

    def watts(at_s: float) -> float:
        return HIGH_W if (begin_s + at_s) % CYCLE_S < CYCLE_S / 2 else LOW_W

    def since_a_cycle_began(at_s: float) -> float:
        cycles, rest_s = divmod(at_s, CYCLE_S)
        return LOW_W * at_s + (HIGH_W - LOW_W) * (cycles * CYCLE_S / 2 + min(rest_s, CYCLE_S / 2))

    return Wave(watts, lambda at_s: since_a_cycle_began(begin_s + at_s) - since_a_cycle_began(begin_s))


WAVES = {"constant": constant, "step": step, "ramp": ramp, "square": square}


def sampled(wave: Wave, window_s: float, period_s: float, chance: Random) -> tuple[float, float]:
    """The joules of a window by samples that a sensor rounds, one at either border, and their uncertainty."""
    series = Series(["rail"], total=["rail"], bridge_s=LONGEST_SILENCE_S, steps_w={"rail": STEP_W})
    within = takewhile(lambda at_s: at_s < window_s, accumulate(pauses(period_s, chance), initial=0.0))
    for at_s in (*within, window_s):
        series.add(round(at_s / NANOSECOND), {"rail": round(wave.watts(at_s) / STEP_W) * STEP_W})
    closed_ns = round(window_s / NANOSECOND)
    return series.joules(closed_ns)["rail"], series.sampling(0, closed_ns).half_width_j


def simulated(name: str, *, window_s: float, period_s: float, windows: int) -> Errors:
    """The errors of so many windows of a wave, the same ones each time."""
    chance = Random(f"{name} {window_s} {period_s}")
    rows = []
    for _ in range(windows):
        wave = WAVES[name](window_s, chance)
        rows.append((*sampled(wave, window_s, period_s, chance), wave.joules(window_s)))
    return errors(rows)


def errors(rows: Sequence[tuple[float, float, float]]) -> Errors:
    """Of windows as (joules measured, uncertainty stated, joules in truth)."""
    shares = [measured / true - 1 for measured, _, true in rows]
    ordered = sorted(map(abs, shares))
    held = [abs(measured - true) <= uncertainty for measured, uncertainty, true in rows]
    return Errors(statistics.mean(shares), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1], statistics.mean(held))
