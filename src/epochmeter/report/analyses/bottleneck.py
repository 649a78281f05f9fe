"""Bottlenecks of configurations, with the statistics of their repeats."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from epochmeter.config.schema import SCRIPT
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import TIME, positive_values
from epochmeter.report.statistics import Rounds, Samples, contrast, deviation, repeats_to_decide, student
from epochmeter.results.bottleneck import PARTS, Bottleneck, find_bottleneck, part_seconds

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
    """Decide the bottleneck with the intervals that repeats allow; the difference of two parts is taken run by run."""

    def significant(part: str, other: str | None) -> bool:
        difference = _difference(parts[part], parts[other] if other else {})
        return contrast(dict.fromkeys(difference, 1.0), difference, rounds).is_positive

    means = {part: math.fsum(map(statistics.fmean, runs.values())) for part, runs in parts.items()}
    bottleneck = find_bottleneck(means, e2e_s, significant)
    if bottleneck is None or len(bottleneck.parts) == 1 or bottleneck.equal:
        return bottleneck
    return replace(bottleneck, repeats=repeats_needed(_difference(*(parts[part] for part in bottleneck.parts[:2]))))


def repeats_needed(part: Part) -> int | None:
    """Return the repeats per condition that would probably make a difference significant; None if not known.

    The number is larger than that of the existing repeats, which do not show the difference.
    """
    if (count := min(map(len, part.values()))) < 2:
        return None
    variance = math.fsum(deviation(seconds) ** 2 for seconds in part.values())
    repeats = repeats_to_decide(abs(math.fsum(map(statistics.fmean, part.values()))), variance, student)
    return repeats and max(repeats, count + 1)


def _difference(part: Part, other: Part) -> Part:
    result = {name: list(values) for name, values in part.items()}
    for name, values in other.items():
        result[name] = [a - b for a, b in zip(result.get(name, [0.0] * len(values)), values, strict=True)]
    return result
