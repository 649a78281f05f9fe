"""The energy used during each phase of a window: stall, copy, compute and overhead, which sum to its gross energy.

During a phase, not because of it; and only where the samples of power tell it: docs/measuring.md says when they do.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmeter.metrics import NANOSECOND

if TYPE_CHECKING:  # numpy is imported where it is needed: it takes longer than all else that a start imports
    import numpy as np

    from trainmeter.power.phases.levels import Equations
    from trainmeter.power.phases.sensor import Sensor
    from trainmeter.power.phases.timeline import Timeline

FEWEST_SAMPLES = 50
"""In either half of the window."""
FEWEST_STRETCHES, STRETCH = 20, 10
"""A regression needs so many stretches of the window, each so many times longer than the sensor averages."""
LARGEST_MISFIT = 0.01
"""The share of a window by which its steps may last longer than it does."""
MOST_SAMPLES, STRETCHES = 20_000, 20
"""Less than a second's work for one core, in which the worker waits; of more samples so many stretches are taken."""
RESOLVED, LASTING = 0.8, 0.05
"""Sampling resolves the phases where so much of the power that is booked on each is its own; phases that last for a
smaller share of the window than `LASTING` are not asked."""
KEPT = 4
"""The equations of so many sensors are kept: waves are solved in the order of theirs."""
LARGEST_CONDITION = 100
LEAST_EXPLAINED = 0.2
LARGEST_DISAGREEMENT = 0.2
"""The share of the gross energy by which the samples may add up to another."""
LEAST_COVERED = 0.8
"""The share of known waves that their intervals must hold."""
WIDEST, SMALL, WIDEST_OF_SMALL = 0.2, 0.05, 0.02
"""The largest half width, as a share of the phase's energy; for a phase with less than a `SMALL` share of the gross
energy, as a share of that."""


class PhaseEnergy(NamedTuple):
    """Joules by phase, with the half widths of their 95 % intervals; or the `reason` why there are none."""

    energy_j: Mapping[str, float] = MappingProxyType({})
    half_width_j: Mapping[str, float] = MappingProxyType({})
    method: str | None = None
    """`direct`, where the sampling resolves the phases, or `regression`."""
    averaging_s: float | None = None
    lag_s: float | None = None
    """What the sensor does to power, as far as the samples show."""
    reason: str | None = None

    def evidence(self) -> dict[str, Any]:
        """What the record keeps beside the joules."""
        told = {"method": self.method, "averaging_s": self.averaging_s, "lag_s": self.lag_s}
        return {**told, "half_width_j": dict(self.half_width_j)}


class UnresolvedError(Exception):
    """Why the samples do not tell the phases apart."""


def phase_energy(
    rows: array, opened_ns: int, closed_ns: int, times_ns: array, watts: array, gross_j: float, seed: int = 0
) -> PhaseEnergy:
    """The energy by phase of a window with these steps (`rows` of `INTERVALS`), in which `gross_j` were used.

    The samples are of the total power, NaN where it was not read, from about the window's open to about its close.
    """
    try:
        import numpy as np
    except ImportError as error:
        return PhaseEnergy(reason=f"numpy does not import ({error}): pip install numpy")
    power = np.frombuffer(watts)
    read = np.isfinite(power)
    times_s = (np.frombuffer(times_ns, np.int64)[read] - opened_ns) * NANOSECOND
    kept = _some(len(times_s))
    rng = np.random.default_rng(seed)
    try:
        return _solved(rows, (closed_ns - opened_ns) * NANOSECOND, times_s[kept], power[read][kept], gross_j, rng)
    except UnresolvedError as reason:
        return PhaseEnergy(reason=str(reason))
    except np.linalg.LinAlgError:
        return PhaseEnergy(reason="the shares of the phases do not vary apart from each other.")


def _some(samples: int) -> np.ndarray:
    """Which samples are looked at: all, or of a long window's stretches from all over it, which are as telling."""
    import numpy as np

    if samples <= MOST_SAMPLES:
        return np.arange(samples)
    stretch = MOST_SAMPLES // STRETCHES
    begins = np.linspace(0, samples - stretch, STRETCHES).astype(int)
    return (begins[:, None] + np.arange(stretch)).ravel()


