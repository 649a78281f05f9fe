"""The bottleneck of an epoch as data: the largest of compute, data stalls, copy and overhead. One rule for all outputs.

Prep stall (waiting for preprocessing) and fetch stall (waiting for storage) are the data stalls of J. Mohan et al.,
Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5), 2021. They compete with the other parts together; if
they are the largest, the larger one of them is named, or both if neither is significantly larger. In a tie with another
part, only the larger one is named. If they cannot be separated, there is one.

The bottleneck of a run allows for the spread of its epochs, that of a configuration for the spread of its repeats.
Paired differences of two parts are compared with their 95 % interval in both cases. `benchmarks/decisions/bottlenecks`
prints how often the bottleneck of a run is wrong.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

from epochmeter.machine.page_cache import MIN_WARM_FRACTION
from epochmeter.results.intervals import half_width
from epochmeter.shared.units import percent

COMPUTE, PREP_STALL, FETCH_STALL, DATA_STALL = "compute", "prep_stall", "fetch_stall", "data_stall"
COPY, OVERHEAD = "copy", "overhead"
PARTS = (COMPUTE, PREP_STALL, FETCH_STALL, DATA_STALL, COPY, OVERHEAD)
STALLS = (PREP_STALL, FETCH_STALL, DATA_STALL)
OR = " or "  # between the parts of a tie
MIN_FRACTION = 0.02
"""Fraction of the epoch's time below which a stall, or a difference between two parts, is neglected."""
LARGE_FRACTION = 0.3
"""Fraction of the epoch's time from which a difference of two parts counts without a test, if it is as large in each
epoch or run. Of equal parts that vary by 20 % (standard deviation), it is smaller in 96 of 100 epochs."""
RESIDENCY = "page_cache_residency_before"
MEMORY, SYNTHETIC = "memory", "synthetic"
IN_MEMORY = (MEMORY, "ram")
"""Media of samples that no storage device holds: in the training process, or in a file system of the memory."""
PART_TIMES = tuple(f"{part}_s" for part in (COMPUTE, COPY, OVERHEAD, DATA_STALL))
STALL_TIMES = ("prep_stall_s", "fetch_stall_s")
LOADER_TIMES = ("loader_read_s", "loader_preprocess_s", "loader_decode_s", "loader_fetch_s")
"""Times of the DataLoader workers, which divide a data stall. Only scripts have the last one, and not the third."""
NOT_APART = (
    "reading and preprocessing are not known apart: other threads or processes work for the dataset, or the kernel "
    "does not count waits for a core"
)
NO_EPOCH = "there is no epoch after the warm-up"
Seconds = Mapping[str, Sequence[float]]
"""Condition, such as a data source -> seconds of each run, or of each epoch."""
IsSignificant = Callable[[str, str], bool]
"""Whether a part is significantly larger than another one."""


