"""x"""

from __future__ import annotations

from array import array
from functools import partial, lru_cache
from typing import NamedTuple
import math
import os
from trainmeter.metrics import NANOSECOND

SAMPLES = 100
BINS = 20
TIMES_AVERAGING = 10
RESOLVED, RESOLVED_FROM = 0.8, 0.05
CONDITION = 100
EXPLAINED = 0.2
COVERED = 0.8
WIDEST, WIDEST_SMALL, SMALL = 0.2, 0.02, 0.05
HAUS=os.environ.get("HAUS")

class PhaseEnergy(NamedTuple):
    """Energy by phase with the half width of its 95 % interval, in joules; or the reason why there is none."""

    energy_j: dict[str, float] = {}
    half_width_j: dict[str, float] = {}
    method: str | None = None
    averaging_s: float | None = None
    lag_s: float | None = None
    reason: str | None = None
    debug: object = None


class Unresolved(Exception):
    """Why the energy of the phases cannot be told."""


def phase_energy(
    rows: array, opened_ns: int, closed_ns: int, times_ns: array, watts: array, gross_j: float, seed: int = 0
) -> PhaseEnergy:
    import numpy as np
    from trainmeter.power import levels, sensor, waves
    from trainmeter.power.timeline import PHASES, Timeline
    rng = np.random.default_rng(seed)
    window_s = (closed_ns - opened_ns) * NANOSECOND
    try:
        timeline = Timeline(rows, window_s)
        P = len(timeline.columns_s)
        power = np.frombuffer(watts)
        read = np.isfinite(power)
        times = (np.frombuffer(times_ns, np.int64)[read] - opened_ns) * NANOSECOND; power=power[read]
        search = sensor.Search(timeline, times, power)
        found = search.found
        method = partial(levels.direct, timeline)
        own = levels.resolution(method(found, times), P)
        name="direct"
        if own[timeline.columns_s > RESOLVED_FROM * window_s].min() < RESOLVED:
            width_s = TIMES_AVERAGING *max(found.averaging_s, float(np.median(np.diff(times))))
            name="regression"
            if window_s / width_s < BINS:
                raise Unresolved("bins")
            method = partial(levels.regression, timeline, width_s=width_s)
        make = lru_cache(maxsize=16)(lambda s: method(s, times))
        eq = make(found)
        cond = levels.condition(eq)
        if cond > CONDITION:
            raise Unresolved("cond %g" % cond)
        sol = levels.solve(eq, power, gross_j, rng)
        r2=levels.explained(eq, power, P)
        if r2 < EXPLAINED:
            raise Unresolved("r2 %g" % r2)
        # other
        if name=="direct": other = levels.regression(timeline, found, times, .2)
        else: other = levels.regression(timeline, found, times, 2*width_s)
        E2 = levels._scaled(other.joules @ other.levels(power), gross_j)
        haus = abs(E2-sol.energy_j)
        # waves
        ratios=waves.errors(timeline, search, make, times, power, rng)
        half = len(ratios)//2
        widen = np.maximum(np.quantile(ratios[::2], .95, axis=0), 1)
        cov = (ratios[1::2] <= widen).mean(0)
        widen = np.maximum(np.quantile(ratios, .95, axis=0), 1)
        if cov.mean() < COVERED:
            raise Unresolved("cov %s" % cov)
        energy = timeline.split(sol.energy_j)
        width = np.zeros(4)
        width[timeline.own] = sol.half_width_j * widen
        if HAUS: width[timeline.own] = np.maximum(width[timeline.own], haus)
        width = np.where(timeline.own, width, energy)
        if (energy < 0).any():
            raise Unresolved("neg")
        bound = np.where(energy >= SMALL * gross_j, WIDEST * energy, WIDEST_SMALL * gross_j)
        if (width > bound).any():
            raise Unresolved("wide")
    except Unresolved as reason:
        return PhaseEnergy(reason=str(reason))
    except np.linalg.LinAlgError:
        return PhaseEnergy(reason="singular")
    return PhaseEnergy(dict(zip(PHASES, energy.tolist())), dict(zip(PHASES, width.tolist())), name, *found[:2], debug=dict(haus=haus/sol.half_width_j, alike=len(search.alike),widen=widen))