def _solved(
    rows: array, window_s: float, times_s: np.ndarray, watts: np.ndarray, gross_j: float, rng: np.random.Generator
) -> PhaseEnergy:
    from trainmeter.power.phases import levels, waves
    from trainmeter.power.phases.sensor import Search
    from trainmeter.power.phases.timeline import PHASES, Timeline

    fewest = min(int(((times_s >= from_s) & (times_s < from_s + window_s / 2)).sum()) for from_s in (0, window_s / 2))
    _require(fewest >= FEWEST_SAMPLES, f"{fewest} samples of power in a half of it, and it takes {FEWEST_SAMPLES}.")
    _require(len(rows) > 0, "the window has no steps.")
    timeline = Timeline(rows, window_s)
    too_long = f"its steps last {timeline.steps_s:.3f} s and it lasts {window_s:.3f} s: they are not its own."
    _require(timeline.steps_s <= window_s * (1 + LARGEST_MISFIT), too_long)
    search = Search(timeline, times_s, watts)
    name, method = _method(timeline, search.found, times_s)
    case = waves.Case(timeline, times_s, watts, gross_j, search, lru_cache(KEPT)(method))
    equations = case.equations(search.found)
    _require_evidence(levels.condition(equations), levels.explained(equations, watts))
    solution = levels.solve(equations, watts, gross_j, rng)
    _require_agreement(float(solution.sampled_j.sum()), gross_j)
    trial = waves.trial(case, rng)
    covered = f"on known waves, its intervals hold the truth in {trial.coverage():.0%} of cases only."
    _require(trial.coverage() >= LEAST_COVERED, covered)
    energy_j, half_width_j = timeline.split(solution.energy_j, trial.widened(solution.half_width_j))
    energy, half_width = dict(zip(PHASES, energy_j, strict=True)), dict(zip(PHASES, half_width_j, strict=True))
    _require_precision(energy, half_width, gross_j)
    return PhaseEnergy(energy, half_width, name, search.found.averaging_s, search.found.lag_s)


def _method(timeline: Timeline, sensor: Sensor, times_s: np.ndarray) -> tuple[str, Callable[[Sensor], Equations]]:
    """The method that fits the sampling, and its equations through a sensor."""
    import numpy as np

    from trainmeter.power.phases import levels

    lasting = timeline.columns_s >= LASTING * timeline.window_s
    if levels.resolution(levels.direct(timeline, sensor, times_s))[lasting].min() >= RESOLVED:
        return "direct", lambda sensor: levels.direct(timeline, sensor, times_s)
    spacing_s = float(np.median(np.diff(times_s)))
    width_s = STRETCH * max(sensor.averaging_s, spacing_s)
    few = f"the sensor averages over {sensor.averaging_s:.3g} s and is read every {spacing_s:.3g} s, which takes"
    few += f" {FEWEST_STRETCHES * width_s:.3g} s for a regression, and the window lasts {timeline.window_s:.3g} s."
    _require(timeline.window_s >= FEWEST_STRETCHES * width_s, few)
    return "regression", lambda sensor: levels.regression(timeline, sensor, times_s, width_s)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UnresolvedError(otherwise)


def _require_evidence(condition: float, explained: float) -> None:
    varies = f"the shares of the phases hardly vary, or only together: condition {condition:.0f}"
    _require(condition <= LARGEST_CONDITION, f"{varies}, and at most {LARGEST_CONDITION} is trusted.")
    tells = f"the phases explain {max(explained, 0):.0%} of how the power varies"
    _require(explained >= LEAST_EXPLAINED, f"{tells}, and {LEAST_EXPLAINED:.0%} is the least.")


def _require_agreement(sampled_j: float, gross_j: float) -> None:
    differs = f"the samples add up to {sampled_j:.4g} J and the window used {gross_j:.4g} J: they tell of other things."
    _require(abs(sampled_j - gross_j) <= LARGEST_DISAGREEMENT * gross_j, differs)


def _require_precision(energy: dict[str, float], half_width: dict[str, float], gross_j: float) -> None:
    for phase, joules in energy.items():
        _require(joules >= 0, f"{phase} comes out at {joules:.3g} J, and no phase gives energy back.")
        most_j = WIDEST * joules if joules >= SMALL * gross_j else WIDEST_OF_SMALL * gross_j
        known = f"{phase} is known to {half_width[phase]:.3g} J of {joules:.3g} J, and {most_j:.3g} J is the most."
        _require(half_width[phase] <= most_j, known)
