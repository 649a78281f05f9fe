"""What the ranks of a run measured in one window, put together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

SUMMED = ("samples", "skipped_samples", "loader_read_s", "loader_preprocess_s", "loader_decode_s", "clock_waits")
"""What ranks add up to; of other times the mean over ranks stands, and beside it the largest."""
ALIKE = ("steps", "learning_rate")
"""What all ranks have in common."""
NAMED = 5


def merged(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One window of all ranks: its `parts`, loss and accuracy over all samples, and `rank_max` where there are several.

    It opens with the first of them and closes with the last, by the clock that those on the first node share, and was
    paused where any of them was.
    """
    here = [rank for rank in ranks if not rank.get("node")]
    first = ranks[0]["parts"]
    parts = {name: _put_together(name, [rank["parts"][name] for rank in ranks]) for name in first}
    weight = math.fsum(rank["weight"] for rank in ranks)
    rights = [rank["right"] for rank in ranks]
    times = [name for name in first if name.endswith("_s") and name not in SUMMED]
    largest = {name: max(rank["parts"][name] for rank in ranks) for name in times}
    return {
        "opened_ns": min(rank["opened_ns"] for rank in here),
        "closed_ns": max(rank["closed_ns"] for rank in here),
        "parts": parts,
        "loss": math.fsum(rank["loss_sum"] for rank in ranks) / weight,
        "accuracy": None if None in rights else sum(rights) / weight,
        "bad": [name for rank in ranks for name in rank["bad"]][:NAMED],
        "paused": any(rank["paused"] for rank in ranks),
        "rank_max": largest if len(ranks) > 1 else {},
    }


def _put_together(name: str, values: Sequence[float]) -> float:
    if name in SUMMED:
        return sum(values)
    if name.endswith("peak_bytes"):
        return max(values)
    alone = len(values) == 1 or name in ALIKE
    return values[0] if alone else statistics.fmean(values)
