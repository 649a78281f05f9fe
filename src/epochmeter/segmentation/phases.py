"""Phases of the compute of a pass: forward, loss, backward, optimizer (`shared.phases` has their rules)."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from epochmeter.segmentation.device_times import TimedEvent
from epochmeter.segmentation.phase_estimate import MAX_HALF_WIDTH, estimate
from epochmeter.shared.events import BACKWARD as BACKWARD_ENDED
from epochmeter.shared.events import FORWARD_ENDED, GRADIENTS, STEP, WAS_UNSEEN
from epochmeter.shared.phases import (
    BACKWARD,
    BATCH,
    BETWEEN,
    FORWARD,
    LOSS,
    OPTIMIZER,
    OTHER,
    PHASES,
    PREPARATION,
    WITHIN,
)
from epochmeter.shared.units import NANOSECOND, percent

OF_EVENT = {FORWARD_ENDED: FORWARD, BACKWARD_ENDED: BACKWARD, GRADIENTS: BACKWARD, STEP: OPTIMIZER}
CODES = {phase: code for code, phase in enumerate(PHASES)}
NO_FORWARD = "the times of forward pass and loss are not known, as {}"
FEW_SEEN = "calls of modules with parameters were seen in {} of {} steps"
HIDDEN = "the script uses `torch.compile`, and calls of modules that are not compiled are not seen"
SEEN_LATE = "another class of modules was called later in the epoch"
NO_OPTIMIZER = "the times of optimizer steps are not known, as some of them are compiled by `torch.compile`"
COMPILED = "with `torch.compile`, the times of forward pass and loss are those of compiled modules only"
FEW_TIMED = (
    "an epoch's phases are unknown: its steps are short, and too few were timed by phase to know them within {} of "
    "its compute; they are known with more steps per epoch"
)
ESTIMATED = (
    "steps are short: the phases of an epoch are estimated from a part of its steps (`epoch/timed_steps`), and have no "
    "energy of their own"
)
NO_BACKWARD = "the times of backward pass and loss are not known, as no call of `torch.autograd.backward` was seen"


@dataclass
class Spans:
    """Forward passes, backward passes and optimizer steps, one entry each, in the order of their ends.

    Attributes:
        codes: Of their phases (`CODES`).
        begun_ns: When the device has begun it; monotonic clock, as the next one.
        ended_ns: When the device has finished it.
        has_unseen: Whether some forward passes may not have been seen.
        has_compiled: Whether the begin of some optimizer steps was not seen.
    """

    codes: "array[int]" = field(default_factory=lambda: array("B"))
    begun_ns: "array[int]" = field(default_factory=lambda: array("q"))
    ended_ns: "array[int]" = field(default_factory=lambda: array("q"))
    has_unseen: bool = False
    has_compiled: bool = False

    def add(self, timed: TimedEvent) -> None:
        """Add a part that has ended, unless its begin is not known."""
        if not timed.event.begun_ns:
            self.has_compiled |= timed.event.kind == STEP
            return
        self.codes.append(CODES[OF_EVENT[timed.event.kind]])
        self.begun_ns.append(timed.device_begun_ns)
        self.ended_ns.append(max(timed.device_begun_ns, timed.device_ns))
        self.has_unseen |= bool(timed.event.flags & WAS_UNSEEN)


class Phases(NamedTuple):
    """The phases of the compute of a pass.

    Attributes:
        parts: Times in seconds by their metrics, unknown ones are absent; with `timed_steps` if they are estimates.
        reasons: Why some are unknown or estimates.
        segments: Code, begin and end of each stretch of a known phase except `OTHER`, in rows in order of time; None if
            the phases of some steps were not timed.
    """

    parts: Mapping[str, float]
    reasons: Sequence[str]
    segments: np.ndarray | None = None


class Segment(NamedTuple):
    """A part of the time that belongs to one phase."""

    code: int
    begun_ns: int
    ended_ns: int


class ComputeOfSteps(NamedTuple):
    """The compute of the steps of a pass, in order.

    Attributes:
        intervals: Begin and end of each, in rows.
        timed: Whether its phases were timed.
        kinds: A number of its kind: steps of a kind have the same training events.
    """

    intervals: np.ndarray
    timed: np.ndarray
    kinds: np.ndarray


def phases_of(
    spans: Spans, steps: ComputeOfSteps, loops: Sequence[tuple[int, int]], trained: int, *, is_compiled: bool
) -> Phases:
    """Return the phases of a pass.

    Args:
        spans: Its forward passes, backward passes and optimizer steps.
        steps: Its steps.
        loops: Begin and end of loops within steps, which are no compute.
        trained: Number of timed steps with training.
        is_compiled: Whether the script uses `torch.compile`.
    """
    few = Phases({}, () if steps.timed.all() else (FEW_TIMED.format(percent(MAX_HALF_WIDTH)),))
    if not len(spans.codes) or not steps.timed.any():
        return few
    excluded = np.array(sorted(loops), dtype=np.int64).reshape(-1, 2)
    segments = disjoint(spans)
    segments = segments[~is_within(segments, excluded)]
    computed = steps.intervals[steps.timed]
    segments = np.concatenate([segments, *gaps(segments, computed)])
    unknown, reasons = unknown_phases(spans, trained, is_compiled=is_compiled)
    known = [phase for phase in PHASES if phase != OTHER and phase not in unknown]
    columns = [times_in_steps(segments[segments[:, 0] == CODES[phase]], excluded, computed) for phase in known]
    computes = np.diff(steps.intervals)[:, 0] - loops_in_steps(excluded, steps.intervals)
    times = np.array(columns, dtype=np.int64).reshape(len(known), len(computed)).T
    times = np.column_stack([times, computes[steps.timed] - times.sum(axis=1)])
    estimated = estimate(times, computes, steps.kinds, steps.timed)
    if estimated is None or (estimated.half_widths > MAX_HALF_WIDTH * computes.sum()).any():
        return few
    totals_ns = zip([*known, OTHER], estimated.totals.tolist(), strict=True)
    parts = {phase: total_ns * NANOSECOND for phase, total_ns in totals_ns}
    if steps.timed.all():
        segments = segments[np.isin(segments[:, 0], [CODES[phase] for phase in known])]
        return Phases(parts, reasons, segments[np.argsort(segments[:, 1], kind="stable")])
    return Phases(parts | {"timed_steps": float(steps.timed.sum())}, [ESTIMATED, *reasons])


def times_in_steps(segments: np.ndarray, loops: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Return the time of a phase in each step, given its segments and the loops within steps."""
    parts = clipped(loops, computed)
    times_ns = covered_ns(segments, computed)
    return np.asarray(times_ns - by_step(covered_ns(segments, parts), loops, computed))


