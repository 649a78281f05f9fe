"""The bottleneck of an epoch: the largest of compute, data stalls, copy and overhead. One rule for all outputs.

Prep stall (waiting for preprocessing) and fetch stall (waiting for storage) are the data stalls of J. Mohan et al.,
Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5), 2021. They compete with the other parts together; if
they are the largest, the larger one of them is named, or both if neither is significantly larger. In a tie with another
part, only the larger one is named. If they cannot be separated, there is one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

COMPUTE, PREP_STALL, FETCH_STALL, DATA_STALL = "compute", "prep_stall", "fetch_stall", "data_stall"
COPY, OVERHEAD = "copy", "overhead"
PARTS = (COMPUTE, PREP_STALL, FETCH_STALL, DATA_STALL, COPY, OVERHEAD)
STALLS = (PREP_STALL, FETCH_STALL, DATA_STALL)
MIN_FRACTION = 0.02
"""Fraction of the epoch's time below which a stall, or a difference between two parts, is neglected."""


@dataclass(frozen=True)
class Bottleneck:
    """The largest part of an epoch, and the smaller data stalls.

    Attributes:
        parts: The largest part, of the data stalls the larger one; several if they do not differ significantly, the
            largest first; empty if undecided.
        fractions: Part -> its fraction of the epoch's time, 0 to 1; parts that were not measured are absent.
        stalls: Data stalls that are significant but not in `parts`, the largest first.
        equal: Whether several `parts` differ by less than `MIN_FRACTION`; else their difference is not significant.
        why: Why a stall analysis is undecided.
        repeats: Approximate number of repeats per configuration that would make the difference significant, if known.
    """

    parts: tuple[str, ...]
    fractions: Mapping[str, float]
    stalls: tuple[str, ...] = ()
    equal: bool = False
    why: Literal["disturbed", "unmeasured", "not warm", "not cold"] | None = None
    repeats: int | None = None

    @property
    def label(self) -> str:
        """The verdict, such as `compute-bound or prep-bound (about equal)`."""
        names = " or ".join(f"{part.removesuffix('_stall')}-bound" for part in self.parts) or "bottleneck undecided"
        tie = "about equal" if self.equal else "no significant difference"
        return f"{names} ({tie})" if len(self.parts) > 1 else names

    @property
    def data_stall(self) -> float:
        return math.fsum(self.fractions.get(stall, 0.0) for stall in STALLS)


def find_bottleneck(
    seconds: Mapping[str, float], e2e_s: float, significant: Callable[[str, str | None], bool] = lambda *_: True
) -> Bottleneck | None:
    """Return the bottleneck of an epoch; None if a part that was not measured (absent) could be the largest.

    A part counts as larger than another (or than zero, for None) if the difference is significant and at least
    `MIN_FRACTION` of the epoch; negative times count as zero. The larger data stall represents all data stalls when it
    is compared with another part.
    """
    fractions = {part: max(0.0, seconds[part]) / e2e_s for part in PARTS if part in seconds}
    stalls = {part: fraction for part, fraction in fractions.items() if part in STALLS}
    kinds, are_kinds_equal = _largest(stalls, significant)
    sizes = {part: fraction for part, fraction in fractions.items() if part not in STALLS}
    sizes |= dict.fromkeys(kinds[:1], math.fsum(stalls.values()))
    parts, are_equal = _largest(sizes, significant)
    if not parts or sizes[parts[0]] < 1 - math.fsum(sizes.values()):
        return None
    if parts == kinds[:1]:
        parts, are_equal = kinds, are_kinds_equal
    visible = [stall for stall in sorted(stalls, key=lambda stall: -stalls[stall]) if stalls[stall] >= MIN_FRACTION]
    others = [stall for stall in visible if stall not in parts and significant(stall, None)]
    return Bottleneck(tuple(parts), fractions, tuple(others), are_equal)


def _largest(sizes: Mapping[str, float], significant: Callable[[str, str], bool]) -> tuple[list[str], bool]:
    """Return the largest part with those that are not significantly smaller, and whether all are about equal."""
    ordered = sorted(sizes, key=lambda part: -sizes[part])
    close = {part for part in ordered if sizes[ordered[0]] - sizes[part] < MIN_FRACTION}
    visible = [part for part in ordered[1:] if sizes[part] >= MIN_FRACTION]
    tied = [part for part in visible if part in close or not significant(ordered[0], part)]
    return [*ordered[:1], *tied], close.issuperset(tied)


def run_bottleneck(metrics: Mapping[str, float], in_memory: bool) -> Bottleneck | None:
    """Return the bottleneck of a run's mean epoch; None if it is not known."""
    e2e_s = metrics.get("steady/e2e_s")
    return find_bottleneck(part_seconds(metrics, in_memory), e2e_s) if e2e_s else None


def part_seconds(metrics: Mapping[str, float], in_memory: bool) -> dict[str, float]:
    """Return part -> seconds per steady epoch of a run; parts that were not measured are absent.

    The data stall is divided into prep stall and fetch stall in proportion to the times in which DataLoader workers
    preprocess and read. It is not divided if decoding was not timed. From a dataset in memory nothing is fetched.
    """
    measured = {name: metrics.get(f"steady/{name}_s", math.nan) for name in (COMPUTE, COPY, OVERHEAD, DATA_STALL)}
    seconds = {name: value for name, value in measured.items() if math.isfinite(value)}
    read_s, preprocess_s = (metrics.get(f"steady/loader_{name}_s", 0.0) for name in ("read", "preprocess"))
    if DATA_STALL in seconds and in_memory:
        seconds[PREP_STALL] = seconds.pop(DATA_STALL)
    elif DATA_STALL in seconds and "steady/loader_decode_s" in metrics and read_s + preprocess_s > 0:
        stall_s, fetch = seconds.pop(DATA_STALL), read_s / (read_s + preprocess_s)
        seconds |= {PREP_STALL: (1 - fetch) * stall_s, FETCH_STALL: fetch * stall_s}
    return seconds
