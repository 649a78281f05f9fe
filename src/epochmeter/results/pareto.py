"""The Pareto front of two quantities, such as time and energy."""

import math
from collections.abc import Iterable


def is_pareto_front(losses: Iterable[tuple[float, float]]) -> list[bool]:
    """Return for each pair of losses whether no other pair is at least as good in both and better in one."""
    pairs = list(losses)
    front: set[tuple[float, float]] = set()
    least = math.inf
    # Sorted, so that a pair can only be dominated by an earlier one: by the one with the least second loss.
    for pair in sorted(set(pairs)):
        if pair[1] < least:
            front.add(pair)
            least = pair[1]
    return [pair in front for pair in pairs]
