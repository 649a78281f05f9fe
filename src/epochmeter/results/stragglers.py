"""Stragglers: the rank for which the others wait, how much the steps lose by it, and why it is slow.

A rank is a straggler if its own time per step, without waits for other ranks, is significantly longer than that of each
other rank, and longer than that of the next slowest by at least `MIN_EXCESS` of the step. So ranks that are slow by
turns have none.

Successive steps are alike, so that they are no independent measurements. The test compares the means of blocks of
steps, in two ways that both have to hold: of 16 blocks, with a standard error that the correlation of neighboring
blocks widens (with Kendall's correction of its bias in short series), and of 8 blocks as independent ones (R.
Ibragimov, U. Mueller, t-statistic based correlation and heterogeneity robust inference, 2010).

On a busy machine, a few steps take many times as long, and hide a rank that is slower in all others. So the steps are
tested as they are, and with outliers limited, each with half of the level. Any rank may be the slowest of equal ones by
chance. Of two, either may, so each comparison has half of the level again. The slowest of more equal ranks is ahead of
the next by less, so that their number needs no further correction. At most one in twenty runs of equal ranks has a
straggler: `benchmarks/decisions/stragglers` counts them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from epochmeter.results.bottleneck import COMPUTE, DATA_STALL, OVERHEAD
from epochmeter.results.documents import ExcessFields, StragglerFields
from epochmeter.results.intervals import student
from epochmeter.results.quantities import plus_minus, quantity
from epochmeter.results.rank_times import BUSY, COMMUNICATION, GAP, STALL, own_times
from epochmeter.results.run_info import RankPlace
from epochmeter.shared.units import percent

LEVEL = 0.05
"""Probability to find a straggler among equal ranks, at most."""
BLOCKS, INDEPENDENT_BLOCKS = 16, 8
OUTLIER, NORMAL_MAD = 3.0, 1.4826
"""Distance from the median, in standard deviations, to which outliers are limited; the deviation that the median
distance of normal values stands for."""
MIN_STEPS = 40
MIN_EXCESS = 0.05
"""Smallest excess that matters, as a fraction of the step."""
MIN_PART = 0.25
"""Smallest part of the excess of all parts that is a cause."""
MAX_CORRELATION = 0.9
MIN_LOWER_CLOCK = 0.02
MIN_EXPLAINED = 0.5
"""Smallest part of the excess of compute that lower clocks explain, if they are the cause."""
NO_STRAGGLER = "no rank is significantly slower than the others"
TOO_FEW_STEPS = f"fewer than {MIN_STEPS} steps of all ranks were measured after the warm-up"


class Effect(NamedTuple):
    """A mean over steps in seconds, with its 95 % confidence interval (plus or minus)."""

    mean_s: float
    half_s: float
    is_significant: bool = False


class Straggler(NamedTuple):
    """The rank for which the others wait.

    Attributes:
        rank: Its place among the ranks.
        excess: By how much its own time per step is longer than that of the next slowest rank.
        saving_s: By how much the steps would be shorter without what it is slower in each than all others.
        steps: Number of steps.
        slowest_fraction: Fraction of the steps in which it was the slowest rank.
        causes: The parts of its own time that are longer than those of the other ranks, the largest first.
        parts: By how much they are longer than the median of the other ranks.
        has_limits: Whether outliers are limited in all of its times, since they hide the difference otherwise.
    """

    rank: int
    excess: Effect
    saving_s: float
    steps: int
    slowest_fraction: float
    causes: tuple[str, ...]
    parts: Mapping[str, Effect]
    has_limits: bool = False


def find_straggler(rows: np.ndarray) -> Straggler | None:
    """Return the straggler of steps with the axes rank, step and interval; None if no rank is significantly slower."""
    ranks, steps, _ = rows.shape
    if ranks < 2 or steps < MIN_STEPS:
        return None
    own = own_times(rows)
    step_s = float((rows[..., GAP] + rows[..., BUSY]).mean())
    for has_limits, center in ((False, np.mean), (True, np.median)):
        rank = int(center(own, axis=1).argmax())
        longer = _longer(own, rank)
        slowest_fraction = float((longer.min(axis=0) > 0).mean())  # a count, which a limit would only falsify
        longer = without_outliers(longer) if has_limits else longer
        if excess := _excess(longer, step_s):
            saving_s = float(np.maximum(0.0, longer.min(axis=0)).mean())
            parts = _longer_parts(rows, rank, has_limits=has_limits)
            return Straggler(rank, excess, saving_s, steps, slowest_fraction, _causes(parts), parts, has_limits)
    return None


def _longer(own: np.ndarray, rank: int) -> np.ndarray:
    """Return by how much the own time of a rank is longer than that of each other rank, in each step."""
    longer: np.ndarray = own[rank] - np.delete(own, rank, axis=0)
    return longer


def _excess(longer: np.ndarray, step_s: float) -> Effect | None:
    """Return by how much a rank is slower than the next slowest, from what it is slower than each; None if it is not.

    The axes are other rank and step.
    """
    effects = effects_of(longer, LEVEL / 4)
    excess = min(effects)
    is_slower = all(effect.is_significant for effect in effects) and excess.mean_s >= MIN_EXCESS * step_s
    return excess if is_slower else None


def without_outliers(values: np.ndarray) -> np.ndarray:
    """Return rows of values, none of which is far from the median of its row."""
    middle = np.median(values, axis=1, keepdims=True)
    far = OUTLIER * NORMAL_MAD * np.median(np.abs(values - middle), axis=1, keepdims=True)
    limited: np.ndarray = np.clip(values, middle - far, middle + far)
    return limited


def _longer_parts(rows: np.ndarray, rank: int, *, has_limits: bool) -> dict[str, Effect]:
    """Return by how much the parts of a rank's own time are longer than the median of the other ranks."""
    waited = rows[..., COMMUNICATION]
    parts = {
        DATA_STALL: rows[..., STALL],
        COMPUTE: _compute(rows),
        OVERHEAD: np.maximum(0.0, rows[..., GAP] - rows[..., STALL] - np.maximum(0.0, waited - rows[..., BUSY])),
    }
    longer = {name: times[rank] - np.median(np.delete(times, rank, axis=0), axis=0) for name, times in parts.items()}
    names, values = [*longer], np.stack([*longer.values()])
    values = without_outliers(values) if has_limits else values
    # One by one, as the correlation of successive steps differs between parts.
    return {name: effects_of(row[None], LEVEL / len(names))[0] for name, row in zip(names, values, strict=True)}


