"""The bottleneck of each configuration, from the parts of its runs' mean epochs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from epochmeter.report.analyses.bottleneck import decide
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.costs import TIME, positive_values
from epochmeter.results.bottleneck import PARTS, Bottleneck, part_seconds


@dataclass(frozen=True)
class EpochBreakdown:
    """A configuration and its bottleneck."""

    configuration: Configuration
    bottleneck: Bottleneck


def epoch_breakdowns(configurations: Sequence[Configuration]) -> list[EpochBreakdown]:
    """Return the bottleneck of each configuration for which it is known; repeats give the intervals."""
    bottlenecks = [(configuration, _bottleneck(configuration)) for configuration in configurations]
    return [EpochBreakdown(configuration, bottleneck) for configuration, bottleneck in bottlenecks if bottleneck]


def _bottleneck(configuration: Configuration) -> Bottleneck | None:
    e2e_s = positive_values(configuration, TIME)
    if not e2e_s:
        return None
    in_memory = (configuration.job.get("dataset") or {}).get("layout", "files") != "files"
    runs = [part_seconds(row.metrics, in_memory) for row in configuration.runs]
    parts = {part: {"runs": [run[part] for run in runs]} for part in PARTS if all(part in run for run in runs)}
    return decide(parts, statistics.fmean(e2e_s))
