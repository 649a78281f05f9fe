"""How long the machine has been suspended since it booted, which Linux's monotonic clock excludes."""

import time

LOOKS, NEAR_NS = 10, 1_000_000
"""Most looks at the two clocks, and how near two looks are that need not be repeated."""


def suspended_ns() -> int:
    """Return how long the machine has been suspended since it booted, in nanoseconds.

    A thread may be interrupted between its looks at the two clocks, for any time on a busy machine. This would be a
    suspension that begins or ends: the nearest of several looks count.
    """
    nearest_ns, suspension_ns = -1, 0
    for _ in range(LOOKS):
        before_ns = time.monotonic_ns()
        boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        took_ns = time.monotonic_ns() - before_ns
        if nearest_ns < 0 or took_ns < nearest_ns:
            nearest_ns, suspension_ns = took_ns, max(0, boottime_ns - before_ns - took_ns // 2)
        if nearest_ns < NEAR_NS:
            break
    return suspension_ns
