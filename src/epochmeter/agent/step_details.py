"""Details of a few steps besides their events: a trace of PyTorch's profiler, and the operators of one step.

Only the first rank records them.
"""

from typing import Callable, Optional, Union

import torch

from epochmeter.agent.frames import pass_on
from epochmeter.agent.iterators import PassProgress
from epochmeter.agent.operators import Facts, OperatorTrace
from epochmeter.agent.recording import Recording, describe_error
from epochmeter.agent.tracing import ScriptTrace
from epochmeter.shared.events import COUNTED
from epochmeter.shared.protocol import Traced, TraceFailed
from epochmeter.worker.timeline import monotonic_ns


class StepDetails:
    """Records the trace and the operators of steps, until both are complete.

    Args:
        recording: Whose `details` this is, until then.
        trace: The trace; None: none is asked for.
        operators: The record of operators; None: none is asked for.
        model: Returns the module of the last noted forward pass, unless it was deleted.

    Attributes:
        trace: The trace; None: there is none, or it is complete.
    """

    def __init__(
        self,
        recording: Recording,
        trace: Optional[ScriptTrace],
        operators: Optional[OperatorTrace],
        model: Callable[[], Optional[torch.nn.Module]],
    ) -> None:
        self._recording, self.trace, self._operators, self._model = recording, trace, operators, model

    def request(self, progress: PassProgress) -> None:
        """Note a request of a batch, before which a traced step, or one whose operators are recorded, may end."""
        if self.trace is not None:
            self._recording.guarded(self._trace_step, self.trace, progress)
        if self._operators is not None:
            self._count(self._operators.requested, progress, self._recording.thread.steps)

    def deliver(self, progress: PassProgress, number: int) -> None:
        """Note the arrival of a batch of the pass with a number, which may begin such a step."""
        if self._operators is not None:
            self._count(self._operators.delivered, progress, number, self._recording.thread.steps)

    def train(self, steps: int) -> None:
        """Note a training step, which is the current thread's last one of so many."""
        if self._operators is not None:
            self._operators.trained(steps)

    def drop(self, number: int) -> None:
        """Note that the iterator of a pass was deleted."""
        if self._operators is not None:
            self._write_counted(self._operators.ended, number, self._recording.thread.steps)

    def end_pass(self) -> None:
        """Note that a pass has ended, with which a trace ends."""
        if self.trace is not None:
            self._report(self.trace.close())

    def end(self) -> None:
        """Write the facts on operators at the end of the script."""
        if self._operators is not None:
            self._count(self._operators.close)

    def discard(self) -> None:
        """End without facts on operators."""
        if self._operators is not None:
            self._operators.discard()
        self.end_pass()

    def forget(self) -> None:
        """Forget in a child process what its parent records."""
        if self._operators is not None:
            self._operators.forget()

    def _trace_step(self, trace: ScriptTrace, progress: PassProgress) -> None:
        self._report(trace.step(progress, self._recording.thread.steps, self._model()))

    def _report(self, message: Union[Traced, TraceFailed, None]) -> None:
        """Send the result of the trace, if there is one, and end tracing."""
        connection = self._recording.connection
        if message is not None and connection is not None:
            self.trace = None
            self._end_if_complete()
            connection.send(message)

    def _count(self, act: Callable[..., Optional[Facts]], *arguments: object) -> None:
        """Call a method of the record of operators, and write the facts that it returns; an error ends that record."""
        self._recording.guarded(self._write_counted, act, *arguments)

    def _write_counted(self, act: Callable[..., Optional[Facts]], *arguments: object) -> None:
        try:
            facts = act(*arguments)
        except Exception as error:
            pass_on(error)
            facts = {"reason": describe_error(error)}
        if facts is None:
            return
        self._operators = None
        self._end_if_complete()
        recording = self._recording
        number, log = recording.facts.new_number(), recording.thread.log or recording.new_log()
        recording.facts.write(dict(facts, kind="operators", object=number))
        if "file" in facts:
            log.write(COUNTED, monotonic_ns(), facts["begun_ns"], 0.0, facts["pass"], number)

    def _end_if_complete(self) -> None:
        if self.trace is None and self._operators is None:
            self._recording.details = None
