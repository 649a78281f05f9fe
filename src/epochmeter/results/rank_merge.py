"""The measurements of all ranks in one window, merged."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from epochmeter.shared.protocol import RankWindow

SUM_KEYS = (
    *("samples", "images", "tokens", "skipped_samples"),
    *("loader_read_s", "loader_preprocess_s", "loader_decode_s", "clock_waits"),
)
"""Parts that are summed over ranks; times are means over ranks, with the largest in `rank_max`."""
EQUAL_KEYS = ("steps", "learning_rate")
"""Parts that are the same on all ranks."""
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
    times = [name for name in names if name.endswith("_s") and name not in SUM_KEYS]
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
    if name in SUM_KEYS:
        return sum(values)
    if name.endswith("peak_bytes"):
        return max(values)
    return values[0] if len(values) == 1 or name in EQUAL_KEYS else statistics.fmean(values)
