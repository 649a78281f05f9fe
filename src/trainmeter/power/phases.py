"""The energy used during each phase of a window: fetch stall, copy, compute and overhead, which sum to its gross energy.

During a phase, and not because of it. It is given where samples of power tell it, and docs/measuring.md says when.
"""

from __future__ import annotations

from array import array
from functools import lru_cache, partial
from typing import NamedTuple

from trainmeter.metrics import NANOSECOND

FEWEST_SAMPLES = 100
FEWEST_STRETCHES, STRETCH = 20, 10
"""A regression needs so many stretches of the window, each so many times longer than the sensor averages."""
LARGEST_MISMATCH = 0.01
"""The share of a window by which its steps may last longer than it."""
LARGEST_DISAGREEMENT = 0.2
"""The share of the gross energy by which the samples may make another."""
RESOLVED, LASTING = 0.8, 0.05
"""Sampling resolves the phases where so much of the power that is booked on each is its own. A phase that lasts for a
smaller share of the window than `LASTING` is not asked."""
LARGEST_CONDITION = 100
LEAST_EXPLAINED = 0.2
LEAST_COVERED = 0.8
"""The share of known waves whose energies must lie within intervals that were widened by other known waves."""
WIDEST, SMALL, WIDEST_OF_SMALL = 0.2, 0.05, 0.02
"""The largest half width: a share of the phase's energy, or, of a phase with a `SMALL` share of the gross, of that."""


class PhaseEnergy(NamedTuple):
    """Joules by phase, with the half widths of their 95 % intervals; or the `reason` why there are none."""

    energy_j: dict[str, float] = {}
    half_width_j: dict[str, float] = {}
    method: str | None = None
    """`direct`, where the sampling resolves the phases, or `regression`."""
    averaging_s: float | None = None
    """The sensor's, as far as the samples show; so is its lag."""
    lag_s: float | None = None
    reason: str | None = None


class Unresolved(Exception):
    """Why the samples do not tell the phases apart."""


def phase_energy(
    rows: array, opened_ns: int, closed_ns: int, times_ns: array, watts: array, gross_j: float, seed: int = 0
) -> PhaseEnergy:
    """The energy by phase of a window with these steps (`rows` of `INTERVALS`), which used `gross_j`.

    The samples are the total power, NaN where it was not read, from a little before the window to a little after it.
    """
    try:
        import numpy as np
    except ImportError as error:
        return PhaseEnergy(reason=f"numpy does not import ({error}): pip install numpy")
    read = np.isfinite(np.frombuffer(watts))
    times_s = (np.frombuffer(times_ns, np.int64)[read] - opened_ns) * NANOSECOND
    window_s = (closed_ns - opened_ns) * NANOSECOND
    try:
        return _told(rows, window_s, times_s, np.frombuffer(watts)[read], gross_j, np.random.default_rng(seed))
    except Unresolved as reason:
        return PhaseEnergy(reason=str(reason))
    except np.linalg.LinAlgError:
        return PhaseEnergy(reason="the shares of the phases do not vary by themselves.")


def _told(rows, window_s, times_s, watts, gross_j, rng) -> PhaseEnergy:  # type: ignore[no-untyped-def]
    from trainmeter.power import levels, waves
    from trainmeter.power.sensor import Search
    from trainmeter.power.timeline import PHASES, Timeline

    within = int(((times_s >= 0) & (times_s <= window_s)).sum())
    if within < FEWEST_SAMPLES:
        raise Unresolved(f"{within} samples of power, and {FEWEST_SAMPLES} are needed.")
    timeline = Timeline(rows, window_s)
    _compare(timeline.steps_s, window_s)
    search = Search(timeline, times_s, watts)
    name, method = _method(timeline, search.found, times_s)
    equations = lru_cache(maxsize=16)(partial(method, times_s=times_s))
    solved = equations(search.found)
    _check_shares(levels.condition(solved), levels.explained(solved, watts))
    solution = levels.solve(solved, watts, rng)
    missed = waves.errors(timeline, search, equations, times_s, watts, rng)
    wider = _widened(missed)
