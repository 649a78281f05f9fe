"""The parts of a pass in order of time, for its energy by phase: the rows of its steps, with what these leave out.

Within a step, a loop that does not train is overhead: the step is divided into rows before and after it. Training after
the end of a pass, on batches that were requested in advance, is one more row.

With the phases of compute, the parts are stretches of one phase each.
"""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from epochmeter.segmentation.passes import Interval, Pass
from epochmeter.segmentation.phases import CODES, Phases
from epochmeter.segmentation.windows import PhaseStretches, StepTimes, late_compute_ns
from epochmeter.shared.phases import OTHER, PHASES
from epochmeter.shared.units import NANOSECOND

OVERHEAD, STALL = len(PHASES), len(PHASES) + 1  # codes after those of the phases of compute
NAMES = (*(phase.removesuffix("_s") for phase in PHASES), "overhead", "stall")


def timeline_rows(measured: Pass, times: StepTimes) -> "array[float]":
    """Return gap, wait, copy and compute in seconds, flattened, of consecutive stretches from the pass's begin on."""
    no_copy = np.zeros(len(times.gaps), dtype=np.int64)
    rows = np.stack([times.gaps, times.waits, no_copy, np.maximum(0, times.ended - times.delivered)], axis=1)
    loops: dict[int, list[Interval]] = {}
    for loop in sorted(measured.loops):
        loops.setdefault(times.step_at(loop.begun_ns), []).append(loop)
    places, further = list[int](), list[tuple[int, int, int, int]]()
    for step, of_step in loops.items():
        (_, rows[step, 3]), *others = divided(int(times.delivered[step]), int(times.ended[step]), of_step)
        places += len(others) * [step + 1]
        further += [(loop_ns, 0, 0, compute_ns) for loop_ns, compute_ns in others]
    if late_ns := late_compute_ns(measured):
        assert measured.ended
        places.append(len(rows))
        further.append((max(0, measured.ended.ended_ns - int(times.ended[-1])), 0, 0, late_ns))
    rows = np.insert(rows, places, np.array(further, dtype=np.int64).reshape(-1, 4), axis=0)
    return array("f", (rows * NANOSECOND).astype(np.float32).tobytes())


def divided(begun_ns: int, ended_ns: int, loops: Sequence[Interval]) -> Iterator[tuple[int, int]]:
    """Yield the loop before each part of the compute of a step, 0 before the first, and that part, as durations."""
    at_ns, loop_ns = begun_ns, 0
    for loop in loops:
        from_ns, to_ns = max(at_ns, loop.begun_ns), min(ended_ns, loop.ended_ns)
        if from_ns < to_ns:
            yield loop_ns, from_ns - at_ns
            at_ns, loop_ns = to_ns, to_ns - from_ns
    yield loop_ns, max(0, ended_ns - at_ns)


def phase_stretches(measured: Pass, times: StepTimes, phases: Phases) -> PhaseStretches | None:
    """Return which phase goes on from the begin of a pass to its end; None if not all of its steps were timed."""
    if phases.segments is None:
        return None
    computes = np.stack([times.delivered, np.maximum(times.delivered, times.ended)], axis=1)
    if late_ns := late_compute_ns(measured):
        assert measured.ended
        computes = np.append(computes, [[measured.ended.ended_ns, measured.ended.ended_ns + late_ns]], axis=0)
    stalls = np.stack([times.delivered - times.stalls, times.delivered], axis=1)
    loops = np.array(sorted(measured.loops), dtype=np.int64).reshape(-1, 2)
    segments = phases.segments[phases.segments[:, 1] < phases.segments[:, 2]]  # an empty one would hide another
    borders = [part.ravel() for part in (computes, stalls, loops, segments[:, 1:])]
    opened_ns, closed_ns = measured.opened_ns, measured.closed_ns
    edges = np.unique(np.clip(np.concatenate([[opened_ns, closed_ns], *borders]), opened_ns, closed_ns))
    middles = (edges[:-1] + edges[1:]) // 2
    codes = np.full(len(middles), OVERHEAD)
    codes[place_of(middles, stalls) >= 0] = STALL
    is_computing = (place_of(middles, computes) >= 0) & (place_of(middles, loops) < 0)
    segment = place_of(middles, segments[:, 1:])
    codes[is_computing] = CODES[OTHER]
    is_known = is_computing & (segment >= 0)
    codes[is_known] = segments[segment[is_known], 0]
    begins = np.append(True, codes[1:] != codes[:-1])[: len(codes)]
    lasts_s = np.diff(np.append(edges[:-1][begins], edges[-1:])) * NANOSECOND
    names = [name for name, phase in zip(NAMES, PHASES, strict=False) if phase in phases.parts]
    return PhaseStretches(NAMES, array("B", codes[begins].tolist()), array("d", lasts_s.tolist()), names)


def place_of(times_ns: np.ndarray, intervals: np.ndarray) -> np.ndarray:
    """Return the place of the interval within which each moment is, -1 for none; intervals are in order of time."""
    if not len(intervals):
        return np.full(len(times_ns), -1)
    place = np.searchsorted(intervals[:, 0], times_ns, side="right") - 1
    return np.asarray(np.where((place >= 0) & (times_ns < intervals[place, 1]), place, -1))
