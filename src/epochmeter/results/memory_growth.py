"""Growth of memory from epoch to epoch: whether a training leaks, with the 95 % interval of the leak."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from epochmeter.results.intervals import student
from epochmeter.results.quantities import plus_minus

GROWTHS = {
    "the processes": ("process_memory_bytes", "memory_growth_bytes", "memory_growth_uncertainty_bytes"),
    "the GPU": ("gpu_memory_peak_bytes", "gpu_memory_growth_bytes", "gpu_memory_growth_uncertainty_bytes"),
}
"""What has the memory -> its metric in `epoch/`, its growth in `total/`, and the interval of that."""
MIN_EPOCHS = 6
"""Fewest epochs, so that each half has three."""
MIN_GROWTH_BYTES = 2**17
"""Smallest growth per epoch that matters: 128 kB, or 1 GB in 8,000 epochs."""
HALF_LEVEL = 0.95
"""Probability that a half without growth has no significant one."""
MIN_SLOPE, MAX_FALL = 0.5, 0.5
"""Smallest slope of the second half relative to the first, and largest fall relative to the whole growth."""


class Growth(NamedTuple):
    """Growth per epoch, and its 95 % interval (plus or minus), in bytes."""

    bytes: float
    half_bytes: float


def memory_growth(points: Sequence[tuple[int, float]]) -> Growth | None:
    """Return the growth of memory over epochs, given by their numbers; None if it is not significant, or stops.

    A leak goes on: the slopes of both halves (one-sided 95 %) and that of the whole series (97.5 %) are significantly
    above zero, by Student's t of a least-squares line, the second half grows at least half as fast as the first, and no
    fall takes back half of the growth. So caches that fill, and memory that is freed now and then, are none. As all
    slopes have to be significant, less than 5 % of such memory has a growth.
    """
    if len(points) < MIN_EPOCHS:
        return None
    half, whole = len(points) // 2, slope(points)
    if not whole.bytes > whole.half_bytes:
        return None
    first, last = slope(points[:half]), slope(points[-half:])
    one_sided = student(half - 2, HALF_LEVEL) / student(half - 2)
    if not all(part.bytes > one_sided * part.half_bytes for part in (first, last)):
        return None
    values = [value for _, value in points]
    highest = [*itertools.accumulate(values, max)]
    fall = max(before - value for before, value in zip(highest, values, strict=True))
    goes_on = last.bytes >= MIN_SLOPE * first.bytes and fall < MAX_FALL * (highest[-1] - values[0])
    return whole if goes_on and whole.bytes >= MIN_GROWTH_BYTES else None


def growth_metrics(epochs: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return the significant growths of a run's memory by metric name, from its epochs after warm-up.

    `epochs` has the number of each epoch, in order, and its metrics; numbers may be missing, as of suspended epochs.
    """
    metrics: dict[str, float] = {}
    for memory, growth, uncertainty in GROWTHS.values():
        named = [(number, epoch.get(f"epoch/{memory}")) for number, epoch in epochs.items()]
        if found := memory_growth([(number, value) for number, value in named if value is not None]):
            metrics |= {f"total/{growth}": found.bytes, f"total/{uncertainty}": found.half_bytes}
    return metrics


def growth_notes(metrics: Mapping[str, float]) -> list[str]:
    """Return notes on the growths among the metrics of a run."""
    notes = []
    for what, (_, growth, uncertainty) in GROWTHS.items():
        if f"total/{growth}" in metrics:
            text = plus_minus(metrics[f"total/{growth}"], metrics[f"total/{uncertainty}"], "B")
            notes.append(f"warning: the memory of {what} grows by {text} per epoch")
    return notes


def slope(points: Sequence[tuple[int, float]]) -> Growth:
    """Return the slope of a least-squares line through the memory of three or more epochs, by their numbers."""
    numbers, values = zip(*points, strict=True)
    (growth, start), dof = statistics.linear_regression(numbers, values), len(points) - 2
    mean = statistics.fmean(numbers)
    squares = math.fsum((number - mean) ** 2 for number in numbers)
    rest = math.fsum((value - start - growth * number) ** 2 for number, value in points)
    return Growth(growth, student(dof) * math.sqrt(rest / dof / squares))
