"""Kineto traces, torch's profiler format for CPU, CUDA and ROCm, as columns of numbers."""

import gzip
import json
import math
import re
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from epochmeter.shared.problem import InputError, Problem
from epochmeter.shared.types import Document
from epochmeter.trace.events import read_events, read_facts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_EVENTS = 3_000_000  # most events in memory, about 1 GB; the last steps of a larger trace are left out
NS_PER_US = 1000
MAX_DISTANCE_US = 3600e6  # events further from the median start, or longer, have a wrong time: the clock jumped
MAX_OVERLAP_NS = 10**6
"""Longest overlap of two activities of a stream: programmatic dependent launches, and errors of timestamps."""
WRONG_TIME = "whose time is unknown or impossible"  # reasons to leave out an event
DAMAGED = "whose text is damaged"
MAX_NUMBER = 2**53  # larger integers are not exact in a column, and are unknown
MIN_WARPS = 0.64  # warps per SM that are an occupancy of 1 %, as an SM has at most 64
NONE = -1  # an unknown integer, such as the device of an event on the host
STEP_NAME = re.compile(r"^ProfilerStep#\d+$")


class TraceError(InputError):
    """A trace that cannot be analyzed."""

    def __init__(self, cause: str) -> None:
        super().__init__(Problem(cause, "record the trace again: run the configuration with `profiler=torch`"))


class Category(IntEnum):
    OPERATOR = 0
    ANNOTATION = 1
    RUNTIME = 2
    KERNEL = 3
    COPY = 4  # of memory, or a setting of it
    LINK_START = 5  # of an arrow from a forward operator to its backward node: at the start of the operator
    LINK_END = 6  # at the start of the node


HOST = (Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME)
DEVICE = (Category.KERNEL, Category.COPY)
CATEGORIES = {
    "X": {
        **dict.fromkeys(("cpu_op", "operator"), Category.OPERATOR),
        "user_annotation": Category.ANNOTATION,
        **dict.fromkeys(("runtime", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), Category.RUNTIME),
        "kernel": Category.KERNEL,
        **dict.fromkeys(("memcpy", "gpu_memcpy", "memset", "gpu_memset"), Category.COPY),
    },
    "s": {"fwdbwd": Category.LINK_START},
    "f": {"fwdbwd": Category.LINK_END},
}
"""By `ph` and `cat`, in lower case; older versions of torch write the shorter names. Other events are skipped."""
ARGUMENTS = ("device", "correlation", "Sequence number", "Fwd thread id",
             "blocks per SM", "warps per SM", "est. achieved occupancy %")  # fmt: skip
"""Arguments of events that are columns, the last ones of a row."""
INTEGERS = ("category", "name", "thread", "inputs", "device", "correlation", "sequence", "forward_thread")
NUMBERS = ("blocks_per_sm", "warps_per_sm", "occupancy_percent")
COLUMNS = ("start_us", "duration_us", *INTEGERS, *NUMBERS)
ROW = np.dtype([(column, np.float64) for column in COLUMNS])
"""The values of an event as they are read; an unknown one is NaN."""


