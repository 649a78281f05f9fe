"""What bounds the speed of a job, from its epochs' times under the three supplies of samples, or why that is undecided.

A stall counts from a share of the epoch's time on, and for sure: where its 95 % interval allows for both, the verdict
is that it is undecided, with about how many repeats would tell.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainmeter.report.estimates import MATTERS, Samples, contrast, half_width
from trainmeter.report.rows import Row
from trainmeter.report.supplies import FROM_CACHE, FROM_STORAGE, TENSORS, was_cold, was_warm

DISTURBED = (
    "a stall comes out far below zero, which none can be: something else disturbed some of the runs; measure them "
    "again with sweep.again=true"
)
MOST_REPEATS = 100
"""More are not worth counting."""
STORAGE, PREPROCESSING, COMPUTE, UNDECIDED = "storage-bound", "preprocessing-bound", "compute-bound", "undecided"
PREPROCESSED = {FROM_CACHE: 1.0, TENSORS: -1.0}
FETCH = {FROM_STORAGE: 1.0, FROM_CACHE: -1.0}
STALLED = {FROM_STORAGE: 1.0, TENSORS: -1.0}
MORE_FETCH = {FROM_STORAGE: 1.0, FROM_CACHE: -2.0, TENSORS: 1.0}
"""By how much the fetch stall is more than the preprocessing stall."""


@dataclass(frozen=True)
class Verdict:
    """What bounds the speed; if that is undecided, why, and how many repeats of each condition would do about."""

    bound: str
    why: str | None = None
    repeats: int | None = None
    """None where no number of repeats within reason would do, or none is needed."""


def verdict(samples: Samples) -> Verdict:
    """What bounds a job on its storage: T1, T3 and T2 of its runs."""
    matters = MATTERS * statistics.fmean(samples[FROM_STORAGE])
    if _impossible(FETCH, matters, samples) or _impossible(PREPROCESSED, matters, samples):
        return Verdict(UNDECIDED, DISTURBED)
    fetch = _weighs(FETCH, matters, samples)
    preprocessing = _weighs(PREPROCESSED, matters, samples)
    more_fetch = _weighs(MORE_FETCH, 0.0, samples)
    if fetch is False and preprocessing is False:
        return Verdict(COMPUTE)
    # What surely matters and is surely the larger decides, whatever is not known of the other.
    if fetch and (preprocessing is False or more_fetch):
        return Verdict(STORAGE)
    if preprocessing and (fetch is False or more_fetch is False):
        return Verdict(PREPROCESSING)
    if fetch or preprocessing:
        return _undecided("storage and preprocessing weigh too much alike", MORE_FETCH, 0.0, samples)
    if fetch is None:
        return _undecided("fetch stall may matter or not", FETCH, matters, samples)
    return _undecided("preprocessing may matter or not", PREPROCESSED, matters, samples)


def verdict_in_memory(samples: Samples) -> Verdict:
    """What bounds the same job with its dataset in memory."""
    matters = MATTERS * statistics.fmean(samples[FROM_CACHE])
    if _impossible(PREPROCESSED, matters, samples):
        return Verdict(UNDECIDED, DISTURBED)
    preprocessing = _weighs(PREPROCESSED, matters, samples)
    if preprocessing is None:
        return _undecided("preprocessing may matter or not", PREPROCESSED, matters, samples)
    return Verdict(PREPROCESSING if preprocessing else COMPUTE)


def held_to_cache(found: Verdict, rows: Mapping[str, Sequence[Row]]) -> Verdict:
    """A verdict, as far as the page cache allows for it: where it was not as asked, the fetch stall is too small."""
    if found.bound in (STORAGE, UNDECIDED) or (was_warm(rows) and was_cold(rows)):
        return found
    wrong = "warm runs were not warm" if not was_warm(rows) else "cold runs were not cold"
    return Verdict(UNDECIDED, f"{wrong}, so that fetch stall may be more than it seems")


def in_memory_held_to_cache(found: Verdict, rows: Mapping[str, Sequence[Row]]) -> Verdict:
    """The same for the verdict in memory: where warm was not warm, some of its stall is storage's."""
    if found.bound == PREPROCESSING and not was_warm(rows):
        return Verdict(UNDECIDED, "warm runs were not warm, so that some of their stall may be the storage's")
    return found


def repeats_needed(weights: Mapping[str, float], bound: float, samples: Samples) -> int | None:
    """About how many repeats of each condition tell a contrast from a bound; None for more than is worth it."""
    distance = abs(contrast(weights, samples).value - bound)
    most = max(len(samples[name]) for name in weights)
    for count in range(max(2, most + 1), MOST_REPEATS + 1):
        if half_width(weights, samples, dict.fromkeys(weights, count)) < distance:
            return count
    return None


def repeated(samples: Samples) -> bool:
    return all(len(values) > 1 for values in samples.values())


def _weighs(weights: Mapping[str, float], bound: float, samples: Samples) -> bool | None:
    """Whether a contrast is above a bound; None where its interval spans it, or, without one, where it is the bound."""
    told = contrast(weights, samples)
    if told.spans(bound) or told.value == bound:
        return None
    return told.value > bound


def _impossible(weights: Mapping[str, float], matters: float, samples: Samples) -> bool:
    """Whether a stall is below zero by more than matters, and not for want of precision."""
    told = contrast(weights, samples)
    return told.value < -matters and (told.high is None or told.high < 0)


def _undecided(why: str, weights: Mapping[str, float], bound: float, samples: Samples) -> Verdict:
    if not repeated(samples):
        return Verdict(UNDECIDED, why)
    repeats = repeats_needed(weights, bound, samples)
    return Verdict(UNDECIDED, why if repeats else f"{why}; {MOST_REPEATS} repeats of each would not tell", repeats)
