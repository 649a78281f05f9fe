"""Which key matters most: how much of the variance of time and energy between configurations each key explains.

The main effects of all keys are fitted to the logarithms of the configurations' means. A key's share is its increase of
the explained variance, averaged over all orders in which keys can be added. Keys that vary together therefore share the
variance that they explain together. See R. H. Lindeman, P. F. Merenda, R. Z. Gold, Introduction to Bivariate and
Multivariate Analysis, 1980. On a full grid, the share is eta squared. The part that as many values explain by chance is
subtracted (epsilon squared).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from epochmeter.report.runs.configuration import varied
from epochmeter.report.runs.costs import Cost
from epochmeter.report.statistics import ROUNDING, indicators

MAX_KEYS, MAX_VALUES = 8, 200
"""The time to compute the shares doubles with each key, and grows with the number of all values."""


@dataclass(frozen=True)
class KeyShare:
    """Shares of the variances of time and of energy (None if not comparable) that a key of `count` values explains."""

    key: str
    count: int
    time: float
    energy: float | None = None


def key_shares(costs: Sequence[Cost]) -> list[KeyShare]:
    """Return the share of each key that varies, the largest share of time first.

    Empty if fewer than two or too many vary, or if too few configurations are left to estimate the part by chance.
    """
    configurations = [cost.configuration for cost in costs]
    columns = {key: [configuration.value(key) for configuration in configurations] for key in varied(configurations)}
    if not 2 <= len(columns) <= MAX_KEYS or sum(len({*column}) for column in columns.values()) > MAX_VALUES:
        return []
    joules = [cost.energy_j for cost in costs if cost.energy_j]
    is_comparable = len(joules) == len(costs) and len({cost.covers for cost in costs}) == 1
    logs = np.log([[cost.time_s for cost in costs], *([joules] if is_comparable else [])]).T
    logs -= logs.mean(axis=0)
    totals = (logs**2).sum(axis=0)
    designs = [design - design.mean(axis=0) for design in map(indicators, columns.values())]
    every = np.hstack(designs)
    spare = len(logs) - 1 - int(np.linalg.matrix_rank(every.T @ every, hermitian=True))
    if spare < 1 or totals[0] < ROUNDING:
        return []
    explained, varies = _explained(designs, logs), totals >= ROUNDING
    by_chance = (totals - explained[frozenset(range(len(columns)))]) / spare
    shares = []
    for index, (key, column) in enumerate(columns.items()):
        gains = [
            (explained[others | {index}] - before) / math.comb(len(columns) - 1, len(others))
            for others, before in explained.items()
            if index not in others
        ]
        count = len({*column})
        gain = np.maximum(0.0, sum(gains) / len(columns) - by_chance * (count - 1))
        shares.append(KeyShare(key, count, *(gain[varies] / totals[varies]).tolist()))
    return sorted(shares, key=lambda share: -share.time)


def _explained(designs: Sequence[Any], logs: Any) -> dict[frozenset[int], Any]:
    """Return the sums of squares of each column of logarithms that each subset of the designs explains."""
    starts = np.cumsum([0, *(design.shape[1] for design in designs)])
    every = np.hstack(designs)
    products, projections = every.T @ every, every.T @ logs
    result: dict[frozenset[int], Any] = {frozenset[int](): 0.0}
    for count in range(1, len(designs) + 1):
        for subset in combinations(range(len(designs)), count):
            at = np.concatenate([np.arange(starts[index], starts[index + 1]) for index in subset])
            inverse = np.linalg.pinv(products[np.ix_(at, at)], rcond=1e-9, hermitian=True)
            result[frozenset(subset)] = (projections[at] * (inverse @ projections[at])).sum(axis=0)
    return result
