"""Bottlenecks of configurations, with the statistics of their repeats."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import TIME, positive_values
from epochmeter.report.statistics import Rounds, Samples, contrast, deviation, repeats_to_decide, student
from epochmeter.results.bottleneck import PARTS, STALLS, Bottleneck, find_bottleneck, of_section, part_seconds

Part = Samples
"""A part of the epoch as the sum over conditions of the mean over runs: condition -> seconds of each run."""


def epoch_bottlenecks(configurations: Sequence[Configuration]) -> dict[Configuration, Bottleneck]:
    """Return the bottleneck of each configuration for which it is known, from the parts of its runs' mean epochs."""
    results = {}
    for configuration in configurations:
        runs = [part_seconds(of_section(row.metrics, "steady")) for row in configuration.runs]
        parts = {part: {"runs": [run[part] for run in runs]} for part in PARTS if all(part in run for run in runs)}
        e2e_s = positive_values(configuration, TIME)
        if e2e_s and (bottleneck := decide(parts, statistics.fmean(e2e_s))):
            results[configuration] = bottleneck
    return results


def decide(parts: Mapping[str, Part], e2e_s: float, rounds: Mapping[str, Rounds] | None = None) -> Bottleneck | None:
    """Decide the bottleneck with the intervals that repeats allow; the difference of two parts is taken run by run."""

    def significant(part: str, other: str | None) -> bool:
        difference = _difference(parts, part, other)
        return contrast(dict.fromkeys(difference, 1.0), difference, rounds).is_positive

    means = {part: math.fsum(map(statistics.fmean, runs.values())) for part, runs in parts.items()}
    bottleneck = find_bottleneck(means, e2e_s, significant)
    if bottleneck is None or len(bottleneck.parts) == 1 or bottleneck.equal:
        return bottleneck
    largest, rival, *_ = bottleneck.parts
    return replace(bottleneck, repeats=repeats_needed(_difference(parts, largest, rival)))


def repeats_needed(difference: Part) -> int | None:
    """Return the repeats per condition that would probably make a difference significant; None if not known.

    The number is larger than that of the existing repeats, which do not show the difference.
    """
    if (count := min(map(len, difference.values()))) < 2:
        return None
    variance = math.fsum(deviation(seconds) ** 2 for seconds in difference.values())
    repeats = repeats_to_decide(abs(math.fsum(map(statistics.fmean, difference.values()))), variance, student)
    return repeats and max(repeats, count + 1)


def _difference(parts: Mapping[str, Part], one: str, other: str | None) -> Part:
    """Return the difference of two parts; for a data stall and another part, with all data stalls."""
    is_single = other is None or {one, other} <= {*STALLS}
    result: dict[str, list[float]] = {}
    for sign, part in ((1.0, one), (-1.0, other)):
        for name in STALLS if part in STALLS and not is_single else (part,):
            for condition, seconds in parts.get(name or "", {}).items():
                sums = result.get(condition, [0.0] * len(seconds))
                result[condition] = [a + sign * b for a, b in zip(sums, seconds, strict=True)]
    return result