class Trace:
    """Events in order of their start, one array per column; an unknown integer is -1, an unknown number is NaN."""

    start_ns: Ints  # since the first event
    duration_ns: Ints
    category: Ints
    name: Ints  # index in `names`
    thread: Ints  # index in `threads`: process and thread; for an event of a device, device and stream
    inputs: Ints  # index in `shapes`: the sizes of an operator's inputs, one list per input
    device: Ints
    correlation: Ints  # shared by an activity of the device and the call that launched it, or by both ends of a link
    sequence: Ints  # autograd's, shared by a forward operator and its backward node; each thread counts from 0
    forward_thread: Ints  # of a backward node: number of the thread of its forward operator, which is not in `threads`
    blocks_per_sm: Floats  # thread blocks of the kernel per streaming multiprocessor (SM)
    occupancy: Floats
    """Achieved occupancy as estimated by Kineto, a fraction. NaN if Kineto reports 0 although the number of warps
    excludes it, as for kernels that enlarge their shared memory (most kernels with tensor cores)."""
    left_out: Counter[str]  # number of events by reason

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        names, threads, shapes = (defaultdict[Any, int](count().__next__) for _ in range(3))
        values, until_us, late, self.left_out = array("d"), math.inf, 0, Counter()
        for event in events:
            if not event:
                self.left_out[DAMAGED] += 1
                continue
            category = CATEGORIES.get(str(event.get("ph")), {}).get(str(event.get("cat")).lower())
            if category is None:
                continue
            start_us, duration_us = _number(event.get("ts")), _number(event.get("dur", 0))
            if math.isnan(start_us) or not 0 <= duration_us <= MAX_DISTANCE_US:
                self.left_out[WRONG_TIME] += 1
                continue
            if start_us >= until_us:
                late += 1
                continue
            arguments = event["args"] if isinstance(event.get("args"), dict) else {"correlation": event.get("id")}
            sizes, thread = arguments.get("Input Dims"), threads[str(event.get("pid")), str(event.get("tid"))]
            values.extend((start_us, duration_us, category, names[str(event.get("name"))], thread))
            values.append(shapes[json.dumps(sizes)] if isinstance(sizes, list) else NONE)
            values.extend(_number(arguments.get(key)) for key in ARGUMENTS)
            if len(values) > MAX_EVENTS * len(COLUMNS):  # events are not in order of time: keep the earlier half
                rows = np.frombuffer(values, ROW)
                until_us = float(np.median(rows["start_us"]))
                early = rows[rows["start_us"] < until_us]
                late += len(rows) - len(early)
                values = array("d", early.tobytes())
        self.names, self.threads, self.shapes = [*map(_printable, names)], [*threads], [*map(json.loads, shapes)]
        self._set_columns(np.frombuffer(values, ROW))
        if late:
            self._leave_out_incomplete_steps(late)
        self._leave_out_impossible()

    def _set_columns(self, rows: NDArray[np.void]) -> None:
        """Sort the events by their start, and leave out those that are far from the median event."""
        if not len(rows):
            raise ValueError("it has no events")
        start_us, duration_us = rows["start_us"], rows["duration_us"]
        order = np.lexsort((-duration_us, start_us))  # if two events start at the same time, the longer is the caller
        is_near = np.abs(start_us[order] - start_us[order[len(order) // 2]]) <= MAX_DISTANCE_US
        self.left_out += Counter({WRONG_TIME: int((~is_near).sum())})
        order = order[is_near]
        self.start_ns = np.rint((start_us - start_us[order[0]])[order] * NS_PER_US).astype(np.int64)
        self.duration_ns = np.rint(duration_us[order] * NS_PER_US).astype(np.int64)
        for column in INTEGERS:
            setattr(self, column, np.nan_to_num(rows[column][order], nan=NONE).astype(np.int64))
        self.blocks_per_sm, warps, percent = (rows[column][order] for column in NUMBERS)
        is_unknown = (percent == 0) & (warps >= MIN_WARPS) | (percent > 100)
        self.occupancy = np.where(is_unknown, math.nan, percent / 100)

    def _leave_out_impossible(self) -> None:
        """Leave out events that cannot have happened; a single one would distort the times of the whole trace."""
        steps = self.steps
        self._leave_out(steps[_overlapping(self.start_ns[steps], self.end_ns[steps], NS_PER_US)])
        self._leave_out(self._beyond_steps())
        self._leave_out(self._overlapping_activities())

    def _leave_out(self, events: Ints) -> None:
        """Remove events of a wrong time, and count them."""
        if not len(events):
            return
        self.left_out[WRONG_TIME] += len(events)
        is_kept = np.ones(len(self.start_ns), bool)
        is_kept[events] = False
        self.steps = (np.cumsum(is_kept) - 1)[self.steps[is_kept[self.steps]]]
        for column in ("start_ns", "duration_ns", *INTEGERS, "blocks_per_sm", "occupancy"):
            setattr(self, column, getattr(self, column)[is_kept])
        for derived in ("end_ns", "launch", "is_in_step"):
            self.__dict__.pop(derived, None)

    def _beyond_steps(self) -> Ints:
        """Return the events of steps that last longer than all steps, or are that far from all events of the host.

        The device may lag behind the host, but torch's profiler waits for it before it stops.
        """
        if not len(self.steps):
            return self.steps
        opened_ns, closed_ns = self.start_ns[self.steps].min(), self.end_ns[self.steps].max()
        longest_ns = closed_ns - opened_ns
        is_host, is_activity = np.isin(self.category, HOST), np.isin(self.category, DEVICE)
        is_long = is_host & self.is_in_step & (self.duration_ns > longest_ns)
        stopped_ns = self.end_ns[is_host & ~is_long].max()
        is_far = (self.start_ns < opened_ns - longest_ns) | (self.end_ns > stopped_ns + longest_ns)
        return np.flatnonzero(is_long | is_activity & is_far & self.is_in_step)

    def _overlapping_activities(self) -> Ints:
        """Return the activities that overlap others of their stream, other than those of one launch, as of a graph."""
        activities = np.flatnonzero(np.isin(self.category, DEVICE) & (self.duration_ns > 0))
        activities = activities[np.argsort(self.thread[activities], kind="stable")]
        stream, after = self.thread[activities], activities[1:]
        overlaps = (stream[:-1] == stream[1:]) & (self.end_ns[activities[:-1]] > self.start_ns[after] + MAX_OVERLAP_NS)
        overlapping = [activities[:0]]
        for number in np.unique(stream[:-1][overlaps]):
            events = activities[stream == number]
            times_ns = self.start_ns[events], self.end_ns[events]
            overlapping.append(events[_overlapping(*times_ns, MAX_OVERLAP_NS, self.launch[events])])
        return np.concatenate(overlapping)

    def _leave_out_incomplete_steps(self, late: int) -> None:
        """Keep the steps before the last launch of a known activity, or on a CPU, before the last event."""
        launches = self.launch[self.launch != NONE]
        self.steps = self.steps[self.end_ns[self.steps] <= self.start_ns[launches if len(launches) else -1].max()]
        if not len(self.steps):
            raise ValueError(f"it has more than {MAX_EVENTS:,} events, and no complete step among the first ones")
        late += int(((self.start_ns >= self.end_ns[self.steps[-1]]) & ~self.is_in_step).sum())
        self.left_out[f"after {self.names[self.name[self.steps[-1]]]}"] = late

    @cached_property
    def end_ns(self) -> Ints:
        return self.start_ns + self.duration_ns

    @cached_property
    def launch(self) -> Ints:
        """Index of the call that launched each event of the device, which may launch several; -1 without one."""
        calls, device = self.where(Category.RUNTIME)[::-1], self.where(*DEVICE)
        by_correlation = dict(zip(self.correlation[calls].tolist(), calls.tolist(), strict=True)) | {NONE: NONE}
        launch = np.full(len(self.start_ns), NONE)
        launch[device] = [by_correlation.get(number, NONE) for number in self.correlation[device].tolist()]
        return launch

    @cached_property
    def steps(self) -> Ints:
        """Indices of the events of steps, `ProfilerStep#<number>`, that take time."""
        events = self.where(*HOST, name=STEP_NAME)
        return events[self.duration_ns[events] > 0]

    @cached_property
    def is_in_step(self) -> Bools:
        """Whether each event belongs to a step: by its start, and on a device by its launch."""
        index = np.searchsorted(self.start_ns[self.steps], self.start_ns, side="right") - 1
        is_in_step: Bools = self.start_ns < np.r_[self.end_ns[self.steps], 0][index]
        launched = np.flatnonzero(self.launch != NONE)
        is_in_step[launched] = is_in_step[self.launch[launched]]
        return is_in_step

    def where(self, *categories: Category, name: re.Pattern[str] | None = None) -> Ints:
        """Return the indices of the events of these categories whose name matches, in order of their start."""
        events: Ints = np.flatnonzero(np.isin(self.category, categories))
        if name:
            matches = np.array([bool(name.search(text)) for text in self.names])
            events = events[matches[self.name[events]]]
        return events

    def in_steps(self, *categories: Category) -> Ints:
        """Return the indices of the events of these categories that belong to a step."""
        return np.flatnonzero(np.isin(self.category, categories) & self.is_in_step)


def _overlapping(start_ns: Ints, end_ns: Ints, slack_ns: int, launch: Ints | None = None) -> list[int]:
    """Return the fewest events without which none overlaps another one by more than a slack, except of one launch.

    Of intervals that overlap, the one that ends first is kept: this keeps the largest number (interval scheduling).
    """
    launches = [NONE] * len(start_ns) if launch is None else launch.tolist()
    starts_ns, ends_ns = start_ns.tolist(), end_ns.tolist()
    overlapping, until_ns, last = list[int](), -slack_ns, NONE
    for event in np.lexsort((-start_ns, end_ns)).tolist():
        if starts_ns[event] >= until_ns - slack_ns or (launches[event] == last != NONE):
            until_ns, last = ends_ns[event], launches[event]
        else:
            overlapping.append(event)
    return overlapping


def load(path: Path) -> Trace:
    """Read a trace, plain or compressed with gzip; TraceError if it is missing, incomplete or too large."""
    with _opened(path) as text:
        return Trace(read_events(text))


def load_facts(path: Path) -> Document:
    """Return what a trace states before its events, such as `deviceProperties`; TraceError as for `load`."""
    with _opened(path) as text:
        return read_facts(text)


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        with open(path, "rb") as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
        opens = gzip.open if is_compressed else open
        with opens(path, "rt", encoding="utf-8-sig", errors="replace") as text:
            yield cast("IO[str]", text)
    except OSError as error:  # includes a file that is not, or not completely, compressed
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}") from error
    except (EOFError, ValueError, zlib.error) as error:
        raise TraceError(f"{path} is not a complete trace of torch's profiler: {error}") from error


def _printable(name: str) -> str:
    """Return a name without parts of characters, which JSON can contain and files cannot."""
    return name.encode(errors="replace").decode()


def _number(value: Any) -> float:
    """Return a value if it is a number that a column can have, else NaN; true, false and infinity are not."""
    return value if type(value) in (int, float) and abs(value) < MAX_NUMBER else math.nan