def _causes(parts: Mapping[str, Effect]) -> tuple[str, ...]:
    """Return the parts that make a rank slower, the largest first."""
    longer_s = math.fsum(max(0.0, part.mean_s) for part in parts.values())
    causes = [name for name, part in parts.items() if part.is_significant and part.mean_s >= MIN_PART * longer_s]
    return tuple(sorted(causes, key=lambda name: -parts[name].mean_s))


def _compute(rows: np.ndarray) -> np.ndarray:
    """Return the compute of each rank and step, without its exposed communication."""
    compute: np.ndarray = np.maximum(0.0, rows[..., BUSY] - rows[..., COMMUNICATION])
    return compute


def effects_of(values: np.ndarray, level: float) -> list[Effect]:
    """Return the mean of each row of values of steps, and whether it is significantly above zero (one-sided).

    That holds by both of the tests; the interval is the wider one.
    """
    means = values.mean(axis=1)
    halves, bounds = np.zeros(len(values)), np.zeros(len(values))
    for count, is_correlated in ((BLOCKS, True), (INDEPENDENT_BLOCKS, False)):
        errors, dof = standard_errors(values, count, is_correlated=is_correlated)
        halves = np.maximum(halves, student(dof) * errors)
        bounds = np.maximum(bounds, student(dof, 1 - level) * errors)
    columns = zip(means.tolist(), halves.tolist(), bounds.tolist(), strict=True)
    return [Effect(mean, half, mean > bound) for mean, half, bound in columns]


