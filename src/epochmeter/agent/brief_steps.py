"""Brief steps: successive short ones whose phases are not timed, in which the agent runs as little code as possible.

Between two steps of a script, the code of the hooks leaves the CPU's caches, so that each function takes microseconds,
not tenths of them. In brief steps, one function delivers the batches, one is called after each backward pass and each
step of an optimizer, and no other hook does anything. They append to a list, which is written to the log before any
other event, and when the phases of a step are timed again. The same events are recorded as in other steps
whose phases are not timed, except that steps of optimizers have no begin.

Only scripts that train in one thread, on the host, have brief steps.
"""

import functools
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

from epochmeter.agent.event_log import EventLog
from epochmeter.agent.facts import FactsFile, learning_rate
from epochmeter.agent.frames import hidden, hide_frames
from epochmeter.agent.samples import UNKNOWN
from epochmeter.agent.sampling import StepSampling
from epochmeter.agent.thread_state import ThreadState
from epochmeter.shared.events import BACKWARD, BATCH, STEP, UNTIMED
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from typing import Protocol  # from Python 3.8 on

    from torch.optim import Optimizer

    class Recorder(Protocol):
        """What brief steps need of the recording."""

        facts: FactsFile
        is_on: bool

        def is_of_script(self, error: BaseException) -> bool: ...

    class Forwards(Protocol):
        """What they need of the hooks of forward passes."""

        is_passive: bool

        @property
        def is_watching(self) -> bool: ...

    class Batches(Protocol):
        """What they need of the recorded iterator of a pass."""

        def __next__(self) -> Any: ...

        def begin_brief(self, deliver: Callable[[], Any]) -> None: ...

        def end_brief(self, kind: type) -> None: ...

        def note_end(self, error: BaseException, requested_ns: int) -> None: ...

    class Collate(Protocol):
        """What they need of the timed function that collates."""

        def skip(self) -> bool: ...

        def resume(self, batches: int) -> None: ...

    class Counter(Protocol):
        """What they need of the counter of samples."""

        def count(self, batch: object) -> float: ...


MIN_STEPS = 2  # in succession, for which exchanging the hooks pays
AfterStep = Callable[["Optimizer", object, object], None]


class Exchange:
    """An entry of a dictionary that is exchanged during brief steps.

    Args:
        entries: The dictionary, such as the attributes of a module.
        key: Of the entry, which is the agent's own.

    Attributes:
        usual: Its value outside brief steps.
    """

    def __init__(self, entries: Dict[Any, Any], key: Any) -> None:
        self._entries, self._key = entries, key
        self.usual, self._brief = entries[key], None

    @property
    def is_possible(self) -> bool:
        """Whether the entry is the agent's: the script has not replaced it."""
        return self._entries.get(self._key) is self.usual

    def set(self, brief: Any) -> None:
        """Exchange it."""
        self._entries[self._key] = self._brief = brief

    def restore(self) -> None:
        """Restore it, unless the script has replaced it."""
        if self._brief is not None and self._entries.get(self._key) is self._brief:
            self._entries[self._key] = self.usual
        self._brief = None


class TrainingHooks:
    """The hooks that do less during brief steps.

    Args:
        before_step: The hook before each step of an optimizer.
        after_step: The hook after it.
        backward: `torch.autograd.backward`, around what it was without the agent.
        backward_ended: Records a backward pass, which has ended.
    """

    def __init__(
        self, before_step: Exchange, after_step: Exchange, backward: Exchange, backward_ended: Callable[[], None]
    ) -> None:
        self._before, self._after, self._backward = before_step, after_step, backward
        self.backward_ended = backward_ended
        self.after_step: AfterStep = after_step.usual
        self.backward = backward.usual

    def are_own(self) -> bool:
        """Return whether they can be exchanged: the script has replaced none."""
        return all(exchange.is_possible for exchange in (self._before, self._after, self._backward))

    def shorten(self, after_step: AfterStep, backward: Callable[..., Any]) -> None:
        """Exchange two hooks for these, and omit the other."""
        self._before.set(do_nothing)
        self._after.set(after_step)
        self._backward.set(backward)

    def restore(self) -> None:
        """Call all hooks again."""
        for exchange in (self._before, self._after, self._backward):
            exchange.restore()


def do_nothing(optimizer: object, arguments: object, keywords: object) -> None:
    """Take the place of the hook before each step."""


