"""Replay: an ideal loader, so that a script runs at the speed that it has without data stalls.

The first batches of each loader are kept in the first pass over it, and delivered in turn from then on. The workers of
the loader are stopped, and later passes take nothing from it. A pass has the length that the loader states, else that
of the first complete pass.
"""

import itertools
import math
import os
import signal
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from torch.utils import data

from epochmeter.agent.frames import hidden, hide_frames
from epochmeter.agent.kept_batches import KeptBatch, NotKeptError
from epochmeter.agent.notices import notice
from epochmeter.agent.samples import batch_count
from epochmeter.agent.weak_values import WeakValues
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import REPLAYED_ON_NODES

MAX_BATCHES = 64  # of a loader that are kept
MAX_BYTES = 2**30  # of memory for them, after at least one batch
NOT_KEPT = "the batches of {} cannot be kept: {}"
NOT_KEPT_HINT = "let the loader yield tensors and objects that `pickle` can copy; the other measurements need no copies"
GONE = "the controller is gone, so that this run on replayed batches ends now"
MakeIterator = Callable[[Any], Iterator[Any]]


class Kept:
    """What is known of a loader.

    Attributes:
        batches: Its first batches.
        is_full: Whether no more of them will be kept.
        length: Number of batches of a pass, if the loader states none, or fewer than it states; infinite if endless.
        seen: Number of batches of its longest pass.
        is_around: Whether it takes its batches from a DataLoader, which is replayed instead.
    """

    def __init__(self) -> None:
        self.batches: List[KeptBatch] = []
        self.is_full = False
        self.length: Optional[float] = None
        self.seen = 0
        self.is_around = False

    def keep(self, batch: object) -> None:
        """Keep a batch; NotKeptError if it cannot be copied."""
        self.batches.append(KeptBatch(batch))
        count, size = len(self.batches), sum(kept.size for kept in self.batches)
        self.is_full = count >= MAX_BATCHES or size + size / count > MAX_BYTES