@dataclass(frozen=True)
class Bottleneck:
    """The largest part of an epoch.

    Attributes:
        parts: The largest part, of the data stalls the larger one; several if they do not differ significantly, the
            largest first; empty if undecided.
        fractions: Part -> its fraction of the epoch's time, 0 to 1; parts that were not measured are absent.
        equal: Whether several `parts` differ by less than `MIN_FRACTION`; else their difference is not significant.
        why: Why a stall analysis is undecided.
        repeats: Approximate number of repeats per configuration that would make the difference significant, if known.
    """

    parts: tuple[str, ...]
    fractions: Mapping[str, float]
    equal: bool = False
    why: Literal["disturbed", "unmeasured", "not warm", "not cold"] | None = None
    repeats: int | None = None

    @property
    def word(self) -> str:
        """The verdict as it is recorded, such as `compute or prep_stall`, ordered as `PARTS`; empty if undecided."""
        return OR.join(sorted(self.parts, key=PARTS.index))

    @property
    def label(self) -> str:
        """The verdict, such as `compute-bound or prep-bound (about equal)`."""
        names = " or ".join(f"{part.removesuffix('_stall')}-bound" for part in self.parts) or "bottleneck undecided"
        tie = "about equal" if self.equal else "no significant difference"
        return f"{names} ({tie})" if len(self.parts) > 1 else names

    @property
    def data_stall(self) -> float:
        return math.fsum(self.fractions.get(stall, 0.0) for stall in STALLS)

    @property
    def shares(self) -> str:
        """The fractions of the epoch's time behind the verdict: `compute 78 %, data stalls 20 %`.

        They are those of the largest parts, of all data stalls, and of the next part if it is larger than these. Prep
        stall and fetch stall are named if both are at least `MIN_FRACTION`.
        """
        sizes = {part: percent(fraction) for part, fraction in self.fractions.items()}
        kinds = [stall for stall in STALLS if self.fractions.get(stall, 0.0) >= MIN_FRACTION]
        named = ", ".join(f"{kind.replace('_', ' ')} {sizes[kind]}" for kind in kinds)
        stalls = f"data stalls {percent(self.data_stall)}" + (f" ({named})" if len(kinds) > 1 else "")
        texts = [stalls if part in STALLS else f"{part} {sizes[part]}" for part in self.parts if part in sizes]
        texts += [stalls] if any(stall in sizes for stall in STALLS) else []
        others = {part: size for part, size in self.fractions.items() if part not in (*self.parts, *STALLS)}
        next_part = max(others, key=lambda part: others[part], default="")
        least = MIN_FRACTION if len({*texts}) < 2 else max(MIN_FRACTION, self.data_stall)
        texts += [f"{next_part} {sizes[next_part]}"] if next_part and others[next_part] >= least else []
        return ", ".join(dict.fromkeys(texts))


