"""How the batches of a process were loaded: in its DataLoader workers, or in the process itself.

A DataLoader gives the batches to its workers in turn and delivers them in this order, so that the batches of a pass are
matched with those that its workers have loaded. A worker that has no further batch, as of a stream, is left out. If
batches are short, the training process times some of them only: the times of a pass are scaled by its waits. Workers
time all of them, but know of some only how long these waited: that is scaled by the times to fetch them.
"""

import math
from bisect import bisect_left
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
MAX_LONGER_FRACTION = 0.02
"""Fraction of the waits by which batches that were not timed may have taken longer than the longest timed one."""
MIN_IN_ORDER = 2  # workers from which on one can delay the batches of others
CLOCK_NS = 1_000_000  # how much later than its delivery a batch may be ready by the clock readings


class LoadedBatch(NamedTuple):
    """A batch that was loaded, with times of the monotonic clock.

    Attributes:
        worker: From 1 on; 0 is the training process.
        waits_ns: Time off the processor while its samples were fetched, without waits for a core; NaN if it was not
            looked at.
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
        self._loaders: dict[int, Loader] = {}  # those with loaded batches
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
        self._loaders[number] = loader
        self._loaded.setdefault(number, {}).setdefault(worker, deque()).append(batch)

    def add_transforms(self, loader: Loader, begun_ns: int, times_ns: Mapping[str, int]) -> None:
        """Add the times of the transforms of a batch that is loaded from a moment on."""
        self._transforms.setdefault(loader.number, []).append((begun_ns, times_ns))

    def take(self, ended: Pass) -> "PassLoads | None":
        """Remove and return how the batches of a pass were loaded; None if that is not known."""
        loader = self._loader_of(ended)
        if loader is None:
            return None
        number, queues = loader.number, self._loaded[loader.number]
        of_pass, turn = self._turns.get(number, (0, 0))
        if of_pass != ended.number:
            turn = 0
            self._discard_before(number, ended.called_ns)
        if loader.workers:
            places, batches, turn = _in_order(queues, loader, len(ended.batches), turn)
        else:
            places, batches = _at_their_times(queues.setdefault(0, deque()), ended)
        self._turns[number] = ended.number, turn
        transforms = self._take_transforms(number, batches)
        is_complete = not loader.workers or len(batches) == len(ended.batches)
        if not batches or not is_complete or not _are_possible(places, batches, ended):
            return None
        helped_ns, loading_ns = self._helped.get(number, (math.nan, math.nan))
        is_divided = helped_ns <= MAX_HELPED_FRACTION * loading_ns
        return PassLoads(ended, loader, places, batches, is_divided, transforms)

    def _loader_of(self, ended: Pass) -> Loader | None:
        """Return the loader of a pass, or the only one within it that loads the same data; None without any."""
        own = ended.loader
        if own.number in self._loaders:
            return self._loaders[own.number]
        within = [
            loader
            for number, loader in self._loaders.items()
            if own.data is not None and loader.data == own.data and self._has_loaded(number, ended.called_ns)
        ]
        return within[0] if len(within) == 1 else None

    def _has_loaded(self, number: int, since_ns: int) -> bool:
        """Return whether a loader has begun a batch since a moment that no pass has taken."""
        return any(queue and queue[-1].begun_ns >= since_ns for queue in self._loaded[number].values())

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


def _at_their_times(queue: "deque[LoadedBatch]", ended: Pass) -> tuple[list[int], list[LoadedBatch]]:
    """Remove and return the batches that the training process loaded while it requested those of a pass.

    They are some of them if batches are short. The first value has their places in the pass.
    """
    places, batches, arrived_ns = list[int](), list[LoadedBatch](), ended.batches.arrived_ns
    for place in range(len(arrived_ns)):
        requested_ns = arrived_ns[place] - ended.batches.waits_ns[place]
        while queue and queue[0].begun_ns < requested_ns:
            queue.popleft()
        if queue and not queue[0].is_failed and queue[0].ready_ns <= arrived_ns[place]:
            places.append(place)
            batches.append(queue.popleft())
    return places, batches


def _in_order(
    queues: Mapping[int, "deque[LoadedBatch]"], loader: Loader, count: int, turn: int
) -> tuple[Sequence[int], list[LoadedBatch], int]:
    """Remove and return the batches that workers loaded in the order of the pass, and the worker whose turn is next."""
    batches = list[LoadedBatch]()
    numbers = range(1, (loader.workers or 0) + 1)
    in_order = loader.facts.get("in_order", True)
    while len(batches) < count and any(queues.get(number) for number in numbers):
        if in_order:
            worker = numbers[turn % len(numbers)]
            turn = (turn + 1) % len(numbers)
        else:
            worker = min(filter(queues.get, numbers), key=lambda number: queues[number][0].ready_ns)
        if (queue := queues.get(worker)) and not (batch := queue.popleft()).is_failed:
            batches.append(batch)
    return range(len(batches)), batches, turn


def _are_possible(places: Sequence[int], batches: Sequence[LoadedBatch], ended: Pass) -> bool:
    """Return whether each batch was ready when it was delivered; else they are those of another pass."""
    arrived_ns = ended.batches.arrived_ns
    return all(batch.ready_ns <= arrived_ns[place] + CLOCK_NS for place, batch in zip(places, batches, strict=True))


class PassLoads:
    """How the batches of a pass were loaded.

    Args:
        loader: That has loaded them, which may be within the loader of the pass.
        places: Places of the batches in the pass.
        is_divided: Whether waits and work in the dataset are known apart.
        transforms: Batches with times of their transforms.
    """

    def __init__(
        self,
        ended: Pass,
        loader: Loader,
        places: Sequence[int],
        batches: Sequence[LoadedBatch],
        is_divided: bool,
        transforms: Sequence[tuple[LoadedBatch, Mapping[str, int]]],
    ) -> None:
        self._ended, self._loader, self._places, self._batches = ended, loader, places, batches
        self._is_divided, self._transforms = is_divided, transforms

    def parts(self, count: int) -> dict[str, float]:
        """Return the metrics of the first `count` batches of the pass, without prefix."""
        batches, factor = self._first(count), self._factor(count)
        fetch_ns = factor * sum(batch.fetched_ns - batch.begun_ns for batch in batches)
        collate_ns = factor * sum(batch.ready_ns - batch.fetched_ns for batch in batches)
        waits_ns = factor * waits_of(batches)
        parts: dict[str, float] = {"loader_fetch_s": fetch_ns, "loader_collate_s": collate_ns}
        if self._is_divided and not math.isnan(waits_ns) and not self._has_long_gaps(count):
            parts |= {"loader_read_s": waits_ns, "loader_preprocess_s": fetch_ns + collate_ns - waits_ns}
        if self._loader.workers:
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
        batches = self._first(count)
        fetch_ns = self._factor(count) * sum(batch.fetched_ns - batch.begun_ns for batch in batches)
        totals = Counter[str]()
        for _, times_ns in self._transforms:
            totals.update(times_ns)
        return {name: total / timed_ns * fetch_ns * NANOSECOND for name, total in totals.items()} if timed_ns else {}

    def _first(self, count: int) -> Sequence[LoadedBatch]:
        """Return those among the first `count` batches of the pass."""
        return self._batches[: bisect_left(self._places, count)]

    def _factor(self, count: int) -> float:
        """Return the waits for the first `count` batches of the pass by those for the timed ones among them."""
        waits_ns = self._ended.batches.waits_ns
        timed_ns = sum(waits_ns[place] for place in self._places if place < count)
        return sum(waits_ns[:count]) / timed_ns if len(self._places) < len(waits_ns) and timed_ns else 1.0

    def _has_long_gaps(self, count: int) -> bool:
        """Return whether batches that were not timed took longer than those that were, by a part that matters."""
        waits_ns = self._ended.batches.waits_ns
        longest_ns = max((waits_ns[place] for place in self._places if place < count), default=0)
        excess_ns = sum(max(0, wait_ns - longest_ns) for wait_ns in waits_ns[:count])
        return excess_ns > MAX_LONGER_FRACTION * sum(waits_ns[:count])

    def _delays_ns(self, count: int) -> dict[int, int]:
        """Return how long each worker delayed batches of others that were ready; empty if none can."""
        loader, batches = self._loader, self._batches
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


def waits_of(batches: Sequence[LoadedBatch]) -> float:
    """Return how long batches waited, of some of which it is known; NaN if others took too long for an estimate."""
    known = [batch for batch in batches if not math.isnan(batch.waits_ns)]
    fetches_ns = [batch.fetched_ns - batch.begun_ns for batch in batches]
    known_ns = [batch.fetched_ns - batch.begun_ns for batch in known]
    excess_ns = sum(max(0, fetch_ns - max(known_ns, default=0)) for fetch_ns in fetches_ns)
    if not sum(known_ns) or excess_ns > MAX_LONGER_FRACTION * sum(fetches_ns):
        return math.nan
    return math.fsum(batch.waits_ns for batch in known) * (sum(fetches_ns) / sum(known_ns))
