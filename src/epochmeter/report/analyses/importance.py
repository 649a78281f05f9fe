"""Which key matters most: how much of the variance of time and energy between configurations each key explains.

The share of a key is that of the variance between its values, of the logarithms of the configurations' means (eta
squared). The part that as many values explain by chance is subtracted (epsilon squared); it is estimated from the
residuals of the main effects of all keys. Keys that vary together each have the share that they explain together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epochmeter.report.runs.configuration import varied
from epochmeter.report.runs.costs import Cost
from epochmeter.report.statistics import ROUNDING, indicators

MAX_VALUES = 200
"""The time to compute the shares grows with the number of all values."""


@dataclass(frozen=True)
class KeyShare:
    """Shares of the variances of time and of energy (None if not comparable) that a key of `count` values explains."""

    key: str
    count: int
    time: float
    energy: float | None = None


def key_shares(costs: Sequence[Cost]) -> list[KeyShare]:
    """Return the share of each key that varies, the largest share of time first.

    Empty if fewer than two or too many values vary, or if too few configurations are left to estimate the part by
    chance.
    """
    configurations = [cost.configuration for cost in costs]
    columns = {key: [configuration.value(key) for configuration in configurations] for key in varied(configurations)}
    if len(columns) < 2 or sum(len({*column}) for column in columns.values()) > MAX_VALUES:
        return []
    joules = [cost.energy_j for cost in costs if cost.energy_j]
    is_comparable = len(joules) == len(costs) and len({cost.covers for cost in costs}) == 1
    logs = np.log([[cost.time_s for cost in costs], *([joules] if is_comparable else [])]).T
    logs -= logs.mean(axis=0)
    totals = (logs**2).sum(axis=0)
    designs = {key: indicators(column) for key, column in columns.items()}
    every = np.hstack([*designs.values()])
    effects, _, rank, _ = np.linalg.lstsq(every, logs, rcond=1e-9)
    spare = len(logs) - int(rank)
    if spare < 1 or totals[0] < ROUNDING:
        return []
    by_chance, varies = ((logs - every @ effects) ** 2).sum(axis=0) / spare, totals >= ROUNDING
    shares = []
    for key, design in designs.items():
        count = design.shape[1]
        explained = ((design.T @ logs) ** 2 / design.sum(axis=0)[:, None]).sum(axis=0)
        own = np.maximum(0.0, explained - by_chance * (count - 1))
        shares.append(KeyShare(key, count, *(own[varies] / totals[varies]).tolist()))
    return sorted(shares, key=lambda share: -share.time)