class Span:
    """Successive brief steps of one pass.

    Args:
        iterator: The recorded iterator of the pass.
        number: Of the pass.
        log: Of the current thread, which trains.
        sampling: Of the same thread.

    Attributes:
        noted: Events that are not written yet: the kind of each and its values, in the order of `write`.
        batches: How many were delivered and written.
        optimizers: That have made steps, with their numbers, by `id`.
        collate: Does nothing meanwhile.
        counter: Counts the samples of batches, without the batches; None: the loader states them.
        is_fetching: Whether a batch is being requested.
        is_to_end: Whether it ends with the next request.
        is_over: Whether it has ended.
    """

    def __init__(self, iterator: "Batches", number: int, log: EventLog, sampling: StepSampling) -> None:
        self.iterator, self._number, self.log, self._sampling = weakref.ref(iterator), number, log, sampling
        self.kind = type(iterator)
        self.thread = get_ident()
        self.noted: List[Any] = []
        self.batches = 0
        self.optimizers: Dict[int, Tuple[int, Optimizer]] = {}
        self.collate: Optional[Collate] = None
        self.counter: Optional[Counter] = None
        self.is_fetching = self.is_to_end = self.is_over = self._is_writing = False

    def write(self) -> None:
        """Write what was noted to the log."""
        if self._is_writing:
            return  # the log writes, or the garbage collector has deleted an iterator meanwhile
        self._is_writing = True
        try:
            events = [*self.noted]
            del self.noted[: len(events)]
            self._write(iter(events))
        finally:
            self._is_writing = False

    def _write(self, noted: Iterator[Any]) -> None:
        write = self.log.write
        for kind in noted:
            if kind == BATCH:
                requested_ns, arrived_ns = next(noted), next(noted)
                samples = UNKNOWN if self.counter is None else self.counter.count(None)
                write(BATCH, arrived_ns, requested_ns, samples, self._number, 0, 0, 0, UNTIMED)
                self._sampling.left = max(0, self._sampling.left - 1)
                self.batches += 1
            elif kind == BACKWARD:
                write(BACKWARD, next(noted), 0, UNKNOWN)
            else:
                ended_ns, rate, optimizer = next(noted), next(noted), next(noted)
                write(STEP, ended_ns, 0, rate, optimizer)


