"""The agent in a script's process: it records what happens, and decides nothing.

The controller derives epochs and evaluations from the events (package `segmentation`). The agent draws no random
numbers, changes no batch, and waits for the controller only if the page cache is prepared before each pass, or if a
`Meter` is asked for a result. Without a controller it records as before. If it fails, it reports that once and records
no more; the script continues.
"""

import itertools
import os
import sys
import weakref
from typing import TYPE_CHECKING, List, Optional

from epochmeter.agent.brief_steps import BriefSteps
from epochmeter.agent.first_forwards import FirstForwards
from epochmeter.agent.loader_class import LoaderClass
from epochmeter.agent.passes import Passes
from epochmeter.agent.phases import ForwardHooks
from epochmeter.agent.recording import Recording, describe_error
from epochmeter.agent.samples import UNKNOWN
from epochmeter.agent.training_events import TrainingEvents
from epochmeter.shared import events
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import Asked, Finished, Loaded, NotReplayed, RankFailed, Recorded
from epochmeter.shared.types import Document
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from epochmeter.agent.replay import Replay
    from epochmeter.agent.step_details import StepDetails
    from epochmeter.agent.tracing import ScriptTrace


class Agent(Recording):
    """Records the training in this process, and asks the controller for the results of a `Meter`.

    Args:
        socket: Path of the controller's socket; None: there is no controller.
        logs: Folder of the logs.
        folder: The run folder, for the profiler's trace.
        prepares_passes: Whether the controller prepares the page cache before each pass.
        trace: Further arguments of `ScriptTrace`; None: no trace.
        loader: Class, `MODULE:CLASS`, whose passes are recorded besides those of DataLoaders; None: there is none.
        replay: Number of batches after which a pass of unknown length counts as endless, if the loaders are replayed.
        counts: Whether the operators of one step are recorded.

    Attributes:
        passes: Records passes over data.
        training: Records training steps.
        forwards: Records forward passes.
    """

    def __init__(
        self,
        socket: Optional[str],
        logs: str,
        folder: str,
        prepares_passes: bool = False,
        trace: Optional[Document] = None,
        loader: Optional[str] = None,
        replay: Optional[int] = None,
        counts: bool = False,
    ) -> None:
        super().__init__(socket, logs)
        self.loader_class = LoaderClass(loader)
        self.training = TrainingEvents(self)
        self.forwards = ForwardHooks(self, self.training)
        self.brief = BriefSteps(self, self.forwards)
        self._first_forwards = FirstForwards(self, self.forwards)
        self._trace: "Optional[ScriptTrace]" = None
        self._replay: "Optional[Replay]" = None
        self._counts = counts
        # The script waits for these imports: they are only for what it is asked for.
        if trace:
            from epochmeter.agent.tracing import ScriptTrace

            self._trace = ScriptTrace(folder, **trace)
        if replay is not None:
            from epochmeter.agent.replay import Replay

            self._replay = Replay(replay, self._steps, self._note_loaded, self._note_not_replayed, self.is_lost)
        self.passes = Passes(
            self, self.forwards, self._first_forwards, self.loader_class, self._replay, prepares_passes
        )
        self._windows = itertools.count(1)
        self.begin_process()
        if hasattr(os, "register_at_fork"):
            begin = weakref.WeakMethod(self.begin_process)
            os.register_at_fork(after_in_child=lambda: (begin() or int)())

    def begin_process(self) -> None:
        """Begin to record a process; a child has logs of its own, and must not write to those of its parent."""
        self.brief.forget()
        super().begin_process()
        self.passes.begin_process()
        self._first_forwards.begin_process()
        trace, self._trace = self._trace, None  # of the first process; a child may continue it
        if self.details is not None:
            self.details.forget()
            trace = self.details.trace
        self.details = self._new_details(trace) if trace is not None or self._counts else None

    def _new_details(self, trace: "Optional[ScriptTrace]") -> "StepDetails":
        from epochmeter.agent.operators import OperatorTrace
        from epochmeter.agent.step_details import StepDetails

        first = self._first_forwards
        return StepDetails(self, trace, OperatorTrace(self.folder) if self._counts else None, lambda: first.model())

    # A `Meter`

    def measurement(self, name: str) -> Optional[Recorded]:
        """Return the controller's `Recorded` of the last window of a name; None if there is none so far."""
        return self.guarded(self._ask, name)

    def open_window(self, name: str) -> float:
        """Record the begin of a window of the script's own, and return its number."""
        number = float(next(self._windows))
        self.record(events.OPENED, self.facts.name_number(name), value=number)
        return number

    def close_window(self, name: str, number: float) -> None:
        """Record the end of a window of the script's own."""
        self.record(events.CLOSED, self.facts.name_number(name), value=number)

    def end_window(self) -> None:
        """Record that the open pass over data ends now."""
        self.record(events.CLOSED)

    def expect_epochs(self, count: Optional[int]) -> None:
        """Record how many epochs follow; None: it is not known."""
        self.record(events.EXPECTED, value=UNKNOWN if count is None else float(count))

    def note_unused(self, keys: List[str]) -> None:
        """Note that these keys of a `Meter` have no effect, since another command has started the controller."""
        self.guarded(self.facts.write, {"kind": "unused", "keys": keys})

    def _ask(self, name: str) -> Optional[Recorded]:
        if self.connection is None:
            return None
        if not self.connection.lost:
            self.brief.end()
            self.write_marks()
        reply = self.connection.request(Asked(name, str(os.getpid())))
        self.reason = self.connection.lost
        return reply if isinstance(reply, Recorded) else None

    # A replayed run

    def _steps(self) -> int:
        return self.thread.steps

    def _note_loaded(self) -> None:
        """Report that a loader of a replayed run delivers batches itself."""
        self.guarded(self.send, Loaded(monotonic_ns()))

    def _note_not_replayed(self, problem: Problem) -> None:
        self.guarded(self.send, NotReplayed(problem))

    # The ends of passes, and of the script

    def _record(self, kind: int, thing: int, begun_ns: int, value: float) -> None:
        if kind in (events.END, events.DROPPED):
            self.brief.end()
        if self.details is not None and kind == events.DROPPED:
            self.details.drop(thing)
        super()._record(kind, thing, begun_ns, value)
        if kind in (events.END, events.DROPPED):
            self.thread.sampling.end(thing)
            self.forwards.end_pass()
            if self.details is not None:
                self.details.end_pass()

    def end(self, error: Optional[BaseException] = None) -> None:
        """End recording at the script's end; `error` ended it, if given."""
        if not self.is_on or self.connection is None:
            return
        is_interactive = hasattr(sys, "ps1") or "IPython" in sys.modules  # it continues after an exception
        if error is None and not is_interactive:
            error = getattr(sys, "last_value", None)
        self.guarded(self.brief.end)
        if self.details is not None:
            self.details.end()
        self.guarded(self.write_marks)
        self.guarded(self._write_loader_facts)
        text = "" if error is None else describe_error(error)
        self.guarded(self.facts.write, {"kind": "end", "error": text, "ended_ns": monotonic_ns()})
        self.switch_off(RankFailed(Problem(text), 0) if text else Finished())

    def unhook(self) -> None:
        """Remove the hooks that are installed while the script runs."""
        self.brief.forbid()
        self._first_forwards.remove()
        self.forwards.remove()
        if self.details is not None:
            self.details.discard()

    def compiling(self) -> None:
        """Note that the script begins or ends a call of `torch.compile`."""
        self.guarded(self.brief.forbid)
        self.guarded(self._first_forwards.remove)
        self.guarded(self.forwards.compile)

    def _write_loader_facts(self) -> None:
        """Write which loaders were not measured, for a script that trains without a measured pass."""
        loaders = self.loader_class
        facts = {"problem": loaders.problem, "unmeasured": loaders.unmeasured(), "around": sorted(loaders.around)}
        if any(facts.values()):
            self.facts.write(dict(facts, kind="loaders"))
