"""Events of training: optimizer steps, backward passes and other parts of steps, garbage collections and saves.

The functions here run in every step, where each call of a function takes about a microsecond with cold CPU caches.
"""

from typing import TYPE_CHECKING, Optional

import torch

from epochmeter.agent.facts import learning_rate
from epochmeter.agent.phases import NOT_KNOWN, Begun
from epochmeter.agent.recording import Recording
from epochmeter.agent.samples import UNKNOWN
from epochmeter.shared.events import BACKWARD, COLLECTED, HAS_BEGIN_TIME, HAS_DEVICE_TIME, SAVED, STEP
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from epochmeter.agent.device_marks import DeviceMarks
    from epochmeter.agent.event_log import EventLog

FIRST_STEPS = 4  # within which, or before a pass, a script that uses a GPU has initialized it


class TrainingEvents:
    """Records the training of this process."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def optimizer_begun(self, optimizer: torch.optim.Optimizer, arguments: object, keywords: object) -> None:
        """Note when a step of an optimizer of torch begins."""
        if self._recording.is_on:
            thread = self._recording.thread
            is_on_host = thread.marks is None or thread.sampling.untimed
            # Also of steps that are not timed: the begin shows which steps are within another one.
            thread.step_begins.append((id(optimizer), (monotonic_ns(), None) if is_on_host else self.phase_begun()))

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer, arguments: object, keywords: object) -> None:
        """Record a step of an optimizer of torch, which has ended."""
        recording = self._recording
        if not recording.is_on:
            return
        try:
            thread = recording.thread
            if thread.steps < FIRST_STEPS:
                recording.update_device(optimizer)
            begun, key, begins = NOT_KNOWN, id(optimizer), thread.step_begins
            while begins and begun is NOT_KNOWN:  # steps that have begun later have failed
                number, noted = begins.pop()
                begun = noted if number == key else begun
            if begins:  # it is a part of another step, which only the begins show
                recording.brief.forbid()
            number = recording.facts.optimizers.get(optimizer) or recording.facts.optimizer_number(optimizer)
            self._note(STEP, begun, number, learning_rate(optimizer))
        except BaseException as error:
            if recording.is_of_script(error):
                raise

    def backward_ended(self, begun: Begun = NOT_KNOWN) -> None:
        """Record a backward pass, which has ended."""
        recording = self._recording
        if not recording.is_on:
            return
        try:
            if recording.thread.steps < FIRST_STEPS:
                recording.update_device()
            self._note(BACKWARD, begun, 0, UNKNOWN)
        except BaseException as error:
            if recording.is_of_script(error):
                raise

    def phase_begun(self) -> Begun:
        """Return the begin of a forward pass, a backward pass or an optimizer step, which is now, if it is timed."""
        recording = self._recording
        thread = recording.thread
        if thread.sampling.untimed or not recording.is_on:
            return NOT_KNOWN
        return (monotonic_ns(), None) if thread.marks is None else self.wait_begun()

    def wait_begun(self) -> Begun:
        """Return the begin of a wait for other ranks, which is now; they are timed in every step."""
        recording = self._recording
        thread = recording.thread
        try:
            mark = None if thread.marks is None else thread.marks.record()
            return monotonic_ns(), mark
        except BaseException as error:
            if recording.is_of_script(error):
                raise
            return NOT_KNOWN

    def phase_ended(self, kind: int, begun: Begun, flags: int = 0) -> None:
        """Record the end of a part of a step that is no training step, in a thread that reads data or trains."""
        recording = self._recording
        thread = recording.thread
        log = thread.log
        if begun is NOT_KNOWN or log is None or not recording.is_on:
            return
        try:
            if thread.marks is None:
                log.write(kind, monotonic_ns(), begun[0], 0.0, 0, 0, 0, 0, flags)
            else:
                self._write_marked(thread.marks, log, kind, begun, 0, 0.0, flags)
        except BaseException as error:
            if recording.is_of_script(error):
                raise

    def collected(self, begun_ns: int) -> None:
        """Record that the garbage collector has run."""
        self._note_work(COLLECTED, begun_ns)

    def saved(self, begun_ns: int) -> None:
        """Record that something was saved."""
        self._note_work(SAVED, begun_ns)

    def _note(self, kind: int, begun: Begun, thing: int, value: float) -> None:
        """Record a training event, which has ended."""
        recording = self._recording
        thread = recording.thread
        thread.steps += 1
        if recording.details is not None:
            recording.details.train(thread.steps)
        log = thread.log or recording.new_log()
        if thread.marks is None:
            log.write(kind, monotonic_ns(), begun[0], value, thing)
        else:
            self._write_marked(thread.marks, log, kind, begun, thing, value)

    @staticmethod
    def _write_marked(
        marks: "DeviceMarks", log: "EventLog", kind: int, begun: Begun, thing: int, value: float, flags: int = 0
    ) -> None:
        """Record an event that has ended on the host, and ends on the GPU at a timestamp."""
        mark = marks.record()
        now_ns, (begun_ns, begun_mark) = monotonic_ns(), begun
        if mark is None:
            log.write(kind, now_ns, begun_ns, value, thing, 0, 0, 0, flags)
        else:
            flags |= HAS_DEVICE_TIME if begun_mark is None else HAS_DEVICE_TIME | HAS_BEGIN_TIME
            log.write(kind, now_ns, begun_ns, value, thing, begun_mark or 0, mark, 0, flags)
            marks.collect(now_ns)

    def _note_work(self, kind: int, begun_ns: int) -> None:
        recording = self._recording
        log: Optional[EventLog] = recording.thread.log
        if recording.is_on and log is not None:  # else nothing was trained in this thread so far
            recording.guarded(log.write, kind, monotonic_ns(), begun_ns)