class BriefSteps:
    """The brief steps of a process, which are those of one pass at a time.

    Args:
        recording: Where they are recorded.
        forwards: The hooks of forward passes.

    Attributes:
        hooks: Do less meanwhile; None: there are no brief steps.
    """

    def __init__(self, recording: "Recorder", forwards: "Forwards") -> None:
        self._recording, self._forwards = recording, forwards
        self.hooks: Optional[TrainingHooks] = None
        self._span: Optional[Span] = None
        self._is_forbidden = False

    def begin(
        self,
        iterator: "Batches",
        wrapped: Any,
        number: int,
        thread: ThreadState,
        collate: "Optional[Collate]",
        counter: "Optional[Counter]",
    ) -> None:
        """Begin brief steps with a batch that has arrived, if that is possible.

        Args:
            iterator: That delivers the batch.
            wrapped: The script's own iterator.
            number: Of the pass.
            thread: State of this thread; the steps until its next timed one are brief.
            collate: Times the batches that are loaded in this process, which ends meanwhile; None: nothing does.
            counter: Counts the samples of its batches by their indices; None: the loader states them.
        """
        hooks, count, log = self.hooks, thread.sampling.left, thread.log
        if hooks is None or log is None or self._is_forbidden or count < MIN_STEPS:
            return
        if self._span is not None or self._forwards.is_watching or thread.step_begins:
            return
        span = Span(iterator, number, log, thread.sampling)
        if not hooks.are_own():
            return
        self._span = span
        hooks.shorten(self._noted_steps(span, hooks), self._noted_backwards(span, hooks))
        self._forwards.is_passive = True
        span.counter = counter
        if collate is not None and collate.skip():
            span.collate = collate
        log.before_write = span.write
        iterator.begin_brief(self._delivered(span, count, functools.partial(next, wrapped)))

    def cover_request(self) -> bool:
        """Return whether a request or a begin of a pass is within a request of brief steps; if not, they end."""
        span = self._span
        if span is None:
            return False
        if span.is_fetching and span.thread == get_ident():
            return True
        self.end()
        return False

    def end(self) -> None:
        """End the brief steps: in another thread, the hooks do as before at once, and it ends with its next request."""
        span = self._span
        if span is None:
            return
        if span.thread == get_ident():
            self._end_safely(span)
        else:
            span.is_to_end = True
            self._restore()
            span.write()

    def forbid(self) -> None:
        """End the brief steps, and begin no more."""
        self._is_forbidden = True
        self.end()

    def forget(self) -> None:
        """Forget in a child process what its parent has noted."""
        if self._span is not None:
            self._span.noted.clear()
            self._end(self._span)

    def _end_safely(self, span: Span) -> None:
        """End a span; an error of the agent ends recording."""
        try:
            self._end(span)
        except BaseException as error:
            if self._recording.is_of_script(error):
                raise

    def _end(self, span: Span) -> None:
        if span.is_over:
            return
        try:
            self._restore()
            iterator = span.iterator()
            if iterator is not None:
                iterator.end_brief(span.kind)
            span.log.before_write = None
            span.write()
            if span.collate is not None:
                span.collate.resume(span.batches)
        finally:
            span.is_over, self._span = True, None

    def _restore(self) -> None:
        """Let the hooks do as before."""
        self._forwards.is_passive = False
        if self.hooks is not None:
            self.hooks.restore()

    # What runs in each brief step. The script may keep these functions for longer.

    def _noted_steps(self, span: Span, hooks: TrainingHooks) -> AfterStep:
        """Return the hook after each step of an optimizer in a span."""
        note, thread, optimizers, usual = span.noted.extend, span.thread, span.optimizers, hooks.after_step

        def after_step(optimizer: "Optimizer", arguments: object, keywords: object) -> None:
            try:
                known = optimizers.get(id(optimizer)) or self._known(span, optimizer)
                if known is not None and not span.is_over and get_ident() == thread:
                    note((STEP, monotonic_ns(), learning_rate(optimizer), known[0]))
                    return None
            except BaseException as error:
                if self._recording.is_of_script(error):
                    raise
            return usual(optimizer, arguments, keywords)

        return after_step

    def _known(self, span: Span, optimizer: "Optimizer") -> "Optional[Tuple[int, Optimizer]]":
        """Return the number of an optimizer, and itself; None if it has no facts, which it gets outside brief steps."""
        number = None if span.is_over else self._recording.facts.optimizers.get(optimizer)
        if number is None:
            self.end()
            return None
        known = span.optimizers[id(optimizer)] = number, optimizer
        return known

    def _noted_backwards(self, span: Span, hooks: TrainingHooks) -> Callable[..., Any]:
        """Return what takes the place of `torch.autograd.backward` in a span."""
        note, thread, usual, ended = span.noted.extend, span.thread, hooks.backward, hooks.backward_ended
        function = usual.__wrapped__

        @hidden
        def backward(*arguments: Any, **keywords: Any) -> Any:
            if span.is_over or get_ident() != thread:
                return usual(*arguments, **keywords)
            try:
                result = function(*arguments, **keywords)
            except BaseException as error:
                hide_frames(error)
                raise
            try:
                if span.is_over:
                    ended()
                else:
                    note((BACKWARD, monotonic_ns()))
            except BaseException as error:
                if self._recording.is_of_script(error):
                    raise
            return result

        named: Any = backward
        named.__wrapped__, named.__module__, named.__qualname__ = function, usual.__module__, usual.__qualname__
        return backward

    def _delivered(self, span: Span, count: int, fetch: Callable[[], Any]) -> Callable[[], Any]:
        """Return what delivers so many batches, and notes when each is requested and arrives; then as outside spans."""
        note, thread, left = span.noted.extend, span.thread, count

        @hidden
        def deliver() -> Any:
            nonlocal left
            if span.is_over or span.is_to_end or get_ident() != thread:
                return self._usual_batch(span, fetch)
            requested_ns = monotonic_ns()
            span.is_fetching = True
            try:
                batch = fetch()
            except BaseException as error:
                span.is_fetching = False
                self._end_safely(span)
                iterator = span.iterator()
                if iterator is not None:
                    iterator.note_end(error, requested_ns)
                hide_frames(error)
                raise
            span.is_fetching = False
            try:
                note((BATCH, requested_ns, monotonic_ns()))
                left -= 1
                if left <= 0:
                    self._end(span)
                elif span.is_over and self._recording.is_on:  # it has ended within the request
                    span.write()
            except BaseException as error:
                if self._recording.is_of_script(error):
                    raise
            return batch

        return deliver

    @hidden
    def _usual_batch(self, span: Span, fetch: Callable[[], Any]) -> Any:
        """Deliver a batch as outside brief steps."""
        if span.thread == get_ident():
            self._end_safely(span)
        iterator, usual = span.iterator(), span.kind.__next__  # type: Any, Any
        try:
            if iterator is None:
                return fetch()  # the script has deleted it, and kept a method
            return usual(iterator)
        except BaseException as error:
            hide_frames(error)
            raise
