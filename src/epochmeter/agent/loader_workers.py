"""Takes the places of a DataLoader's parts in torch's iterators, to time the batches where they are loaded.

While torch makes an iterator, the DataLoader gives it stand-ins for `dataset`, `collate_fn` and `worker_init_fn`
(`LoaderPart`). They notice when a batch begins and when its samples are collated, so that clocks are read per batch
and not per sample, and no function of the agent is between torch and a sample. The script finds its own objects, also
in `get_worker_info().dataset`.
"""

import functools
import operator
import sys
from typing import Any, Callable, Dict, Iterator, Optional

from torch.utils import data

from epochmeter.agent.batch_timer import BatchTimer
from epochmeter.agent.frames import Suppressed, hidden, hide_frames
from epochmeter.agent.spawned import REBUILT

PARTS = ("dataset", "collate_fn", "worker_init_fn")
"""Attributes of a DataLoader that its iterators use."""
DATALOADER = data.DataLoader.__module__
PIPES = tuple(getattr(data, name) for name in ("IterDataPipe", "MapDataPipe") if hasattr(data, name))
"""Datasets that torch treats specially, and that are not timed."""


class StandIn:
    """Takes the place of an object of the script in torch's iterator; to `isinstance`, it is that object."""

    def __init__(self, original: Any, timer: BatchTimer) -> None:
        self._original, self._timer = original, timer

    __class__: Any = property(lambda self: self._original.__class__)

    def __getattr__(self, name: str) -> Any:
        if "_original" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._original, name)

    def __repr__(self) -> str:
        return repr(self._original)

    def __str__(self) -> str:
        return str(self._original)

    def __reduce_ex__(self, protocol: object) -> Any:
        return REBUILT, (type(self).part, self._original, self._timer)

    part = ""


class TimedCollate(StandIn):
    """Takes the place of `collate_fn`.

    `dataset` takes the place of the dataset in the training process.
    """

    part = "collate_fn"

    def __init__(self, original: Any, timer: BatchTimer, dataset: Optional[StandIn] = None) -> None:
        super().__init__(original, timer)
        self._dataset = dataset if isinstance(dataset, NotedSamples) else None

    @hidden
    def __call__(self, samples: Any) -> Any:
        timer = self._timer
        is_timed = timer.is_worker or not timer.skipped
        if is_timed:
            timer.end_fetch()
        try:
            batch = self._original(samples)
        except BaseException as error:
            timer.fail()
            hide_frames(error)
            raise
        if is_timed:
            timer.end()
            if timer.skipped and self._dataset is not None and not timer.is_worker:
                self._dataset.skip_batches()
            return batch
        timer.is_begun = False
        timer.skipped -= 1
        if not timer.skipped and self._dataset is not None:
            self._dataset.note_next_batch()
        return batch

    def skip(self) -> bool:
        """Let torch call the script's own function until `resume`; return False if the next batch is to be timed."""
        if not self._timer.skipped or self._timer.is_worker:
            return False
        set_class(self, PassedCollate)
        return True

    def resume(self, batches: int) -> None:
        """Time the next batches as before, so many of which were skipped."""
        set_class(self, TimedCollate)
        self._timer.skip(batches)
        if not self._timer.skipped and self._dataset is not None:
            self._dataset.note_next_batch()


class PassedCollate(TimedCollate):
    """Takes the place of `collate_fn` while no function of the agent is between torch and the script's."""

    __call__: Any = property(operator.attrgetter("_original"))


class TimedStart(StandIn):
    """Takes the place of `worker_init_fn`, which may be None."""

    part = "worker_init_fn"

    @hidden
    def __call__(self, worker: int) -> None:
        self._timer.enter_worker(worker)
        with Suppressed(Exception):
            object.__setattr__(data.get_worker_info(), "dataset", self._timer.dataset)
        if self._original is None:
            return
        try:
            self._original(worker)
        except BaseException as error:
            hide_frames(error)
            raise


class TimedStream(StandIn):
    """Takes the place of an `IterableDataset`."""

    part = "dataset"

    def __iter__(self) -> "Iterator[Any]":
        self._timer.reset()
        return TimedIterator(iter(self._original), self._timer)

    def __len__(self) -> int:
        return len(self._original)


class TimedIterator(StandIn):
    """Takes the place of the iterator over an `IterableDataset`."""

    def __iter__(self) -> "TimedIterator":
        return self

    @hidden
    def __next__(self) -> Any:
        timer = self._timer
        if not timer.is_begun:
            timer.begin()
        try:
            return timer.load(next, self._original) if timer.times_transforms else next(self._original)
        except BaseException as error:
            if not isinstance(error, StopIteration):
                timer.fail()
            hide_frames(error)
            raise


class TimedSamples(StandIn):
    """Takes the place of a dataset with indices."""

    part = "dataset"

    def __len__(self) -> int:
        return len(self._original)

    @hidden
    def __getitem__(self, index: Any) -> Any:
        timer = self._timer
        if not timer.is_begun:
            timer.begin()
        try:
            return timer.load(functools.partial(operator.getitem, self._original), index)
        except BaseException as error:
            timer.fail()
            hide_frames(error)
            raise


class ListedSamples(TimedSamples):
    """Takes the place of a dataset with indices, of which torch collates several samples to a batch."""

    part = "listed"


