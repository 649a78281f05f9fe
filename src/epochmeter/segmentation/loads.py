"""How the batches of a process were loaded: in its DataLoader workers, or in the process itself.

A DataLoader gives the batches to its workers in turn and delivers them in this order, so that the batches of a pass are
matched with those that its workers have loaded. A worker that has no further batch, as of a stream, is left out.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from epochmeter.results.documents import Loading
from epochmeter.segmentation.passes import Loader, Pass
from epochmeter.shared.events import COLLATED, LOADED, Event
from epochmeter.shared.units import NANOSECOND

MAX_HELPED_FRACTION = 0.02
"""Fraction of the loading time up to which waits may have been for other threads or processes of the dataset."""
MIN_IN_ORDER = 2  # workers from which on one can delay the batches of others
CLOCK_NS = 1_000_000  # how much later than its delivery a batch may be ready by the clock readings


class LoadedBatch(NamedTuple):
    """A batch that was loaded, with times of the monotonic clock.

    Attributes:
        worker: From 1 on; 0 is the training process.
        waits_ns: Time off the processor while its samples were fetched, without waits for a core; NaN if not known.
        helped_ns: The part of it in which other threads or processes may have worked for it; NaN if not known.
        is_failed: Whether loading it raised an error.
    """

    worker: int
    begun_ns: int
    fetched_ns: int = 0
    ready_ns: int = 0
    waits_ns: float = math.nan
    helped_ns: float = math.nan
    is_failed: bool = False


class Loads:
    """The loaded batches of a process by the number of the loader in its first state, which passes take."""

    def __init__(self) -> None:
        self._loaded: dict[int, dict[int, deque[LoadedBatch]]] = {}  # by worker, in order
        self._fetched: dict[tuple[int, int], LoadedBatch] = {}  # by loader and worker: its collation is to come
        self._turns: dict[int, tuple[int, int]] = {}  # loader -> its pass, and the worker whose turn it is
        self._helped: dict[int, tuple[float, float]] = {}  # loader -> ns that others may have worked, of ns of loading
        self._transforms: dict[int, list[tuple[int, Mapping[str, int]]]] = {}  # begin of a batch, ns by name

    def add(self, event: Event, loader: Loader) -> None:
        """Add an event of loading."""
        number, worker = loader.number, event.other
        if event.kind == LOADED:
            self._fetched[number, worker] = LoadedBatch(worker, event.begun_ns, event.time_ns, 0, event.value)
            return
        batch = LoadedBatch(worker, event.begun_ns, is_failed=True)
        if event.kind == COLLATED:
            fetched = self._fetched.pop((number, worker), None)
            if fetched is None:
                return
            batch = fetched._replace(ready_ns=event.time_ns, helped_ns=event.value)
            self._note_helped(number, batch)
        self._loaded.setdefault(number, {}).setdefault(worker, deque()).append(batch)

    def add_transforms(self, loader: Loader, begun_ns: int, times_ns: Mapping[str, int]) -> None:
        """Add the times of the transforms of a batch that is loaded from a moment on."""
        self._transforms.setdefault(loader.number, []).append((begun_ns, times_ns))

    def take(self, ended: Pass) -> "PassLoads | None":
        """Remove and return how the batches of a pass were loaded; None if that is not known for all of them."""
        number = ended.loader.number
        queues = self._loaded.get(number)
        if not queues or ended.loader.workers is None:
            return None
        of_pass, turn = self._turns.get(number, (0, 0))
        if of_pass != ended.number:
            turn = 0
            self._discard_before(number, ended.called_ns)
        batches, turn = _in_order(queues, ended, turn)
        self._turns[number] = ended.number, turn
        transforms = self._take_transforms(number, batches)
        if len(batches) < len(ended.batches) or not _are_possible(batches, ended):
            return None
        helped_ns, loading_ns = self._helped.get(number, (math.nan, math.nan))
        return PassLoads(ended, batches, helped_ns <= MAX_HELPED_FRACTION * loading_ns, transforms)

    def _note_helped(self, number: int, batch: LoadedBatch) -> None:
        if not math.isnan(batch.helped_ns):
            helped_ns, loading_ns = self._helped.get(number, (0.0, 0.0))
            self._helped[number] = helped_ns + batch.helped_ns, loading_ns + batch.ready_ns - batch.begun_ns

    def _discard_before(self, number: int, called_ns: int) -> None:
        """Forget the batches of earlier passes, which were not delivered."""
        for queue in self._loaded[number].values():
            while queue and queue[0].begun_ns < called_ns:
                queue.popleft()

    def _take_transforms(self, number: int, batches: Sequence[LoadedBatch]) -> list[tuple[LoadedBatch, Any]]:
        """Remove and return the times of the transforms in these batches."""
        if not batches:
            return []
        by_begin = {batch.begun_ns: batch for batch in batches}
        timed, last_ns = self._transforms.pop(number, []), max(by_begin)
        self._transforms[number] = [entry for entry in timed if entry[0] > last_ns]
        return [(by_begin[begun_ns], times) for begun_ns, times in timed if begun_ns in by_begin]


def _in_order(queues: Mapping[int, "deque[LoadedBatch]"], ended: Pass, turn: int) -> tuple[list[LoadedBatch], int]:
    """Remove and return the loaded batches in the order of the pass, and the worker whose turn is next."""
    workers, batches = ended.loader.workers or 0, list[LoadedBatch]()
    numbers = range(1, workers + 1) if workers else (0,)
    in_order = ended.loader.facts.get("in_order", True)
    while len(batches) < len(ended.batches) and any(queues.get(number) for number in numbers):
        if in_order:
            worker = numbers[turn % len(numbers)]
            turn = (turn + 1) % len(numbers)
        else:
            worker = min(filter(queues.get, numbers), key=lambda number: queues[number][0].ready_ns)
        if (queue := queues.get(worker)) and not (batch := queue.popleft()).is_failed:
            batches.append(batch)
    return batches, turn


def _are_possible(batches: Sequence[LoadedBatch], ended: Pass) -> bool:
    """Return whether each batch was ready when it was delivered; else they are those of another pass."""
    arrived = ended.batches.arrived_ns
    return all(batch.ready_ns <= arrived_ns + CLOCK_NS for batch, arrived_ns in zip(batches, arrived, strict=True))


class PassLoads:
    """How the batches of a pass were loaded.

    Args:
        is_divided: Whether waits and work in the dataset are known apart.
        transforms: Batches with times of their transforms.
    """

    def __init__(
        self,
        ended: Pass,
        batches: Sequence[LoadedBatch],
        is_divided: bool,
        transforms: Sequence[tuple[LoadedBatch, Mapping[str, int]]],
    ) -> None:
        self._ended, self._batches, self._is_divided, self._transforms = ended, batches, is_divided, transforms

    def parts(self, count: int) -> dict[str, float]:
        """Return the metrics of the first `count` batches, without prefix."""
        batches = self._batches[:count]
        fetch_ns = sum(batch.fetched_ns - batch.begun_ns for batch in batches)
        collate_ns = sum(batch.ready_ns - batch.fetched_ns for batch in batches)
        waits_ns = math.fsum(batch.waits_ns for batch in batches)
        parts: dict[str, float] = {"loader_fetch_s": fetch_ns, "loader_collate_s": collate_ns}
        if self._is_divided and not math.isnan(waits_ns):
            parts |= {"loader_read_s": waits_ns, "loader_preprocess_s": fetch_ns + collate_ns - waits_ns}
        if self._ended.loader.workers:
            arrived = self._ended.batches.arrived_ns
            queued = (max(0, at_ns - batch.ready_ns) for batch, at_ns in zip(batches, arrived, strict=False))
            parts["loader_queue_s"] = sum(queued)
        if delays := self._delays_ns(count):
            parts["loader_blocked_s"] = math.fsum(delays.values())
        if transforms := self.transforms(count):
            parts["loader_transform_s"] = max(transforms.values()) / NANOSECOND
        return {name: value * NANOSECOND for name, value in parts.items()}

    def document(self, count: int) -> Loading:
        """Return which worker delays ready batches for how long, and the time of each transform."""
        delays, transforms = self._delays_ns(count), self.transforms(count)
        blocked = {worker: delay_ns * NANOSECOND for worker, delay_ns in delays.items() if delay_ns}
        by_delay = sorted(blocked, key=lambda worker: -blocked[worker])
        document: Loading = {}
        if by_delay:
            document["delays"] = [{"worker": worker - 1, "blocked_s": blocked[worker]} for worker in by_delay]
        if transforms:
            document["transforms"] = dict(sorted(transforms.items(), key=lambda item: -item[1]))
        return document

    def transforms(self, count: int) -> dict[str, float]:
        """Return the time of each transform in seconds, from its fraction of the time to fetch the timed batches."""
        timed_ns = sum(batch.fetched_ns - batch.begun_ns for batch, _ in self._transforms)
        fetch_ns = sum(batch.fetched_ns - batch.begun_ns for batch in self._batches[:count])
        totals = Counter[str]()
        for _, times_ns in self._transforms:
            totals.update(times_ns)
        return {name: total / timed_ns * fetch_ns * NANOSECOND for name, total in totals.items()} if timed_ns else {}

    def _delays_ns(self, count: int) -> dict[int, int]:
        """Return how long each worker delayed batches of others that were ready; empty if none can."""
        loader, batches = self._ended.loader, self._batches
        if (loader.workers or 0) < MIN_IN_ORDER or not loader.facts.get("in_order", True):
            return {}
        ready = np.array([batch.ready_ns for batch in batches], dtype=np.int64)
        arrived = np.array(self._ended.batches.arrived_ns, dtype=np.int64)
        requested = arrived - np.array(self._ended.batches.waits_ns, dtype=np.int64)
        never = np.iinfo(np.int64).max
        later = np.append(np.minimum.accumulate(ready[::-1])[::-1][1:], never)  # the first of those behind it
        delays = np.maximum(0, np.minimum(ready, arrived) - np.maximum(requested, later))[:count]
        workers = np.array([batch.worker for batch in batches[:count]])
        return {worker: int(delays[workers == worker].sum()) for worker in range(1, (loader.workers or 0) + 1)}