def find_bottleneck(
    seconds: Mapping[str, float], e2e_s: float, significant: IsSignificant = lambda *_: True
) -> Bottleneck | None:
    """Return the bottleneck of an epoch; None if a part that was not measured (absent) could be the largest.

    A part counts as larger than another if the difference is significant and at least `MIN_FRACTION` of the epoch;
    negative times count as zero. The larger data stall represents all data stalls in a comparison with another part.
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
    return Bottleneck(tuple(parts), fractions, are_equal)


def _largest(sizes: Mapping[str, float], significant: Callable[[str, str], bool]) -> tuple[list[str], bool]:
    """Return the largest part with those that are not significantly smaller, and whether all are about equal."""
    ordered = sorted(sizes, key=lambda part: -sizes[part])
    close = {part for part in ordered if sizes[ordered[0]] - sizes[part] < MIN_FRACTION}
    visible = [part for part in ordered[1:] if sizes[part] >= MIN_FRACTION]
    tied = [part for part in visible if part in close or not significant(ordered[0], part)]
    return [*ordered[:1], *tied], close.issuperset(tied)


def part_difference(parts: Mapping[str, Seconds], one: str, other: str) -> dict[str, list[float]]:
    """Return the paired differences of two parts; see `_measured_parts`."""
    result: dict[str, list[float]] = {}
    for sign, names in ((1.0, _measured_parts(one, other)), (-1.0, _measured_parts(other, one))):
        for condition, seconds in chain.from_iterable(parts.get(name, {}).items() for name in names):
            sums = result.get(condition, [0.0] * len(seconds))
            result[condition] = [a + sign * b for a, b in zip(sums, seconds, strict=True)]
    return result


def _measured_parts(part: str, other: str) -> tuple[str, ...]:
    """Return the parts that one stands for if it is compared with another: a data stall stands for all data stalls."""
    return STALLS if part in STALLS and other not in STALLS else (part,)


def is_large(difference: Seconds, e2e_s: float) -> bool:
    """Return whether a difference of two parts counts without a test, as it is large in each epoch or run."""
    return math.fsum(map(min, difference.values())) >= LARGE_FRACTION * e2e_s


def is_significant_over_epochs(epochs: Sequence[Mapping[str, float]], e2e_s: float) -> IsSignificant:
    """Return the test for the parts of a mean epoch, by the paired differences in its epochs.

    A single epoch does not show its spread, and Student's interval of two is wide: then the difference must be large.

    Args:
        epochs: Part -> seconds, of each epoch. A part that some epochs lack is not significantly larger than others.
        e2e_s: Mean time of these epochs.
    """
    names = [part for part in PARTS if all(part in epoch for epoch in epochs)]
    parts = {part: {"epochs": [epoch[part] for epoch in epochs]} for part in names}

    def significant(part: str, other: str) -> bool:
        sides = [_measured_parts(part, other), _measured_parts(other, part)]
        if not all(parts.keys() & {*names} for names in sides):
            return False
        values = part_difference(parts, part, other)["epochs"]
        if is_large({"epochs": values}, e2e_s):
            return True
        return len(values) > 1 and statistics.fmean(values) > half_width(values)

    return significant


class Verdict(NamedTuple):
    """The bottleneck of an epoch, or of the mean epoch of a run, as it is recorded.

    Attributes:
        bottleneck: The largest part; several that do not differ significantly are joined by ` or `. Empty if unknown.
        metrics: Prep stall, fetch stall, and fractions of the epoch's time, by full name; those that are known.
        absent: Why others are not known: `bottleneck` or the full name of a stall -> reason.
    """

    bottleneck: str
    metrics: dict[str, float]
    absent: dict[str, str]

    @property
    def document(self) -> dict[str, object]:
        """The fields of a record other than its metrics."""
        return {"bottleneck": self.bottleneck or None, "absent": self.absent}


def find_verdict(
    metrics: Mapping[str, float | None],
    medium: str | None,
    section: str,
    epochs: Sequence[Mapping[str, float | None]] | None = None,
) -> Verdict:
    """Return the verdict on an epoch by its metrics.

    Args:
        medium: What the samples are on, as recorded (`storage.medium`); None if it is not known.
        section: Of the names of the metrics: `epoch` or `steady`.
        epochs: Metrics of the epochs that `metrics` are the means of, whose spread the verdict allows for. None: the
            verdict describes what was measured, as that on a single epoch of several.
    """
    by_short_name = of_section(metrics, section)
    stalls, absent = _divided_stall(by_short_name, medium)
    if not by_short_name:
        absent = dict.fromkeys(STALL_TIMES, NO_EPOCH)
    found = {**stalls, **_stall_fractions({**by_short_name, **stalls})}
    named = {f"{section}/{name}": value for name, value in found.items()}
    reasons = {f"{section}/{name}": why for name, why in absent.items()}
    parts, e2e_s = part_seconds({**by_short_name, **stalls}), by_short_name.get("e2e_s")
    tests = [is_significant_over_epochs(_parts_of(epochs, by_short_name, medium), e2e_s)] if epochs and e2e_s else []
    if e2e_s and (largest := find_bottleneck(parts, e2e_s, *tests)):
        return Verdict(largest.word, named, reasons)
    missing = ", ".join(name for name in ("e2e_s", *PART_TIMES) if name not in by_short_name)
    return Verdict("", named, {"bottleneck": f"not measured: {missing}" if by_short_name else NO_EPOCH, **reasons})


def _parts_of(
    epochs: Sequence[Mapping[str, float | None]], mean: Mapping[str, float], medium: str | None
) -> list[dict[str, float]]:
    """Return part -> seconds of each epoch. The data stall of all is divided, or not, as that of the mean epoch."""
    common = {name: mean[name] for name in (RESIDENCY,) if name in mean}
    names = [name for name in (*PART_TIMES, *LOADER_TIMES) if name in mean]  # of all epochs
    undivided = [{**common, **{name: epoch.get(f"epoch/{name}") or 0.0 for name in names}} for epoch in epochs]
    parts = [part_seconds({**epoch, **_divided_stall(epoch, medium)[0]}) for epoch in undivided]
    are_alike = len({frozenset(epoch.keys() & {*STALLS}) for epoch in parts}) == 1
    return parts if are_alike else [*map(part_seconds, undivided)]


def of_section(metrics: Mapping[str, float | None], section: str) -> dict[str, float]:
    """Return the finite metrics of a section by short name."""
    prefix = f"{section}/"
    by_short_name = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return {name: value for name, value in by_short_name.items() if value is not None and math.isfinite(value)}


def recorded_verdict(document: Mapping[str, Any], medium: str | None, section: str) -> Verdict:
    """Return the verdict in a summary or a window; records of earlier versions have none, so that it is computed."""
    if "absent" not in document:
        return find_verdict(document["metrics"], medium, section)
    return Verdict(document.get("bottleneck") or "", {}, document["absent"])


def read_bottleneck(word: str, metrics: Mapping[str, float | None], section: str = "steady") -> Bottleneck | None:
    """Return a recorded bottleneck with the fractions of the epoch's time; None if it is not known."""
    by_short_name = of_section(metrics, section)
    if not word or not by_short_name.get("e2e_s"):
        return None
    fractions = {
        part: max(0.0, seconds) / by_short_name["e2e_s"] for part, seconds in part_seconds(by_short_name).items()
    }
    parts = word.split(OR)
    sizes = {part: fractions.get(part, 0.0) for part in parts}
    if not {*parts} <= {*STALLS}:  # of the stalls, there is one at most, which represents all
        all_stalls = math.fsum(fractions.get(stall, 0.0) for stall in STALLS)
        sizes |= {part: all_stalls for part in parts if part in STALLS}
    largest, *_ = ordered = sorted(parts, key=lambda part: -sizes[part])
    is_equal = sizes[largest] - sizes[ordered[-1]] < MIN_FRACTION
    return Bottleneck(tuple(ordered), fractions, is_equal)