class TimedLists(ListedSamples):
    """Takes the place of a dataset that returns the samples of a whole batch."""

    @hidden
    def __getitems__(self, indices: Any) -> Any:
        timer = self._timer
        timer.begin()
        try:
            return timer.load(self._original.__getitems__, indices)
        except BaseException as error:
            timer.fail()
            hide_frames(error)
            raise


class NotedSamples(ListedSamples):
    """Takes the place of a dataset with indices where torch looks for `__getitems__` at the begin of each batch.

    In its subclass for a dataset, `__getitem__` calls no function of Python besides that of the dataset's class at that
    moment: an attribute of the dataset with this name has no effect, as without this class. While the
    transforms are timed, it is an object of the base class. While batches are skipped, torch finds that `__getitems__`
    is None, which costs no call at all.
    """

    _usual: type

    @classmethod
    def of(cls, dataset: Any, timer: BatchTimer) -> "NotedSamples":
        """Return what takes the place of a dataset."""
        get: Any = staticmethod(functools.partial(operator.getitem, dataset))
        kind: Any = type(type(dataset).__name__, (cls,), {"__getitem__": get})
        samples: NotedSamples = kind(dataset, timer)
        samples._usual = kind
        return samples

    def skip_batches(self) -> None:
        """Do not notice the begins of batches."""
        self.__dict__["__getitems__"] = None
        if type(self) is not self._usual:
            set_class(self, self._usual)

    def note_next_batch(self) -> None:
        """Notice the begins of batches again."""
        self.__dict__.pop("__getitems__", None)

    def __getattr__(self, name: str) -> Any:
        if name != "__getitems__":
            return super().__getattr__(name)
        timer = self._timer
        timer.begin()
        kind = NotedSamples if timer.times_transforms else self._usual
        if type(self) is not kind:
            set_class(self, kind)
        raise AttributeError(name)


set_class: Callable[[object, type], None] = object.__dict__["__class__"].__set__


def stand_ins(loader: "data.DataLoader[Any]", timer: BatchTimer) -> Dict[str, StandIn]:
    """Return what takes the places of the parts of a DataLoader; nothing for a dataset that torch treats specially."""
    if isinstance(loader.dataset, PIPES):
        return {}
    dataset = timed_dataset(loader.dataset, timer, is_listed=loader.batch_sampler is not None)
    return {
        "dataset": dataset,
        "collate_fn": TimedCollate(loader.collate_fn, timer, dataset),
        "worker_init_fn": TimedStart(loader.worker_init_fn, timer),
    }


def timed_dataset(dataset: Any, timer: BatchTimer, is_listed: bool) -> StandIn:
    """Return what takes the place of a dataset; `is_listed`: torch collates several of its samples to a batch."""
    timer.dataset = dataset
    if isinstance(dataset, data.IterableDataset):
        return TimedStream(dataset, timer)
    if not is_listed:
        return TimedSamples(dataset, timer)
    if not LOOKS_FOR_LISTS:
        return ListedSamples(dataset, timer)
    return TimedLists(dataset, timer) if getattr(dataset, "__getitems__", None) else NotedSamples.of(dataset, timer)


def looks_for_lists() -> bool:
    """Return whether torch looks for `__getitems__` of a dataset at the begin of each batch, as from version 2.0 on."""
    fetcher = getattr(getattr(data, "_utils", None), "fetch", None)
    code = getattr(getattr(getattr(fetcher, "_MapDatasetFetcher", None), "fetch", None), "__code__", None)
    return "__getitems__" in getattr(code, "co_names", ())


LOOKS_FOR_LISTS = looks_for_lists()


class LoaderPart:
    """An attribute of DataLoaders, of which torch's iterators get a stand-in while one is made in this thread.

    Args:
        name: Of the attribute, which is kept in the loader as without this descriptor.
        made: Returns the stand-ins of the loader whose iterator is being made in this thread, by name.
    """

    def __init__(self, name: str, made: "Callable[[], Dict[str, StandIn]]") -> None:
        self._name, self._made = name, made

    def __get__(self, loader: Any, kind: Optional[type] = None) -> Any:
        name = self._name
        if loader is None:
            raise AttributeError("type object '{}' has no attribute '{}'".format(kind and kind.__name__, name))
        own = vars(loader).get(name, self)
        if own is self:
            raise AttributeError("'{}' object has no attribute '{}'".format(type(loader).__name__, name))
        stand_in = self._made().get(name)
        if stand_in is None or stand_in._original is not own:
            return own
        caller = sys._getframe(1)
        is_iterator = caller.f_code.co_name == "__init__" and caller.f_globals is vars(sys.modules[DATALOADER])
        return stand_in if is_iterator else own

    def __set__(self, loader: Any, value: object) -> None:
        vars(loader)[self._name] = value

    def __delete__(self, loader: Any) -> None:
        if self._name not in vars(loader):
            raise AttributeError(self._name)
        del vars(loader)[self._name]


def rebuilt(part: str, original: Any, further: Any) -> Any:
    """Return a part in a spawned worker: a timer, or a stand-in, which `further` is the timer of."""
    if part == "timer":
        return BatchTimer(None, *further)
    if part == "collate_fn":
        return TimedCollate(original, further)
    if part == "worker_init_fn":
        return TimedStart(original, further)
    return timed_dataset(original, further, is_listed=part == "listed")
