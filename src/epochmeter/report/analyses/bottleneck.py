"""Bottlenecks of configurations, with the statistics of their repeats."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import TIME, positive_values
from epochmeter.report.statistics import Rounds, contrast, repeats_to_decide
from epochmeter.results.bottleneck import (
    PARTS,
    Bottleneck,
    Seconds,
    find_bottleneck,
    is_large,
    of_section,
    part_difference,
    part_seconds,
    read_bottleneck,
)
from epochmeter.results.intervals import deviation, student


def epoch_bottlenecks(configurations: Sequence[Configuration]) -> dict[Configuration, Bottleneck]:
    """Return the bottleneck of each configuration for which it is known, from the parts of its runs' mean epochs.

    That of a configuration which ran once is recorded in its run, by the spread of its epochs.
    """
    results = {}
    for configuration in configurations:
        first, *repeats = configuration.runs
        if not repeats and (recorded := read_bottleneck(first.bottleneck, first.metrics)):
            results[configuration] = recorded
            continue
        runs = [part_seconds(of_section(row.metrics, "steady")) for row in configuration.runs]
        parts = {part: {"runs": [run[part] for run in runs]} for part in PARTS if all(part in run for run in runs)}
        e2e_s = positive_values(configuration, TIME)
        if e2e_s and (bottleneck := decide(parts, statistics.fmean(e2e_s))):
            results[configuration] = bottleneck
    return results


def decide(parts: Mapping[str, Seconds], e2e_s: float, rounds: Mapping[str, Rounds] | None = None) -> Bottleneck | None:
    """Decide the bottleneck with the intervals that repeats allow; the difference of two parts is taken run by run.

    Student's interval of two runs is wide: a large difference counts without it, as that of epochs.
    """

    def significant(part: str, other: str) -> bool:
        difference = part_difference(parts, part, other)
        return is_large(difference, e2e_s) or contrast(dict.fromkeys(difference, 1.0), difference, rounds).is_positive

    means = {part: math.fsum(map(statistics.fmean, runs.values())) for part, runs in parts.items()}
    bottleneck = find_bottleneck(means, e2e_s, significant)
    if bottleneck is None or len(bottleneck.parts) == 1 or bottleneck.equal:
        return bottleneck
    largest, rival, *_ = bottleneck.parts
    return replace(bottleneck, repeats=repeats_needed(part_difference(parts, largest, rival)))


def repeats_needed(difference: Seconds) -> int | None:
    """Return the repeats per condition that would probably make a difference significant; None if not known.

    The number is larger than that of the existing repeats, which do not show the difference.
    """
    if (count := min(map(len, difference.values()))) < 2:
        return None
    variance = math.fsum(deviation(seconds) ** 2 for seconds in difference.values())
    repeats = repeats_to_decide(abs(math.fsum(map(statistics.fmean, difference.values()))), variance, student)
    return repeats and max(repeats, count + 1)