def part_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return part -> seconds of an epoch by its metrics without section; parts that were not measured are absent.

    The data stall is one part if it is not divided.
    """
    seconds = {part: metrics[f"{part}_s"] for part in PARTS if f"{part}_s" in metrics}
    if {PREP_STALL, FETCH_STALL} & seconds.keys():
        seconds.pop(DATA_STALL, None)
    return seconds


def _divided_stall(metrics: Mapping[str, float], medium: str | None) -> tuple[dict[str, float], dict[str, str]]:
    """Return prep stall and fetch stall, and why one is not known, by the metrics of an epoch without section.

    If a storage device is read, the data stall is divided in proportion to the times in which DataLoader workers
    preprocess and read. Otherwise all of it is prep stall, which includes reading from memory.
    """
    if reason := _undivided_reason(metrics, medium):
        return {}, dict.fromkeys(STALL_TIMES, reason)
    stall_s = metrics["data_stall_s"]
    if not reads_storage(metrics, medium):
        where = "in memory" if medium in IN_MEMORY else "in the page cache"
        return {"prep_stall_s": stall_s}, {"fetch_stall_s": f"no storage device is read: the samples are {where}"}
    fetch = metrics["loader_read_s"] / (metrics["loader_read_s"] + metrics["loader_preprocess_s"])
    return {"prep_stall_s": (1 - fetch) * stall_s, "fetch_stall_s": fetch * stall_s}, {}


def _undivided_reason(metrics: Mapping[str, float], medium: str | None) -> str:
    """Return why the data stall cannot be divided; empty if it can be."""
    if "data_stall_s" not in metrics:
        return "the data stall is not measured"
    if medium == SYNTHETIC:
        return "synthetic batches are neither read nor preprocessed"
    if not reads_storage(metrics, medium):
        return ""
    if not {"loader_read_s", "loader_preprocess_s"} <= metrics.keys():
        return NOT_APART if "loader_fetch_s" in metrics else "reading and preprocessing are not timed"
    if not {"loader_decode_s", "loader_fetch_s"} & metrics.keys():
        return "decoding is not timed, and may be part of reading"
    loader_s = metrics["loader_read_s"] + metrics["loader_preprocess_s"]
    return "" if loader_s > 0 else "reading and preprocessing took no time"


def _stall_fractions(metrics: Mapping[str, float]) -> dict[str, float]:
    e2e_s, times = metrics.get("e2e_s"), ("data_stall_s", *STALL_TIMES)
    return {f"{name.removesuffix('_s')}_fraction": metrics[name] / e2e_s for name in times if e2e_s and name in metrics}


def reads_storage(metrics: Mapping[str, float], medium: str | None) -> bool:
    """Return whether the samples of an epoch are on a storage device, and not in the page cache."""
    cached_fraction = metrics.get(RESIDENCY, 0.0)
    return medium not in (*IN_MEMORY, SYNTHETIC) and cached_fraction < MIN_WARM_FRACTION
