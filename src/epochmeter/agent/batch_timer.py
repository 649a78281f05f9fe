"""Times of the batches that one DataLoader loads in one process, which is a worker or the training process.

The time to fetch the samples of a batch is divided. Waiting is the time off the processor, without waits for a core;
everything else is working. If other threads or processes have worked meanwhile, the wait may have been for them.

A worker is no measured process: it appends its events to the file `PID.loads` of the process that it loads for.
"""

import json
import math
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

from epochmeter.agent.frames import Suppressed, hidden, pass_on
from epochmeter.agent.sampling import LoadingGaps
from epochmeter.agent.spawned import REBUILT
from epochmeter.agent.thread_times import Helpers, RunQueue, own_run_queue
from epochmeter.agent.transform_times import TransformTimes
from epochmeter.shared.events import COLLATED, LOAD_FAILED, LOADED, MAX_LOADS_BYTES, RECORD
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from typing import Protocol  # from Python 3.8 on

    from epochmeter.agent.thread_state import ThreadState

    class Recorder(Protocol):
        """What a timer needs of the agent."""

        thread: ThreadState
        is_on: bool


SAMPLED = 16
"""In one of so many timed batches, the transforms are timed too, which takes a microsecond per call, and other threads
are looked at if the batch before has waited, as in the first batch of some passes."""
FIRST_SAMPLED = 2  # the number of batches before the first of them: these start threads, and import modules
MIN_WAITING_FRACTION = 0.01  # of the time to fetch a batch, from which on it matters whether other threads worked
SHORT_NS = 10 * 1000 * 1000
"""Of shorter batches, only some are timed in detail. Of the others, workers only read the clock, and the training
process nothing, since that takes a part of each step."""