def loops_in_steps(loops: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Return the time of loops in each step."""
    return by_step(np.diff(clipped(loops, computed))[:, 0], loops, computed)


def by_step(times_ns: np.ndarray, loops: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Return the sums of times of loops by the step in which each loop begins."""
    sums_ns = np.zeros(len(computed), dtype=np.int64)
    np.add.at(sums_ns, step_of(loops, computed), times_ns)
    return sums_ns


def unknown_phases(spans: Spans, trained: int, *, is_compiled: bool) -> tuple[set[str], list[str]]:
    """Return the phases that the spans of a pass with a number of steps do not show, and why."""
    counts = {phase: spans.codes.count(code) for phase, code in CODES.items()}
    unknown, reasons = set[str](), list[str]()
    if counts[FORWARD] < trained - 1 or not counts[FORWARD] or spans.has_unseen:
        unknown |= {FORWARD, LOSS, PREPARATION}
        few = HIDDEN if is_compiled else FEW_SEEN.format(counts[FORWARD], trained)
        reasons.append(NO_FORWARD.format(SEEN_LATE if spans.has_unseen else few))
    if not counts[BACKWARD]:
        unknown |= {BACKWARD, LOSS}
        reasons.append(NO_BACKWARD)
    if spans.has_compiled:
        reasons.append(NO_OPTIMIZER)
    if spans.has_compiled or not counts[OPTIMIZER]:
        unknown.add(OPTIMIZER)
    return unknown, reasons


def is_within(segments: np.ndarray, loops: np.ndarray) -> np.ndarray:
    """Return which segments are within a loop."""
    if not len(loops):
        return np.zeros(len(segments), dtype=bool)
    loop = np.searchsorted(loops[:, 0], segments[:, 1], side="right") - 1
    return np.asarray((loop >= 0) & (segments[:, 2] <= loops[loop, 1]))


def clipped(loops: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Return the part of each loop in the compute of the step in which it begins."""
    step = step_of(loops, computed)
    return np.asarray(np.clip(loops, computed[step, :1], computed[step, 1:]))


def step_of(loops: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Return the step in which each loop begins."""
    return np.asarray(np.maximum(0, np.searchsorted(computed[:, 0], loops[:, 0], side="right") - 1))


def gaps(segments: np.ndarray, computed: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the segments between others that belong to a phase (`BETWEEN`)."""
    codes, begun_ns, ended_ns = segments.T
    for (before, after), phase in BETWEEN.items():
        if before == BATCH:
            first = np.searchsorted(begun_ns, computed[:, 0])
            is_free = np.append(-1, ended_ns)[first] <= computed[:, 0]
            is_free &= np.append(begun_ns, np.iinfo(np.int64).max)[first] < computed[:, 1]
            is_free &= np.append(codes, -1)[first] == CODES[after]
            yield rows(phase, computed[is_free, 0], begun_ns[first[is_free]])
        else:
            follows = (codes[:-1] == CODES[before]) & (codes[1:] == CODES[after])
            yield rows(phase, ended_ns[:-1][follows], begun_ns[1:][follows])


def rows(phase: str, begun_ns: np.ndarray, ended_ns: np.ndarray) -> np.ndarray:
    """Return segments of a phase."""
    return np.stack([np.full(len(begun_ns), CODES[phase]), begun_ns, ended_ns], axis=1)


def covered_ns(segments: np.ndarray, intervals: np.ndarray) -> np.ndarray:
    """Return how much of each interval the segments of one phase cover; they do not overlap among themselves."""
    if not len(segments) or not len(intervals):
        return np.zeros(len(intervals), dtype=np.int64)
    _, begun_ns, ended_ns = segments[np.argsort(segments[:, 1])].T
    sums_ns = np.append(0, np.cumsum(ended_ns - begun_ns))

    def up_to(times_ns: np.ndarray) -> np.ndarray:
        count = np.searchsorted(begun_ns, times_ns, side="right")
        return np.asarray(sums_ns[count] - np.maximum(0, np.append(times_ns.min(), ended_ns)[count] - times_ns))

    return np.asarray(up_to(intervals[:, 1]) - up_to(intervals[:, 0]))


def disjoint(spans: Spans) -> np.ndarray:
    """Return the time of spans as segments in order, with the gaps within an optimizer step (`WITHIN`, `BETWEEN`)."""
    columns: np.ndarray = np.array([spans.codes, spans.begun_ns, spans.ended_ns], dtype=np.int64).T
    columns = columns[np.argsort(columns[:, 1], kind="stable")]
    if (columns[1:, 1] >= columns[:-1, 2]).all():
        return columns  # none is within another one
    kept = [*unnested(spans)]
    around = zip([None, *kept[:-1]], kept, [*kept[1:], None], strict=True)
    return np.array([gap_within_step(*three) for three in around], dtype=np.int64).reshape(-1, 3)


def gap_within_step(before: Segment | None, segment: Segment, after: Segment | None) -> Segment:
    """Return a segment with its phase: between two parts within an optimizer step, it is that outside of one."""
    if before is None or after is None or PHASES[segment.code] != OPTIMIZER:
        return segment
    phase = BETWEEN.get((PHASES[before.code], PHASES[after.code]))
    is_within = before.ended_ns == segment.begun_ns and segment.ended_ns == after.begun_ns
    return segment._replace(code=CODES[phase]) if phase and is_within else segment


def unnested(spans: Spans) -> Iterator[Segment]:
    """Yield the time of spans, some of which are within others, as segments in order (`WITHIN`)."""
    open_spans: list[Segment] = []
    at_ns = 0
    for code, begun_ns, minus_ended_ns in sorted_spans(spans):
        ended_ns = -minus_ended_ns
        while open_spans and open_spans[-1].ended_ns <= begun_ns:
            outer = open_spans.pop()
            yield from segment_of(outer.code, at_ns, outer.ended_ns)
            at_ns = outer.ended_ns
        if open_spans:
            outer = open_spans[-1]
            yield from segment_of(outer.code, at_ns, begun_ns)
            ended_ns = min(ended_ns, outer.ended_ns)  # the clocks of device and host may differ a little
            code = CODES[WITHIN.get((PHASES[outer.code], PHASES[code]), PHASES[code])]
        open_spans.append(Segment(code, begun_ns, ended_ns))
        at_ns = begun_ns
    while open_spans:
        outer = open_spans.pop()
        yield from segment_of(outer.code, at_ns, outer.ended_ns)
        at_ns = outer.ended_ns


def sorted_spans(spans: Spans) -> list[tuple[int, int, int]]:
    """Return code, begin and minus the end of each span, in the order of their begins: outer ones first."""
    rows = zip(spans.begun_ns, (-ended_ns for ended_ns in spans.ended_ns), spans.codes, strict=True)
    return [(code, begun_ns, minus_ended_ns) for begun_ns, minus_ended_ns, code in sorted(rows)]


def segment_of(code: int, begun_ns: int, ended_ns: int) -> Iterator[Segment]:
    if begun_ns < ended_ns:
        yield Segment(code, begun_ns, ended_ns)