class Replay:
    """Replays the loaders of a process.

    Args:
        endless: Number of batches after which a pass of unknown length, if it trains, counts as endless.
        steps: Returns the number of training steps of the current thread.
        loaded: Called when a loader delivers a batch itself: at the first one of a pass, and after the last one.
        failed: Called once with the reason if a loader cannot be replayed; then nothing more is.
        is_lost: Returns whether the controller, which ends a replayed run, is gone.
    """

    def __init__(
        self,
        endless: int,
        steps: Callable[[], int],
        loaded: Callable[[], object],
        failed: Callable[[Problem], object],
        is_lost: Callable[[], bool],
    ) -> None:
        self.is_on = True
        self.endless = max(endless, MAX_BATCHES)
        self.begun = 0  # number of passes over DataLoaders
        self.steps, self.loaded, self._failed, self._is_lost = steps, loaded, failed, is_lost
        self._kept: Dict[bool, WeakValues[Kept]] = {True: WeakValues(), False: WeakValues()}
        """By loader: of the passes of torch's own iterators, and of those of others."""
        self._alike: WeakValues[Dict[object, Kept]] = WeakValues()  # by dataset, then by the kind of loader
        self._lasting: Dict[int, Tuple[object, Kept]] = {}  # by `id`, of data without weak references

    @hidden
    def iterate_torch(self, loader: Any, make_iterator: MakeIterator) -> Iterator[Any]:
        """Return an iterator over a DataLoader that replaces torch's own."""
        if not self.is_on or data.get_worker_info() is not None or self._is_on_nodes():
            return make_iterator(loader)
        self.begun += 1
        return self._iterate(loader, make_iterator, is_of_torch=True)

    @hidden
    def iterate_other(self, loader: Any, make_iterator: MakeIterator) -> Iterator[Any]:
        """Return an iterator over other data, which is replayed unless it takes its batches from a DataLoader."""
        is_of_torch = isinstance(loader, data.DataLoader) and type(loader).__iter__ is data.DataLoader.__iter__
        if not self.is_on or is_of_torch or self._is_on_nodes() or self._kept_of(loader, False).is_around:
            return make_iterator(loader)
        return self._iterate(loader, make_iterator)

    @hidden
    def _iterate(self, loader: Any, make_iterator: MakeIterator, is_of_torch: bool = False) -> Iterator[Any]:
        if self._is_lost():
            notice(GONE)
            os.kill(os.getpid(), signal.SIGTERM)
        begun = None if is_of_torch else self.begun
        return ReplayedPass(self, loader, self._kept_of(loader, is_of_torch), make_iterator, begun)

    def _kept_of(self, loader: Any, is_of_torch: bool) -> Kept:
        """Return what is known of a loader; a new one that reads the same dataset alike has that of the one before."""
        by_loader = self._kept[is_of_torch]
        kept = by_loader.get(loader)
        if kept is None and id(loader) in self._lasting:
            kept = self._lasting[id(loader)][1]
        if kept is None:
            kept = self._kept_alike(loader, is_of_torch)
            by_loader.set(loader, kept)
            if by_loader.get(loader) is None and not hasattr(type(loader), "__next__"):
                self._lasting[id(loader)] = loader, kept
        return kept

    def _kept_alike(self, loader: Any, is_of_torch: bool) -> Kept:
        if not isinstance(loader, data.DataLoader):
            return Kept()
        kind = is_of_torch, type(loader), loader.batch_size, type(loader.batch_sampler), id(loader.collate_fn)
        alike = self._alike.get(loader.dataset)
        if alike is None:
            alike = {}
            self._alike.set(loader.dataset, alike)
        return alike.setdefault(kind, Kept())

    def fail(self, loader: object, error: NotKeptError) -> None:
        """Report that the batches of a loader cannot be kept, and replay nothing more."""
        self._fail(Problem(NOT_KEPT.format(type(loader).__name__, error), NOT_KEPT_HINT))

    def _fail(self, problem: Problem) -> None:
        if self.is_on:
            self.is_on = False
            self._failed(problem)

    def _is_on_nodes(self) -> bool:
        """Return whether a launcher runs the script on several nodes, which is reported."""
        ranks, local = (int(os.environ.get(name, 0)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        if 0 < local < ranks:
            self._fail(REPLAYED_ON_NODES)
        return not self.is_on


class ReplayedPass:
    """Iterator over one pass: kept batches, then as many of the loader as are to be kept, then kept ones in turn.

    Args:
        make_iterator: Returns the iterator of the loader itself.
        begun: Number of passes over DataLoaders before this one; None: it is one.
    """

    def __init__(
        self, replay: Replay, loader: Any, kept: Kept, make_iterator: MakeIterator, begun: Optional[int]
    ) -> None:
        self._replay, self._loader, self._kept, self._make_iterator = replay, loader, kept, make_iterator
        lengths = [length for length in (batch_count(loader), kept.length) if length is not None]
        self._length: Optional[float] = min(lengths) if lengths else None
        self._position, self._begun, self._begun_steps = 0, begun, replay.steps()
        self._own: Optional[Iterator[Any]] = None if kept.batches else make_iterator(loader)

    def __iter__(self) -> "ReplayedPass":
        return self

    @hidden
    def __next__(self) -> Any:
        if self._kept.is_around or not self._replay.is_on:
            return self._next_own()
        if self._length is not None and self._position >= self._length:
            self._end_own()
            raise StopIteration
        is_kept = self._position < self._available()
        batch = self._deliver() if is_kept else self._load()
        self._position += 1
        self._kept.seen = max(self._kept.seen, self._position)
        if self._own is not None and self._position < self._available():
            self._end_own()
        return batch

    def _available(self) -> float:
        """Return up to which position the kept batches serve this pass."""
        kept, length = self._kept, self._length
        if kept.is_full or (length is not None and len(kept.batches) >= length):
            return kept.seen if length is None else math.inf  # no batch after those that exist
        return len(kept.batches)

    def _deliver(self) -> Any:
        batches = self._kept.batches
        return batches[self._position % len(batches)].deliver()

    @hidden
    def _load(self) -> Any:
        """Return the next batch of the loader itself, after keeping it if there is room."""
        kept, is_first = self._kept, self._own is None or self._position == 0
        batch = self._next_own()
        if self._begun is not None and self._replay.begun > self._begun:  # it came from a DataLoader
            kept.is_around = True
            return batch
        if is_first:
            self._replay.loaded()
        try:
            if not kept.is_full:
                kept.keep(batch)
        except NotKeptError as error:
            self._replay.fail(self._loader, error)
        is_long = self._length is None and self._position + 1 >= self._replay.endless
        if is_long and self._replay.steps() > self._begun_steps:
            self._length = kept.length = math.inf
        return batch

    @hidden
    def _next_own(self) -> Any:
        try:
            if self._own is None:
                self._own = self._make_iterator(self._loader)
                # Its content does not matter; but a pass of unknown length ends where the loader ends.
                skipped = self._position if self._length is None else 0
                for _ in itertools.islice(self._own, skipped):
                    pass
            return next(self._own)
        except StopIteration:
            if self._own is not None and not self._kept.is_around:
                self._kept.length = self._length = self._position
                self._replay.loaded()
            raise
        except BaseException as error:
            hide_frames(error)
            raise

    def _end_own(self) -> None:
        """Let the loader end its own iterator, with its workers."""
        if self._own is None:
            return
        if getattr(self._loader, "_iterator", None) is self._own:  # a DataLoader with persistent workers
            self._loader._iterator = None
        self._own = None
        self._replay.loaded()