class BatchTimer:
    """Times the batches of one loader in one process, which loads one batch at a time.

    Args:
        agent: Of the training process; None in a worker that was spawned.
        number: Number of the loader in the facts.
        folder: Folder of the logs.
        process: The training process.
        gaps: Of the loader; None in a worker that was spawned.

    Attributes:
        is_begun: Whether a batch is being loaded, which need not be timed.
        times_transforms: Whether the transforms of this batch are timed.
        skipped: Number of batches that are not timed in detail, from the present or the next one on.
        is_worker: Whether this process is a DataLoader worker.
    """

    def __init__(
        self, agent: "Optional[Recorder]", number: int, folder: str, process: int, gaps: Optional[LoadingGaps] = None
    ) -> None:
        self._agent, self._number, self._folder, self._process = agent, number, folder, process
        self._gaps = gaps or LoadingGaps()
        self.dataset: Any = None
        self.is_begun = self.times_transforms = False
        self.is_worker, self._is_on = False, True
        self._worker = 0  # from 1 on; 0: the training process
        self._run_queue: Optional[RunQueue] = None
        self._helpers: Optional[Helpers] = None  # while a batch is fetched in which they are looked at
        self._transforms: Optional[TransformTimes] = None
        self._batches = self.skipped = 0  # the first one is the number of timed batches
        self._chosen_ns, self._gap = 0, 0  # the begin of the last timed batch, and how many were to follow it
        self._waited = False  # whether a batch has waited
        self._begun_ns = self._fetched_ns = self._cpu_ns = 0
        self._queued_ns = self._waits_ns = self._helped_ns = 0.0

    def __reduce__(self) -> Any:
        return REBUILT, ("timer", None, (self._number, self._folder, self._process))

    def enter_worker(self, worker: int) -> None:
        """Note that this process is a DataLoader worker."""
        self._agent, self._worker, self.is_worker = None, worker + 1, True

    def begin(self) -> None:
        """Note that the samples of a batch are requested from the dataset."""
        if self.is_begun:
            self.fail()  # of the batch before, which raised an error
        self.is_begun = True
        if not self._is_on:
            return
        if self.skipped:
            self._begun_ns = monotonic_ns() if self.is_worker else 0
            return
        try:
            is_sampled = self._batches % SAMPLED == FIRST_SAMPLED
            looks = self._waited if is_sampled else not self._batches and self._gaps.looks
            self._run_queue = own_run_queue()
            self._helpers = Helpers() if looks else None
            self.times_transforms = is_sampled
            self._begun_ns, self._cpu_ns, self._queued_ns = self._run_queue.now()
        except Exception as error:
            self._give_up(error)

    def end_fetch(self) -> None:
        """Note that the samples of the batch are there."""
        if self.skipped:
            self._fetched_ns, self._waits_ns, self._helped_ns = monotonic_ns(), math.nan, math.nan
        if self.skipped or not self._begun_ns or self._run_queue is None:
            return
        try:
            self._fetched_ns, cpu_ns, queued_ns = self._run_queue.now()
            waits_ns = self._fetched_ns - self._begun_ns - (cpu_ns - self._cpu_ns) - (queued_ns - self._queued_ns)
            self._waits_ns = 0.0 if waits_ns < 0 else waits_ns  # which may be NaN
            self._helped_ns = math.nan if self._helpers is None else min(self._waits_ns, self._helpers.worked_ns())
        except Exception as error:
            self._give_up(error)

    def end(self) -> None:
        """Note that the batch is collated, and record it if it was timed."""
        self.is_begun, is_detailed = False, not self.skipped
        self.skipped -= not is_detailed
        begun_ns, self._begun_ns = self._begun_ns, 0
        if not begun_ns:
            return
        try:
            fetched_ns, ready_ns = self._fetched_ns, monotonic_ns()
            self._write(
                (LOADED, fetched_ns, begun_ns, self._waits_ns), (COLLATED, ready_ns, fetched_ns, self._helped_ns)
            )
            if is_detailed:
                self._end_detailed(begun_ns, fetched_ns, ready_ns)
        except Exception as error:
            self._give_up(error)

    def _end_detailed(self, begun_ns: int, fetched_ns: int, ready_ns: int) -> None:
        """Note the end of a batch that was timed in detail, and choose the next one."""
        if self.times_transforms and self._transforms is not None:
            self._write_transforms(self._transforms.take(), begun_ns)
        self.times_transforms = False
        self._waited = self._waits_ns > MIN_WAITING_FRACTION * (fetched_ns - begun_ns)
        self._batches += 1
        period_ns = (begun_ns - self._chosen_ns) / (self._gap + 1) if self._chosen_ns else None
        gap = self._gaps.next(period_ns)
        self.skipped = self._gap = gap if ready_ns - begun_ns < SHORT_NS else 0
        self._chosen_ns = begun_ns

    def skip(self, batches: int) -> None:
        """Note that so many batches were loaded without a call of this timer."""
        self.is_begun = False
        self._gap += max(0, batches - self.skipped)  # were not timed besides those that were to be skipped
        self.skipped = max(0, self.skipped - batches)

    def fail(self) -> None:
        """Note that the batch was not loaded, and record it if it was timed."""
        self.is_begun = self.times_transforms = False
        begun_ns, self._begun_ns = self._begun_ns, 0
        try:
            if begun_ns and self._is_on:
                self._write((LOAD_FAILED, monotonic_ns(), begun_ns, 0.0))
        except Exception as error:
            self._give_up(error)

    def reset(self) -> None:
        """Note that the batch that was begun had no samples, at the end of a stream."""
        self.is_begun = self.times_transforms = False
        self._begun_ns = 0

    @hidden
    def load(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Load samples by a function of the script, and time the transforms if the batch is sampled."""
        transforms = self._timed_transforms() if self.times_transforms else None
        if transforms is None:
            return function(argument)
        try:
            return function(argument)
        finally:
            transforms.remove()

    def _timed_transforms(self) -> Optional[TransformTimes]:
        """Return the transforms of the dataset, which are timed from now on; None if that is not possible."""
        try:
            if self._transforms is None:
                self._transforms = TransformTimes(self.dataset)
            self._transforms.install()
        except Exception as error:  # a class of the script
            self._give_up(error)
            return None
        return self._transforms

    def _write(self, *records: Tuple[int, int, int, float]) -> None:
        """Write events: kind, time, begin and value of each."""
        if self._worker:
            packed = [
                RECORD.pack(time_ns, begun_ns, value, self._number, self._worker, 0, 0, 0, kind)
                for kind, time_ns, begun_ns, value in records
            ]
            if not append(self._path("loads"), b"".join(packed), MAX_LOADS_BYTES):
                raise OSError("no space for more events")
        elif self._agent is not None and self._agent.is_on and self._agent.thread.log is not None:
            for kind, time_ns, begun_ns, value in records:
                self._agent.thread.log.write(kind, time_ns, begun_ns, value, self._number)

    def _write_transforms(self, times_ns: Dict[str, int], begun_ns: int) -> None:
        if times_ns:
            of_batch = {"loader": self._number, "begun_ns": begun_ns}
            self._write_facts({"kind": "transforms", "times_ns": times_ns, **of_batch})

    def _write_facts(self, facts: Dict[str, object]) -> None:
        """Add a line to the facts of the training process."""
        append(self._path("jsonl"), json.dumps(facts).encode("utf-8") + b"\n", math.inf)

    def _path(self, kind: str) -> str:
        return "{}/{}.{}".format(self._folder, self._process, kind)

    def _give_up(self, error: Exception) -> None:
        """Time no more batches, and note why; raise an error of the script's own signal handler."""
        self._is_on, self._begun_ns = False, 0
        with Suppressed(Exception):
            self._write_facts({"kind": "untimed", "text": "{}: {}".format(type(error).__name__, error)})
        pass_on(error)


def append(path: str, content: bytes, limit: float) -> bool:
    """Append to a file, which is not kept open as a dataset may close all; return whether more may be appended."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        is_complete = os.write(descriptor, content) == len(content)
        return is_complete and os.lseek(descriptor, 0, os.SEEK_CUR) < limit
    finally:
        os.close(descriptor)
