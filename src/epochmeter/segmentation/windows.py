"""Windows of a script, and the parts of their time."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from epochmeter.results.documents import Loading
from epochmeter.segmentation.passes import MIN_BATCHES, Ending, Pass
from epochmeter.segmentation.phases import ComputeOfSteps, Phases, phases_of
from epochmeter.shared.events import COLLECTED, SAVED
from epochmeter.shared.record import INTERVALS
from epochmeter.shared.units import NANOSECOND

EPOCH, EVALUATION = "epoch", "val"
WORK = {COLLECTED: "collection_s", SAVED: "save_s"}
"""Kind of an event -> part of the overhead."""
NO_SAMPLES = "samples are unknown: the loader states no number of samples, and its batches do not show it"
OTHER_COUNT = "samples are unknown: batches of the loader are missing or repeated, and one of them is smaller"
FAILED_BATCH = "samples are unknown: the loader failed to deliver a batch, and its other batches do not show theirs"


class PhaseStretches(NamedTuple):
    """Which phase of a window goes on, in stretches from its begin to its end.

    Attributes:
        names: Of all phases.
        phases: Of each stretch, as an index into the names.
        lasts_s: How long each stretch lasts.
        of_compute: The names of the phases of compute whose times are known.
    """

    names: Sequence[str]
    phases: "array[int]"
    lasts_s: "array[float]"
    of_compute: Sequence[str]


@dataclass(frozen=True)
class Window:
    """A window of a script: an epoch, an evaluation, or one that the script has named.

    Attributes:
        name: `epoch`, `val`, or the script's own name.
        rule: Why it is a window of this kind.
        opened_ns: Monotonic clock.
        closed_ns: Monotonic clock.
        parts: Times in seconds and counts, by the names of metrics without prefix; unknown ones are absent.
        rows: Gap, wait, copy and compute of each step in seconds, flattened.
        is_partial: Whether it has fewer steps than a complete epoch.
        length: Number of steps of a complete epoch; None if it is not known.
        first_gap_s: Time from the begin to the first batch: its data stall, and overhead.
        reason: Why parts are absent; empty if none is.
        training: Number of the training of an epoch or an evaluation, as far as it was known at its end.
        loading: What the line of an epoch in the record has on its loader.
        counted: Number of the facts on operators that were recorded in one of its steps; None if there are none.
        step_ends_ns: When the device had ended each step of an epoch.
        rank_rows: Rows of `RANK_INTERVALS` of these steps; empty without several ranks.
        timeline: Rows in order of time, as `rows`, with the loops within steps; empty if waits for data are not known.
        stretches: Its phases in order of time; None if they are not known at each moment.
    """

    name: str
    rule: str
    opened_ns: int
    closed_ns: int
    parts: dict[str, float]
    rows: "array[float]" = field(default_factory=lambda: array("f"))
    is_partial: bool = False
    length: int | None = None
    first_gap_s: float = 0.0
    reason: str = ""
    training: int | None = None
    loading: Loading = field(default_factory=Loading)
    counted: int | None = None
    step_ends_ns: Sequence[int] = ()
    rank_rows: "array[float]" = field(default_factory=lambda: array("f"))
    timeline: "array[float]" = field(default_factory=lambda: array("f"))
    stretches: PhaseStretches | None = None


@dataclass(frozen=True)
class StepTimes:
    """Times of the steps of a pass in ns, one entry each.

    Attributes:
        delivered: When its batch arrived; monotonic clock, as the next two.
        ended: When the compute of the step had ended.
        next_requested: When the next batch was requested, or the window ended.
        gaps: From the end of the step before until the batch arrived.
        waits: How long the host waited for the batch.
        computes: How long the device computed.
    """

    delivered: np.ndarray
    ended: np.ndarray
    next_requested: np.ndarray
    gaps: np.ndarray
    waits: np.ndarray
    computes: np.ndarray

    @property
    def stalls(self) -> np.ndarray:
        """The parts of the gaps in which the host waited for data."""
        return np.asarray(np.minimum(self.gaps, self.waits))

    def step_at(self, time_ns: int) -> int:
        """Return the step at a moment."""
        return max(0, int(np.searchsorted(self.delivered, time_ns, side="right")) - 1)

    def rows(self) -> "array[float]":
        """Return the rows of the run record."""
        columns = [self.gaps, self.waits, np.zeros(len(self.gaps)), self.computes]
        seconds = np.stack(columns, axis=1) * NANOSECOND
        return array("f", seconds.astype(np.float32).tobytes())


def rows_of_steps(opened_ns: int, ends_ns: Sequence[int]) -> "array[float]":
    """Return the rows of steps of which only the ends are known: their whole time is compute."""
    durations_ns = np.diff(np.array(ends_ns, dtype=np.int64), prepend=opened_ns)
    rows = np.zeros((len(ends_ns), len(INTERVALS)), dtype=np.float32)
    rows[:, -1] = durations_ns * NANOSECOND
    return array("f", rows.tobytes())


def step_count(measured: Pass) -> int:
    """Return the number of steps of a pass; batches after the last training of a pass that was left are none."""
    count = len(measured.batches)
    if measured.trains and measured.ending in (Ending.LEFT, Ending.DROPPED):
        while count and not measured.batches.trained_ns[count - 1]:
            count -= 1
    return count


def step_times(measured: Pass, *, has_optimizer: bool) -> StepTimes:
    """Return the times of the steps of a pass that has ended.

    A step's compute ends with its last training event if the script uses optimizers of torch (`has_optimizer`), else
    with the next request. The time of other loops in it is overhead. If the script requests batches in advance and has
    left the pass, the first step waits for several batches.
    """
    if measured.is_read_at_once:
        return _times_after_reading(measured)
    count, batches, unused = step_count(measured), measured.batches, measured.unused
    requested, delivered, waits, trained = (
        np.array(column[:count], dtype=np.int64)
        for column in (batches.requested_ns, batches.delivered_ns, batches.waits_ns, batches.trained_ns)
    )
    waits[unused] += waits[:unused].sum()
    requested, delivered, waits, trained = (column[unused:] for column in (requested, delivered, waits, trained))
    last_ns = measured.ended.begun_ns if measured.ended else measured.closed_ns
    next_requested = np.append(requested[1:], max(last_ns, int(delivered[-1])))
    ended = np.where((trained > 0) & has_optimizer, trained, next_requested)
    waits[0] += max(0, measured.ready_ns - max(measured.called_ns, measured.opened_ns))
    gaps = np.maximum(0, delivered - np.append(measured.opened_ns, ended[:-1]))
    times = StepTimes(delivered, ended, next_requested, gaps, waits, np.maximum(0, ended - delivered))
    for loop in measured.loops:
        step = times.step_at(loop.begun_ns)
        times.computes[step] -= loop.overlap_ns(int(delivered[step]), int(ended[step]))
    return times


def _times_after_reading(measured: Pass) -> StepTimes:
    """Return the times of steps that the script makes after it has read all batches: the first step waits for them."""
    assert measured.ended
    read_ns = measured.ended.ended_ns
    ended = np.array([ended_ns for _, ended_ns in measured.late], dtype=np.int64)
    delivered = np.append(read_ns, ended[:-1])
    gaps = np.zeros(len(ended), dtype=np.int64)
    gaps[0] = read_ns - measured.opened_ns
    return StepTimes(delivered, ended, ended, gaps, gaps.copy(), ended - delivered)


def late_compute_ns(measured: Pass) -> int:
    """Return the time in which a script trains on batches that it requested in advance, after the end of the pass."""
    if measured.is_read_at_once or not (measured.late and measured.ended):
        return 0
    return max(0, max(ended_ns for _, ended_ns in measured.late) - measured.ended.ended_ns)


def parts_of(measured: Pass, times: StepTimes) -> dict[str, float]:
    """Return the parts of the time of a pass that has ended, in seconds, and its counts."""
    e2e_ns, late_ns = measured.closed_ns - measured.opened_ns, late_compute_ns(measured)
    stall_ns, compute_ns = int(times.stalls.sum()), int(times.computes.sum()) + late_ns
    tail_ns = measured.closed_ns - int(times.ended[-1]) - late_ns
    stop_ns = measured.ended.ended_ns - measured.ended.begun_ns if measured.ended else 0
    nanoseconds = {
        "e2e_s": e2e_ns,
        "data_stall_s": stall_ns,
        "compute_s": compute_ns,
        "overhead_s": e2e_ns - stall_ns - compute_ns,
        "host_wait_s": int(times.waits.sum()),
        "loader_start_s": int(times.stalls[0]),
        "loader_stop_s": min(max(0, tail_ns), stop_ns),
    }
    for kind, metric in WORK.items():
        intervals = [interval for of_kind, interval in measured.work if of_kind == kind]
        nanoseconds[metric] = sum(
            interval.overlap_ns(int(times.ended[step]), int(times.next_requested[step]))
            for interval in intervals
            for step in [times.step_at(interval.begun_ns)]
        )
    parts = {name: value * NANOSECOND for name, value in nanoseconds.items()}
    parts["steps"] = len(times.delivered)
    if not math.isnan(measured.training.learning_rate):
        parts["learning_rate"] = measured.training.learning_rate
    samples = samples_of(measured, len(times.delivered))
    if not math.isnan(samples):
        parts["samples"] = samples
    parts |= tokens_of(measured, len(times.delivered))
    if (excess_ns := counting_ns(measured, times)) is not None:
        parts["counting_s"] = excess_ns * NANOSECOND
    return parts


def phases_of_pass(measured: Pass, times: StepTimes) -> Phases:
    """Return the phases of the compute of a pass that has ended."""
    computed, batches = np.stack([times.delivered, np.maximum(times.delivered, times.ended)], axis=1), measured.batches
    if measured.is_read_at_once:
        every = np.ones(len(computed), dtype=bool)  # after the end of a pass, all phases are timed
        steps, trained = ComputeOfSteps(computed, every, every), len(computed)
    else:
        timed, kinds, trained_ns = (
            np.array(column[measured.unused :][: len(computed)])
            for column in (batches.is_timed, batches.kinds, batches.trained_ns)
        )
        steps, trained = ComputeOfSteps(computed, timed > 0, kinds), int(((timed > 0) & (trained_ns > 0)).sum())
    if late_ns := late_compute_ns(measured):
        assert measured.ended
        last_ns = measured.ended.ended_ns
        late = [[last_ns, last_ns + late_ns]]
        steps = ComputeOfSteps(
            np.append(computed, late, axis=0), np.append(steps.timed, True), np.append(steps.kinds, -1)
        )
    return phases_of(measured.spans, steps, measured.loops, trained, is_compiled=measured.hides_forwards)


def counting_ns(measured: Pass, times: StepTimes) -> float | None:
    """Return by how much the step in which operators were recorded is longer than the median step; None without one."""
    if measured.counted is None:
        return None
    step = measured.counted[1] - measured.unused
    durations_ns = times.next_requested - times.delivered
    if not 0 <= step < len(durations_ns) or len(durations_ns) < MIN_BATCHES:
        return None
    return max(0.0, float(durations_ns[step] - np.median(np.delete(durations_ns, step))))


def parts_so_far(going_on: Pass, count: int) -> dict[str, float]:
    """Return the parts of the time of the first `count` steps of a pass that goes on, in seconds."""
    batches = going_on.batches
    delivered, waits, trained = (
        np.array(column[:count], dtype=np.int64)
        for column in (batches.delivered_ns, batches.waits_ns, batches.trained_ns)
    )
    next_requested = np.array(batches.requested_ns[1 : count + 1], dtype=np.int64)
    ended = np.where(trained > 0, trained, next_requested)
    gaps = np.maximum(0, delivered - np.append(going_on.opened_ns, ended[:-1]))
    stall_ns, compute_ns = int(np.minimum(gaps, waits).sum()), int(np.maximum(0, ended - delivered).sum())
    e2e_ns = int(next_requested[-1]) - going_on.opened_ns if count else 0
    nanoseconds = {"data_stall_s": stall_ns, "compute_s": compute_ns, "overhead_s": e2e_ns - stall_ns - compute_ns}
    return {name: value * NANOSECOND for name, value in nanoseconds.items()}


def tokens_of(measured: Pass, count: int) -> dict[str, float]:
    """Return the tokens in the first `count` batches of a pass, and those of padding, as far as they are known."""
    batches = measured.batches
    tokens, positions = (math.fsum(column[:count]) for column in (batches.tokens, batches.positions))
    if len(batches.tokens) < count or math.isnan(tokens):
        return {}
    has_mask = all(batches.positions[:count])
    return {"tokens": tokens, **({"padding_tokens": positions - tokens} if has_mask else {})}


def samples_of_step(measured: Pass, batches: int) -> float:
    """Return the samples in the last batches of the step in which operators were recorded; NaN if they are unknown."""
    assert measured.counted
    loader, (_, last) = measured.loader, measured.counted
    if loader.samples is None or loader.batch_size is None:
        return math.fsum(measured.batches.samples[last + 1 - batches : last + 1])
    missing = max(0, (last + 1) * loader.batch_size - loader.samples)  # in the last batch of a complete pass
    is_known = missing < loader.batch_size and not (measured.is_continued or measured.failures)
    return batches * loader.batch_size - missing if is_known else math.nan


def samples_of(measured: Pass, count: int) -> float:
    """Return the samples in the first `count` batches of a pass; NaN if they are not known.

    Only the last batch of a complete pass may be smaller than the others: which one it was is not known if one failed.
    """
    loader, batches = measured.loader, len(measured.batches)
    if loader.samples is None or loader.batch_size is None:
        return math.fsum(measured.batches.samples[:count])
    of_complete_pass = math.ceil(loader.samples / loader.batch_size)
    if count > of_complete_pass:
        return math.nan
    has_last = measured.is_complete or batches + measured.failures >= of_complete_pass
    if loader.samples % loader.batch_size == 0 or not has_last or count < batches:
        return count * loader.batch_size
    return loader.samples if count == of_complete_pass and not measured.is_continued else math.nan


def no_samples(measured: Pass) -> str:
    """Return why the samples of a pass are not known."""
    if measured.loader.samples is not None:
        return OTHER_COUNT
    return FAILED_BATCH if measured.failures else NO_SAMPLES
