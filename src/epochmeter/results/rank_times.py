"""What each rank of an epoch did itself, and how long it waited for the others, from the rows of `ranks.bin`.

No clock is compared with that of another rank. In each step, the rank that comes last to a collective only waits for
the exchange of data. So the smallest wait of all ranks is the time of the exchange, at most, and what a rank waits
longer it waits for slower ranks.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epochmeter.shared.protocol import RankWindow
from epochmeter.shared.record import RANK_INTERVALS

GAP, STALL, BUSY, COMMUNICATION = range(len(RANK_INTERVALS))
OF_RANKS = ("e2e_s", "own_s", "data_stall_s", "compute_s", "communication_s", "rank_wait_s")
"""Times of each rank in a line of `epochs.jsonl`."""


def rows_of_ranks(rows: "array[float]", ranks: int, steps: int) -> np.ndarray | None:
    """Return the rows of an epoch with the axes rank, step, interval; None if the file does not have all of them."""
    values = np.asarray(rows, dtype=np.float64)
    return values.reshape(ranks, steps, len(RANK_INTERVALS)) if len(values) == ranks * steps * 4 > 0 else None


def own_times(rows: np.ndarray) -> np.ndarray:
    """Return the time of each rank and step without its exposed communication."""
    own: np.ndarray = np.maximum(0.0, rows[..., GAP] + rows[..., BUSY] - rows[..., COMMUNICATION])
    return own


def with_waits(ranks: Sequence[RankWindow], rows: np.ndarray | None) -> list[RankWindow]:
    """Return the measurements of ranks with their own times, and with their waits for slower ranks if `rows` has them.

    Both are absent for ranks whose exposed communication is not known.
    """
    waits: Sequence[float | None] = [None] * len(ranks)
    if rows is not None and len(ranks) > 1:
        waited = rows[..., COMMUNICATION]
        waits = (waited - waited.min(axis=0)).sum(axis=1).tolist()
    return [_with_wait(rank, wait) for rank, wait in zip(ranks, waits, strict=True)]


def _with_wait(rank: RankWindow, wait_s: float | None) -> RankWindow:
    if "communication_s" not in rank.parts:
        return rank
    parts = {**rank.parts, "own_s": max(0.0, rank.parts["e2e_s"] - rank.parts["communication_s"])}
    return rank._replace(parts=parts if wait_s is None else {**parts, "rank_wait_s": wait_s})


def ranks_document(ranks: Sequence[RankWindow]) -> list[Mapping[str, Any]]:
    """Return what the line of an epoch has on each rank."""
    return [
        {"rank": rank.rank, **{name: rank.parts[name] for name in OF_RANKS if name in rank.parts}} for rank in ranks
    ]