def standard_errors(values: np.ndarray, count: int, *, is_correlated: bool) -> tuple[np.ndarray, float]:
    """Return the standard error of the mean of each row, from the means of blocks, and the degrees of freedom."""
    size = max(1, values.shape[1] // count)
    count = values.shape[1] // size
    blocks = values[:, values.shape[1] - count * size :].reshape(-1, count, size).mean(axis=2)
    around = blocks - blocks.mean(axis=1)[:, None]
    widening = widening_of(around) if is_correlated else 1.0
    errors: np.ndarray = np.sqrt((around**2).sum(axis=1) / (count - 1) / count * widening)
    return errors, max(2.0, (count - 1) / widening)


def widening_of(around: np.ndarray) -> float:
    """Return by what factor the correlation of successive values, around their mean, widens the variance of the mean.

    The rows are autoregressive series of first order with the same correlation.
    """
    squares = float((around**2).sum())
    correlation = float((around[:, 1:] * around[:, :-1]).sum()) / squares if squares else 0.0
    correlation = min(MAX_CORRELATION, max(0.0, correlation + (1 + 3 * correlation) / int(around.shape[1])))
    return (1 + correlation) / (1 - correlation)


def lower_clock(clocks_hz: Sequence[float | None], straggler: Straggler, rows: np.ndarray) -> float | None:
    """Return by what fraction the clock of a straggler's device is lower than the median of the others, if that is why.

    None if it is not: its compute is no cause, the clocks are alike, or they explain less than half of its excess.
    """
    own_hz = clocks_hz[straggler.rank]
    others_hz = [hz for rank, hz in enumerate(clocks_hz) if rank != straggler.rank and hz]
    if COMPUTE not in straggler.causes or not own_hz or not others_hz:
        return None
    median_hz = float(np.median(others_hz))
    compute = _compute(rows)
    compute_s = (without_outliers(compute) if straggler.has_limits else compute).mean(axis=1)
    explained_s = float(np.median(np.delete(compute_s, straggler.rank))) * (median_hz / own_hz - 1)
    is_cause = own_hz < (1 - MIN_LOWER_CLOCK) * median_hz
    is_cause &= explained_s >= MIN_EXPLAINED * straggler.parts[COMPUTE].mean_s
    return 1 - own_hz / median_hz if is_cause else None


def straggler_metrics(straggler: Straggler) -> dict[str, float]:
    """Return the metrics of a straggler by name."""
    parts = {f"straggler/{name}_s": part.mean_s for name, part in straggler.parts.items() if name in straggler.causes}
    return {
        "straggler/excess_s": straggler.excess.mean_s,
        "straggler/excess_uncertainty_s": straggler.excess.half_s,
        "straggler/saving_s": straggler.saving_s,
        "straggler/slowest_fraction": straggler.slowest_fraction,
        "straggler/steps": straggler.steps,
        **parts,
    }


def straggler_document(straggler: Straggler, ranks: int, place: RankPlace) -> StragglerFields:
    """Return a straggler for the record; `place` has its number, and where it is if that is known."""
    parts: dict[str, ExcessFields] = {
        name: {"excess_s": part.mean_s, "uncertainty_s": part.half_s} for name, part in straggler.parts.items()
    }
    fields: StragglerFields = {
        "rank": place["rank"],
        "ranks": ranks,
        "excess_s": straggler.excess.mean_s,
        "uncertainty_s": straggler.excess.half_s,
        "saving_s": straggler.saving_s,
        "steps": straggler.steps,
        "slowest_fraction": straggler.slowest_fraction,
        "causes": [*straggler.causes],
        "parts": parts,
    }
    if "host" in place and "device" in place:
        fields |= {"host": place["host"], "device": place["device"]}
    return fields


def straggler_sentence(straggler: StragglerFields | None) -> str:
    """Return a recorded straggler in words; empty without one."""
    if not straggler or "excess_s" not in straggler:
        return ""
    where = ", ".join(filter(None, [straggler.get("host"), straggler.get("device")]))
    rank = f"rank {straggler['rank']}" + (f" ({where})" if where else "")
    excess = plus_minus(straggler["excess_s"], straggler["uncertainty_s"], "s")
    evidence = f"slowest in {percent(straggler['slowest_fraction'])} of {straggler['steps']:,} steps, by {excess}"
    return f"Straggler: {rank} is the {evidence}. Cause: {_causes_in_words(straggler)}."


def _causes_in_words(straggler: StragglerFields) -> str:
    parts, texts = straggler.get("parts", {}), []
    for cause in straggler.get("causes", []):
        longer = f"{quantity(parts[cause]['excess_s'], 's')} longer" if cause in parts else ""
        clock = straggler.get("lower_clock") if cause == COMPUTE else None
        if clock is not None:
            heat = f", at {straggler['temperature_c']:.0f} °C" if "temperature_c" in straggler else ""
            longer += f", since its clock is {percent(clock)} lower{heat}"
        texts.append(f"its {cause.replace('_', ' ')} ({longer})" if longer else f"its {cause.replace('_', ' ')}")
    return " and ".join(texts) or "not known, as no part of its steps stands out"
