"""Bottlenecks with the statistics of repeats, and by difference: synthetic batches, warm cache, cold cache.

With T1, T3 and T2 the time per epoch on synthetic batches, with all data in the page cache and with none, the prep
stall is T3 - T1 and the fetch stall T2 - T3 (J. Mohan et al., PVLDB 14(5), 2021).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from epochmeter.config.schema import SCRIPT
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import TIME, positive_values
from epochmeter.report.runs.data_source import FROM_CACHE, FROM_STORAGE, SYNTHETIC, was_cold, was_warm
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import Estimate, Rounds, Samples, contrast, half_width
from epochmeter.results.bottleneck import (
    COMPUTE,
    FETCH_STALL,
    MIN_FRACTION,
    PARTS,
    PREP_STALL,
    Bottleneck,
    find_bottleneck,
    part_seconds,
)

MOST_REPEATS = 100
"""More are not worth counting."""
PREPROCESSED = {FROM_CACHE: 1.0, SYNTHETIC: -1.0}
FETCH = {FROM_STORAGE: 1.0, FROM_CACHE: -1.0}
STALLED = {FROM_STORAGE: 1.0, SYNTHETIC: -1.0}

Part = Samples
"""A part of the epoch as the sum over conditions of the mean over runs: condition -> seconds of each run."""


def epoch_bottlenecks(configurations: Sequence[Configuration]) -> dict[Configuration, Bottleneck]:
    """Return the bottleneck of each configuration for which it is known, from the parts of its runs' mean epochs."""
    results = {}
    for configuration in configurations:
        in_memory = (configuration.job.get("dataset") or {}).get("layout", "files") not in ("files", SCRIPT)
        runs = [part_seconds(row.metrics, in_memory) for row in configuration.runs]
        parts = {part: {"runs": [run[part] for run in runs]} for part in PARTS if all(part in run for run in runs)}
        e2e_s = positive_values(configuration, TIME)
        if e2e_s and (bottleneck := decide(parts, statistics.fmean(e2e_s))):
            results[configuration] = bottleneck
    return results


def decide(parts: Mapping[str, Part], e2e_s: float, rounds: Mapping[str, Rounds] | None = None) -> Bottleneck | None:
    """Decide the bottleneck with the 95 % confidence intervals that repeats allow.

    Args:
        parts: Part of the epoch -> its seconds, by condition and run. All parts of a condition have the same runs, so
            that the difference of two parts is taken run by run.
        e2e_s: Mean time per epoch.
        rounds: Condition -> the round of each run.

    Returns:
        The bottleneck, or None if a part that was not measured could be the largest.
    """

    def significant(part: str, other: str | None) -> bool:
        difference = _estimate(_difference(parts[part], parts[other] if other else {}), rounds)
        return difference.low is None or difference.low > 0

    means = {part: math.fsum(map(statistics.fmean, runs.values())) for part, runs in parts.items()}
    bottleneck = find_bottleneck(means, e2e_s, significant)
    if bottleneck is None or len(bottleneck.parts) == 1 or bottleneck.equal:
        return bottleneck
    return replace(bottleneck, repeats=repeats_needed(_difference(*(parts[part] for part in bottleneck.parts[:2]))))


def verdict(
    times: Samples,
    device: Mapping[str, Sequence[float]] | None = None,
    rounds: Mapping[str, Rounds] | None = None,
    *,
    in_memory: bool = False,
) -> Bottleneck:
    """Decide the bottleneck of a configuration that reads from storage.

    Args:
        times: Condition -> time per epoch of each run: T1, T3 and T2.
        device: Part -> its seconds in each run on synthetic batches, if those runs measured them: compute, copy and
            overhead. Otherwise all of T1 counts as compute.
        rounds: Condition -> the round of each run.
        in_memory: Decide for the same configuration with its dataset in memory instead.
    """
    differences = {PREP_STALL: PREPROCESSED} if in_memory else {PREP_STALL: PREPROCESSED, FETCH_STALL: FETCH}
    if any(_is_impossible(weights, times, rounds) for weights in differences.values()):
        return Bottleneck((), {}, why="disturbed")
    on_device = device or {COMPUTE: times[SYNTHETIC]}
    parts: dict[str, Part] = {part: {SYNTHETIC: seconds} for part, seconds in on_device.items()}
    for stall, weights in differences.items():
        parts[stall] = {name: [weight * seconds for seconds in times[name]] for name, weight in weights.items()}
    bottleneck = decide(parts, statistics.fmean(times[FROM_CACHE if in_memory else FROM_STORAGE]), rounds)
    return bottleneck or Bottleneck((), {}, why="unmeasured")


def check_cache_state(
    bottleneck: Bottleneck, rows: Mapping[str, Sequence[Run]], *, in_memory: bool = False
) -> Bottleneck:
    """Withdraw a verdict that is not valid because the page cache was not in the configured state.

    In that case the fetch stall is larger than measured: only a verdict that names the fetch stall remains valid. In
    memory there is none, but if warm runs were not warm, part of their prep stall is fetch stall.
    """
    if in_memory:
        is_valid = PREP_STALL not in bottleneck.parts or was_warm(rows)
    else:
        is_valid = bottleneck.parts in ((), (FETCH_STALL,)) or (was_warm(rows) and was_cold(rows))
    if is_valid:
        return bottleneck
    return Bottleneck((), {}, why="not cold" if was_warm(rows) else "not warm")


def repeats_needed(part: Part) -> int | None:
    """Return about how many repeats per condition would make a difference significant; None if more than 100."""
    distance, weights = abs(_estimate(part).value), dict.fromkeys(part, 1.0)
    if min(map(len, part.values())) < 2:
        return None
    for count in range(max(map(len, part.values())) + 1, MOST_REPEATS + 1):
        if half_width(weights, part, dict.fromkeys(weights, count)) < distance:
            return count
    return None


def _estimate(part: Part, rounds: Mapping[str, Rounds] | None = None) -> Estimate:
    return contrast(dict.fromkeys(part, 1.0), part, rounds)


def _difference(part: Part, other: Part) -> Part:
    """Return one part less another, run by run."""
    result = {name: list(values) for name, values in part.items()}
    for name, values in other.items():
        result[name] = [a - b for a, b in zip(result.get(name, [0.0] * len(values)), values, strict=True)]
    return result


def _is_impossible(weights: Mapping[str, float], times: Samples, rounds: Mapping[str, Rounds] | None) -> bool:
    """Whether a stall is significantly below zero, by more than `MIN_FRACTION` of the epoch."""
    stall = contrast(weights, times, rounds)
    neglected_s = MIN_FRACTION * statistics.fmean(times[FROM_STORAGE])
    return stall.value < -neglected_s and (stall.high is None or stall.high < 0)
