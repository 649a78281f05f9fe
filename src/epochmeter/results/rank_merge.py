"""The measurements of all ranks in one window, merged."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from epochmeter.results.metrics import EPOCH
from epochmeter.shared.protocol import RankWindow

SUM_KEYS = {name for name, metric in EPOCH.items() if metric.ranks == "sum"}
MAX_BAD_SAMPLES = 5


class MergedWindow(NamedTuple):
    """One window of all ranks.

    Attributes:
        opened_ns: When the first rank of the first node opened it, by that node's monotonic clock.
        parts: Metrics by their names without prefix; those that all ranks have.
        bad: The first samples that could not be read.
        rank_max: The largest of each time over ranks; empty for a single rank.
    """

    opened_ns: int
    closed_ns: int
    parts: dict[str, float]
    loss: float | None
    accuracy: float | None
    bad: list[str]
    paused: bool
    rank_max: dict[str, float]


def merge_ranks(ranks: Sequence[RankWindow]) -> MergedWindow:
    """Merge the measurements of all ranks in one window."""
    first_node = [rank for rank in ranks if not rank.node]
    names = [name for name in ranks[0].parts if all(name in rank.parts for rank in ranks)]
    values = {name: [rank.parts[name] for rank in ranks] for name in names}
    weight = math.fsum(rank.weight for rank in ranks)
    correct = [rank.correct for rank in ranks if rank.correct is not None]
    times = [name for name in names if name.endswith("_s") and _rule(name) == "mean"]
    return MergedWindow(
        opened_ns=min(rank.opened_ns for rank in first_node),
        closed_ns=max(rank.closed_ns for rank in first_node),
        parts={name: _merge(name, of_ranks) for name, of_ranks in values.items()},
        loss=math.fsum(rank.loss_sum for rank in ranks) / weight if weight else None,
        accuracy=sum(correct) / weight if weight and len(correct) == len(ranks) else None,
        bad=[name for rank in ranks for name in rank.bad][:MAX_BAD_SAMPLES],
        paused=any(rank.paused for rank in ranks),
        rank_max={name: max(values[name]) for name in times} if len(ranks) > 1 else {},
    )


def _merge(name: str, values: Sequence[float]) -> float:
    match _rule(name):
        case "sum":
            return sum(values)
        case "maximum":
            return max(values)
        case "equal":
            return values[0]
    return values[0] if len(values) == 1 else statistics.fmean(values)


def _rule(name: str) -> str:
    """Return how the values of ranks are merged; those of an unknown metric by their mean."""
    return (EPOCH[name].ranks if name in EPOCH else "") or "mean"
