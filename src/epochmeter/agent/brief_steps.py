"""Brief steps: successive short ones whose phases are not timed, in which the agent runs as little code as possible.

Between two steps of a script, the code of the hooks leaves the CPU's caches, so that each function takes microseconds,
not tenths of them. In brief steps, a generator delivers the batches, one function is called after each backward pass
and each step of an optimizer, and no other hook does anything. They append to a list, which is written to the log
before any other event, and when the phases of a step are timed again. The same events are recorded as in other steps
whose phases are not timed, except that steps of optimizers have no begin.

Only scripts that train in one thread, on the host, have brief steps.
"""

import functools
import weakref
from threading import get_ident
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, List, Optional, Tuple

from torch.utils.data import dataloader

from epochmeter.agent.event_log import EventLog
from epochmeter.agent.facts import FactsFile, as_float
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


MIN_STEPS = 2  # in succession, for which exchanging the hooks pays
ITERATORS: Tuple[type, ...] = (GeneratorType, *filter(None, [getattr(dataloader, "_BaseDataLoaderIter", None)]))
"""Kinds of iterators that two threads cannot use at the same time, as they cannot use a generator."""
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
    """

    def __init__(self, before_step: Exchange, after_step: Exchange, backward: Exchange) -> None:
        self._before, self._after, self._backward = before_step, after_step, backward
        self.after_step: AfterStep = after_step.usual
        self.backward = backward.usual

    def shorten(self, after_step: AfterStep, backward: Callable[..., Any]) -> bool:
        """Exchange two hooks for these, and omit the other; return whether that is possible."""
        exchanges = self._before, self._after, self._backward
        if not all(exchange.is_possible for exchange in exchanges):
            return False
        self._before.set(do_nothing)
        self._after.set(after_step)
        self._backward.set(backward)
        return True

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
        is_to_end: Whether it ends with the next request.
        generator: Delivers its batches.
    """

    generator: Any

    def __init__(self, iterator: "Batches", number: int, log: EventLog, sampling: StepSampling) -> None:
        self.iterator, self._number, self.log, self._sampling = weakref.ref(iterator), number, log, sampling
        self.kind = type(iterator)
        self.thread = get_ident()
        self.noted: List[Any] = []
        self.batches = 0
        self.optimizers: Dict[int, Tuple[int, Optimizer]] = {}
        self.collate: Optional[Collate] = None
        self.is_to_end = False

    def write(self) -> None:
        """Write what was noted to the log."""
        noted, write = iter([*self.noted]), self.log.write
        self.noted.clear()
        for kind in noted:
            if kind == BATCH:
                requested_ns, arrived_ns = next(noted), next(noted)
                write(BATCH, arrived_ns, requested_ns, UNKNOWN, self._number, 0, 0, 0, UNTIMED)
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
    ) -> None:
        """Begin brief steps with a batch that has arrived, if that is possible.

        Args:
            iterator: That delivers the batch.
            wrapped: The script's own iterator.
            number: Of the pass.
            thread: State of this thread; the steps until its next timed one are brief.
            collate: Times the batches that are loaded in this process, which ends meanwhile; None: nothing does.
        """
        hooks, count, log = self.hooks, thread.sampling.left, thread.log
        if hooks is None or log is None or self._is_forbidden or count < MIN_STEPS:
            return
        if self._span is not None or self._forwards.is_watching or not isinstance(wrapped, ITERATORS):
            return
        span = Span(iterator, number, log, thread.sampling)
        if not hooks.shorten(self._noted_steps(span, hooks.after_step), self._noted_backwards(span, hooks.backward)):
            return
        self._span, self._forwards.is_passive = span, True
        if collate is not None and collate.skip():
            span.collate = collate
        span.generator = self._batches(span, count, functools.partial(next, wrapped))
        log.before_write = self._write
        iterator.begin_brief(span.generator.__next__)

    def cover_request(self) -> bool:
        """Return whether a request or a begin of a pass is within a request of brief steps; if not, they end."""
        span = self._span
        if span is None:
            return False
        if span.generator.gi_running and span.thread == get_ident():
            return True
        self.end()
        return False

    def end(self) -> None:
        """End the brief steps: those of another thread with its next request."""
        span = self._span
        if span is None:
            return
        if span.thread == get_ident():
            self._end_safely(span)
        else:
            span.is_to_end = True

    def forbid(self) -> None:
        """End the brief steps, and begin no more."""
        self._is_forbidden = True
        self.end()

    def forget(self) -> None:
        """Forget in a child process what its parent has noted."""
        if self._span is not None:
            self._span.noted.clear()
            self._end(self._span)

    def _write(self) -> None:
        """Write what was noted before another event of the same thread."""
        span = self._span
        if span is not None:
            span.log.before_write = None
            span.write()
            span.log.before_write = self._write

    def _end_safely(self, span: Span) -> None:
        """End a span; an error of the agent ends recording."""
        try:
            self._end(span)
        except BaseException as error:
            if self._recording.is_of_script(error):
                raise

    def _end(self, span: Span) -> None:
        if self._span is not span:
            return  # it has ended
        try:
            iterator = span.iterator()
            if iterator is not None:
                iterator.end_brief(span.kind)
            if self.hooks is not None:
                self.hooks.restore()
            self._forwards.is_passive = False
            span.log.before_write = None
            span.write()
            if span.collate is not None:
                span.collate.resume(span.batches)
        finally:
            self._span = None

    # What runs in each brief step

    def _noted_steps(self, span: Span, usual: AfterStep) -> AfterStep:
        """Return the hook after each step of an optimizer in a span; `usual` is that outside it."""
        note, thread, optimizers = span.noted.extend, span.thread, span.optimizers

        def after_step(optimizer: "Optimizer", arguments: object, keywords: object) -> None:
            known = optimizers.get(id(optimizer)) or self._known(span, optimizer)
            if known is None or get_ident() != thread:
                return usual(optimizer, arguments, keywords)
            try:
                rate = optimizer.param_groups[0]["lr"]
                rate = rate if type(rate) is float else as_float(rate)
            except Exception:  # a class of the script
                rate = UNKNOWN
            note((STEP, monotonic_ns(), rate, known[0]))
            return None

        return after_step

    def _known(self, span: Span, optimizer: "Optimizer") -> "Optional[Tuple[int, Optimizer]]":
        """Return the number of an optimizer, and itself; None if it has no facts, which it gets outside brief steps."""
        number = self._recording.facts.optimizers.get(optimizer)
        if number is None:
            self.end()
            return None
        known = span.optimizers[id(optimizer)] = number, optimizer
        return known

    def _noted_backwards(self, span: Span, usual: Any) -> Callable[..., Any]:
        """Return what takes the place of `torch.autograd.backward` in a span; `usual` does outside it."""
        note, thread, function = span.noted.extend, span.thread, usual.__wrapped__  # type: Any, int, Any

        @hidden
        def backward(*arguments: Any, **keywords: Any) -> Any:
            if get_ident() != thread:
                return usual(*arguments, **keywords)
            try:
                result = function(*arguments, **keywords)
            except BaseException as error:
                hide_frames(error)
                raise
            note((BACKWARD, monotonic_ns()))
            return result

        named: Any = backward
        named.__wrapped__, named.__module__, named.__qualname__ = function, usual.__module__, usual.__qualname__
        return backward

    @hidden
    def _batches(self, span: Span, count: int, fetch: Callable[[], Any]) -> "Generator[Any, None, Any]":
        """Deliver so many batches, and note when each is requested and arrives."""
        # Keeps no batch: the script may need the memory.
        note, thread, own = span.noted.extend, span.thread, []  # type: Any, int, List[Any]
        keep, take = own.append, own.pop
        next_of: Any = span.kind.__next__
        try:
            for is_last in (count - 1) * [False] + [True]:
                if span.is_to_end or get_ident() != thread:
                    break
                requested_ns = monotonic_ns()
                try:
                    keep(fetch())
                except BaseException as error:
                    self._end_safely(span)
                    iterator = span.iterator()
                    if iterator is not None:
                        iterator.note_end(error, requested_ns)
                    raise
                note((BATCH, requested_ns, monotonic_ns()))
                if is_last:
                    self._end_safely(span)
                yield take()
            self._end_safely(span)
            keep(next_of(span.iterator()))
            yield take()
        except StopIteration as error:
            return error.value
        except BaseException as error:
            self._end_safely(span)
            hide_frames(error)
            raise
