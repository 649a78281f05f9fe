"""The parts of a pass in order of time, for its energy by phase: the rows of its steps, with what these leave out.

Within a step, a loop that does not train is overhead: the step is divided into rows before and after it. Training after
the end of a pass, on batches that were requested in advance, is one more row.
"""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from epochmeter.segmentation.passes import Interval, Pass
from epochmeter.segmentation.windows import StepTimes, late_compute_ns
from epochmeter.shared.units import NANOSECOND


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
