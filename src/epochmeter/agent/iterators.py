"""Iterators over a script's data that deliver the same batches and errors as without the agent."""

import functools
import operator
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

from epochmeter.agent.brief_steps import BriefSteps
from epochmeter.agent.event_log import EventLog
from epochmeter.agent.frames import hidden, hide_frames
from epochmeter.agent.samples import UNKNOWN
from epochmeter.agent.thread_state import ThreadState
from epochmeter.agent.tokens import count_tokens
from epochmeter.agent.wrapper import Wrapper
from epochmeter.shared.events import BATCH, DROPPED, END, FAILED, HAS_DEVICE_TIME, TOKENS
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from typing import Protocol  # from Python 3.8 on

    from epochmeter.agent.loader_workers import TimedCollate
    from epochmeter.agent.samples import SampleCounter

    class Details(Protocol):
        """What an iterator needs of the details of steps."""

        def request(self, progress: "PassProgress") -> None: ...

        def deliver(self, progress: "PassProgress", number: int) -> None: ...

    class Recorder(Protocol):
        """What an iterator needs of the agent."""

        thread: ThreadState
        is_on: bool
        brief: BriefSteps

        @property
        def details(self) -> "Optional[Details]":
            """None: nothing is recorded of single steps besides events, or nothing more."""

        def new_log(self) -> EventLog: ...

        def record(self, kind: int, number: int, begun_ns: int) -> None: ...

        def is_of_script(self, error: BaseException) -> bool: ...


class PassProgress:
    """What the profiler and the record of operators need to know of a pass.

    Attributes:
        length: Number of batches; None if it is not known.
        batches: Number of requested batches, until the profiler has traced some steps.
        begun_steps: Number of the thread's training steps before the pass.
        epoch: Number of the pass among those that train; None: it has not trained so far.
        training: Number of the thread's training steps at the last request, until the operators of a step are recorded.
        waiting: Number of delivered batches since the last training, likewise.
        has_trained: Whether it has trained, likewise.
    """

    def __init__(self, length: Optional[int], begun_steps: int) -> None:
        self.length, self.begun_steps = length, begun_steps
        self.batches = 0
        self.epoch: Optional[int] = None
        self.training, self.waiting, self.has_trained = begun_steps, 0, False


class RecordedIterator(Wrapper):
    """Iterator over a loader, around the loader's own iterator, that records the requests of batches.

    Args:
        recorder: The agent, whose `thread` has the log and the state of the current thread.
        number: Number of the pass in the log.
        length: Number of its batches; None if it is not known.
        counter: Counts the samples of its batches; None: the loader states them.
        collate: Times the batches that are loaded in this process; None: nothing does.
    """

    def __init__(
        self,
        recorder: "Recorder",
        iterator: Iterator[Any],
        number: int,
        length: Optional[int],
        counter: "Optional[SampleCounter]",
        collate: "Optional[TimedCollate]" = None,
    ) -> None:
        self._recorder, self._number, self._counter, self._collate = recorder, number, counter, collate
        self._has_ended, self._has_tokens = False, True  # until a batch has none
        self._progress = PassProgress(length, recorder.thread.steps)
        super().__init__(recorder, iterator)

    def __iter__(self) -> "RecordedIterator":
        return self

    @hidden
    def __next__(self) -> Any:
        # Runs in every step with cold CPU caches: each call of a function takes about a microsecond.
        recorder = self._recorder
        thread = recorder.thread
        if not recorder.is_on or thread.is_fetching or recorder.brief.cover_request():
            try:
                return next(self._wrapped)
            except BaseException as error:
                hide_frames(error)
                raise
        if recorder.details is not None:
            recorder.details.request(self._progress)
        marks = thread.marks
        mark = None if marks is None else marks.record()
        requested_ns = monotonic_ns()
        thread.is_fetching = True
        try:
            batch = next(self._wrapped)
        except BaseException as error:
            thread.is_fetching = False
            self.note_end(error, requested_ns)
            hide_frames(error)
            raise
        thread.is_fetching = False
        try:
            samples = UNKNOWN if self._counter is None else self._counter.count(batch)
            log, sampling, number = thread.log or recorder.new_log(), thread.sampling, self._number
            if sampling.left and sampling.decider == number and not sampling.rival:
                sampling.left -= 1
            else:
                sampling.choose(number, requested_ns, self._progress.length)
            flags = sampling.untimed
            if sampling.left:
                self._begin_brief(thread)
            # Read late: what follows is a part of the step's preparation.
            if marks is None or mark is None:
                log.write(BATCH, monotonic_ns(), requested_ns, samples, number, 0, 0, 0, flags)
            else:
                now_ns = monotonic_ns()
                marks.record()
                log.write(BATCH, now_ns, requested_ns, samples, number, 0, mark, 0, flags | HAS_DEVICE_TIME)
                marks.collect(now_ns)
            if self._has_tokens:
                self._note_tokens(log, batch)
        except BaseException as error:
            if recorder.is_of_script(error):
                raise
        if recorder.details is not None:
            recorder.details.deliver(self._progress, self._number)
        return batch

    def note_end(self, error: BaseException, requested_ns: int) -> None:
        """Record that a request had an error, in place of a batch."""
        self._has_ended = isinstance(error, StopIteration)
        if self._counter is not None and not self._has_ended:
            self._counter.fail()
        self._recorder.record(END if self._has_ended else FAILED, self._number, requested_ns)

    def _begin_brief(self, thread: ThreadState) -> None:
        """Begin brief steps with an untimed one, if that is possible."""
        recorder = self._recorder
        needs_batch = self._has_tokens or not (self._counter is None or self._counter.is_by_index)
        is_plain = not needs_batch and thread.marks is None and recorder.details is None
        if is_plain and thread.sampling.decider == self._number:
            recorder.brief.begin(self, self._wrapped, self._number, thread, self._collate, self._counter)

    def begin_brief(self, deliver: Callable[[], Any]) -> None:
        """Let a function deliver the next batches, without a call of a method here."""
        kind: Any = type(self)
        self.__dict__["_deliver"] = deliver
        set_class(self, brief_kind(kind))

    def end_brief(self, kind: type) -> None:
        """Deliver the next batches as before, when the class was this one."""
        self.__dict__.pop("_deliver", None)
        set_class(self, kind)

    def _note_tokens(self, log: EventLog, batch: Any) -> None:
        counted = count_tokens(batch)
        if counted is None:
            self._has_tokens = False
        else:
            tokens, with_padding = counted
            log.write(TOKENS, monotonic_ns(), with_padding, tokens, self._number)

    def __del__(self) -> None:
        if self.__dict__.get("_has_ended", True) or not self._recorder.is_on:
            return
        begun_ns = monotonic_ns()
        self._wrapped = None  # its workers stop now
        self._recorder.record(DROPPED, self._number, begun_ns)


class BriefNext(property):
    """Method `__next__` that is an attribute of the object, so that none of this class is called."""

    def __call__(self, iterator: Any) -> Any:
        return iterator._deliver()


@functools.lru_cache(maxsize=None)
def brief_kind(kind: Any) -> type:
    """Return a subclass of a class of recorded iterators whose next batch comes from the attribute `_deliver`."""
    return type(kind.__name__, (kind,), {"__next__": BriefNext(operator.attrgetter("_deliver"))})


set_class: Callable[[object, type], None] = object.__dict__["__class__"].__set__
