"""Passes over data: their begins, the iterators that record their batches, and the timed parts of their loaders."""

import functools
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple

import torch
from torch.utils import data

from epochmeter.agent.batch_timer import BatchTimer
from epochmeter.agent.first_forwards import FirstForwards
from epochmeter.agent.frames import hidden, pass_on
from epochmeter.agent.iterators import RecordedIterator
from epochmeter.agent.loader_class import LoaderClass
from epochmeter.agent.loader_workers import StandIn, stand_ins
from epochmeter.agent.phases import ForwardHooks
from epochmeter.agent.recording import Recording, describe_error
from epochmeter.agent.samples import UNKNOWN, BatchSizes, SampleCounter, batch_count, sample_counter
from epochmeter.agent.sampling import LoadingGaps
from epochmeter.agent.weak_values import WeakValues
from epochmeter.shared.events import HAS_GRADIENTS, HIDES_FORWARDS, IS_EXPLICIT, PASS, REPEATED
from epochmeter.shared.protocol import PassOpening
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from epochmeter.agent.replay import Replay

MakeIterator = Callable[[Any], Iterator[Any]]
Begun = Tuple[int, Optional[int], Optional[SampleCounter]]
"""Further arguments of `RecordedIterator`."""


WANTED: Any = object()  # in place of the timed `collate_fn` of the iterator that is being made


class Passes:
    """Records the passes over data of this process.

    Args:
        recording: Where they are recorded.
        forwards: Notes the begins of passes, as the next one.
        first: Whether forward passes can be seen.
        loader_class: The class of loaders besides torch's.
        replay: Replays the loaders; None: they are not replayed.
        prepares: Whether the controller prepares the page cache before each pass.
    """

    def __init__(
        self,
        recording: Recording,
        forwards: ForwardHooks,
        first: FirstForwards,
        loader_class: LoaderClass,
        replay: "Optional[Replay]",
        prepares: bool,
    ) -> None:
        self._recording, self._forwards, self._first = recording, forwards, first
        self._loader_class, self._replay, self._prepares = loader_class, replay, prepares
        self.begin_process()

    def begin_process(self) -> None:
        """Forget what the parent knows of its loaders in a child process."""
        self._sizes: WeakValues[BatchSizes] = WeakValues()  # of loaders, as the next one
        self._gaps: WeakValues[LoadingGaps] = WeakValues()

    @hidden
    def iterate(
        self, loader: Any, make_iterator: MakeIterator, name: str = "", is_explicit: bool = False
    ) -> Iterator[Any]:
        """Return an iterator over a loader that is recorded, unless a recorded iterator makes or uses it."""
        recording = self._recording
        thread = recording.thread
        is_within = thread.is_fetching or recording.brief.cover_request()
        if not recording.is_on or is_within or data.get_worker_info() is not None:
            return make_iterator(loader)
        if self._prepares:
            recording.guarded(self._await_preparation)
        called_ns = monotonic_ns()
        thread.is_fetching, thread.numbered, thread.collate = True, None, WANTED
        try:
            iterator = self._replay.iterate_other(loader, make_iterator) if self._replay else make_iterator(loader)
        finally:
            thread.is_fetching = False
            collate, thread.collate = thread.collate, None
        begun = recording.guarded(self._begin, loader, called_ns, name, is_explicit)
        if begun is None:
            return iterator
        return RecordedIterator(recording, iterator, *begun, None if collate is WANTED else collate)

    @hidden
    def make_torch_iterator(self, loader: Any, make_iterator: MakeIterator) -> Iterator[Any]:
        """Return torch's own iterator over a DataLoader, which notes the sizes of its batches and times them.

        In a replayed run, it is one that replays the DataLoader.
        """
        if self._replay is not None and self._recording.is_on:
            return self._replay.iterate_torch(loader, functools.partial(self._note_sizes, make_iterator))
        return self._note_sizes(make_iterator, loader)

    def repeat(self, loader: object) -> None:
        """Record that a pass of a subclass of DataLoader begins a pass of its base class."""
        self._recording.record(REPEATED, self._recording.facts.loader_number(loader))

    @hidden
    def _note_sizes(self, make_iterator: MakeIterator, loader: Any) -> Iterator[Any]:
        thread = self._recording.thread
        earlier = thread.sizes, thread.parts
        thread.sizes, thread.parts = self._sizes.setdefault(loader, BatchSizes), self._timed_parts(loader)
        try:
            iterator = make_iterator(loader)
            collate = thread.parts.get("collate_fn")
            is_used = getattr(getattr(iterator, "_dataset_fetcher", None), "collate_fn", None) is collate
            if is_used and thread.collate is not None:
                thread.collate = collate
            return iterator
        finally:
            thread.sizes, thread.parts = earlier

    def _timed_parts(self, loader: Any) -> Dict[str, StandIn]:
        """Return the timed parts of a loader; nothing if it is not measured, or of a kind that cannot be timed."""
        recording = self._recording
        if not recording.is_on or data.get_worker_info() is not None:
            return {}
        try:
            gaps = self._gaps.setdefault(loader, LoadingGaps)
            gaps.passes += 1
            number = recording.facts.loader_number(loader)
            recording.thread.numbered = id(loader), number
            timer = BatchTimer(recording, number, recording.folder, os.getpid(), gaps)
            return stand_ins(loader, timer)
        except Exception as error:  # a class of the script
            pass_on(error)
            recording.guarded(recording.facts.write, {"kind": "untimed", "text": describe_error(error)})
            return {}

    def _begin(self, loader: Any, called_ns: int, name: str, is_explicit: bool) -> Begun:
        """Record the begin of a pass."""
        recording, now_ns, length = self._recording, monotonic_ns(), batch_count(loader)
        log = recording.thread.log or recording.new_log()
        recording.update_device()
        self._loader_class.note_around()
        flags = HAS_GRADIENTS if torch.is_grad_enabled() else 0
        flags |= IS_EXPLICIT if is_explicit else 0
        flags |= 0 if self._first.begin_pass() else HIDES_FORWARDS
        facts = recording.facts
        number, name_number = facts.new_number(), facts.name_number(name) if name else 0
        self._forwards.begin_pass()
        batches = UNKNOWN if length is None else float(length)
        # After workers were forked, each page of memory that changes is copied: facts are not compared again.
        known, loader_number = recording.thread.numbered or (0, 0)
        loader_number = loader_number if known == id(loader) else facts.loader_number(loader)
        log.write(PASS, now_ns, called_ns, batches, number, loader_number, 0, name_number, flags)
        recording.connected().wake()
        return number, length, sample_counter(loader, self._sizes.setdefault(loader, BatchSizes))

    def _await_preparation(self) -> None:
        if self._recording.connection is None:
            self._recording.new_log()
        self._recording.connected().request(PassOpening())
