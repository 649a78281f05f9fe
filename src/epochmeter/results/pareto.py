"""The Pareto front of runs in several objectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

MAXIMIZED = ("accuracy", "samples_per_s", "bytes_per_s", "iops", "utilization")
"""Endings of the names of metrics to maximize; all others are minimized."""


def to_losses(metrics: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...] | None:
    """Return the values of metrics as losses to minimize; None if any is missing or not finite."""
    values = [float(metrics.get(name, math.nan)) for name in names]
    if not all(map(math.isfinite, values)):
        return None
    return tuple(-value if name.endswith(MAXIMIZED) else value for name, value in zip(names, values, strict=True))


def is_pareto_front(losses: Iterable[tuple[float, ...]]) -> list[bool]:
    """Return for each tuple of losses whether no other one is at least as good in all and better in one."""
    all_losses = list(losses)
    front: list[tuple[float, ...]] = []
    # Sorted, so that a tuple can only be dominated by an earlier one; with two losses only by the last on the front.
    for candidate in sorted(set(all_losses)):
        others = front if len(candidate) > 2 else front[-1:]
        if not any(all(a <= b for a, b in zip(other, candidate, strict=True)) for other in others):
            front.append(candidate)
    on_front = set(front)
    return [candidate in on_front for candidate in all_losses]
