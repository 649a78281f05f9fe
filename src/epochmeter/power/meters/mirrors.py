"""Energy counters that are shown several times: each die of some AMD sockets shows the counter of the socket.

Added up, they would give the energy of the socket times the number of dies (codecarbon#1274). Two readings of one
counter differ by little at any time. Separate counters have different values, also if their power is equal.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Joules = Callable[[], float]

NEAR_J = 10.0  # largest difference of the first readings of names that are compared further
MIN_VALUES, PERIOD_S, LIMIT_S = 10, 0.002, 1.0
"""Number of different values at which names are compared, interval of the readings, and time limit, in seconds."""
MAX_RENEWALS = 2  # largest difference of two readings of one counter, in its renewals
SLACK, SLACK_J = 0.005, 1.0
"""The same during a run, as a fraction of the increase and in joules."""


def group_mirrors(counters: Mapping[str, Joules], renewal_s: float) -> list[list[str]]:
    """Group the names that show one counter; a counter that is shown once is a group of one name.

    It takes some milliseconds if readings are nearly equal, and no time otherwise. A counter that does not advance is
    shown once.
    """
    begun_s, elapsed_s = time.monotonic(), 0.0
    readings = [_read(counters)]
    pairs = [pair for pair in combinations(counters, 2) if _difference_j(readings[0], *pair) < NEAR_J]
    near = {name for pair in pairs for name in pair}
    while elapsed_s < LIMIT_S and any(len({joules[name] for joules in readings}) < MIN_VALUES for name in near):
        time.sleep(PERIOD_S)
        readings.append(_read(counters))
        elapsed_s = time.monotonic() - begun_s

    def is_one(first: str, name: str) -> bool:
        if (first, name) not in pairs:
            return False
        power_w = (readings[-1][first] - readings[0][first]) / elapsed_s
        difference_j = statistics.median(_difference_j(joules, first, name) for joules in readings)
        return difference_j < MAX_RENEWALS * renewal_s * power_w

    groups: list[list[str]] = []
    for name in counters:
        matching = next((group for group in groups if is_one(group[0], name)), None)
        if matching is None:
            groups.append([name])
        else:
            matching.append(name)
    return groups


def read_as_one(counters: Sequence[Joules]) -> Joules:
    """Return the reader of a counter that is shown several times.

    It raises ValueError if the readings differ: then they are separate counters, of which only one was counted. The
    first one is read before and after the others, as a thread may be interrupted meanwhile.
    """
    first, *others = counters
    begun_j = first()

    def read() -> float:
        joules, shown_j, after_j = first(), [other() for other in others], first()
        tolerated_j = SLACK * abs(joules - begun_j) + SLACK_J
        if any(not joules - tolerated_j <= other_j <= after_j + tolerated_j for other_j in shown_j):
            raise ValueError("it was counted once for several zones, but they show different counters")
        return joules

    return read


def _read(counters: Mapping[str, Joules]) -> dict[str, float]:
    return {name: read() for name, read in counters.items()}


def _difference_j(joules: Mapping[str, float], first: str, name: str) -> float:
    return abs(joules[first] - joules[name])
