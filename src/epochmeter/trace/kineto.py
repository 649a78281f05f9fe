"""Reading of Kineto traces, torch's profiler format for CPU, CUDA and ROCm, into columns of numbers.

Events are decoded one by one from a sliding buffer, so that memory is bounded by the columns, not by the file.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_EVENTS = 1_500_000
"""Largest number of events that are kept per category."""
CHUNK_CHARACTERS = 1 << 22
MAX_EVENT_CHARACTERS = 1 << 24
NS_PER_US = 1000
MAX_DISTANCE_US = 3600e6
"""Events further from the median start, or longer, have a wrong time, as after a jump of the clock."""
MAX_NUMBER = 2**63
"""Larger numbers do not fit into a column, and are unknown."""
NONE = -1
"""An unknown number, such as the device of an event on the host."""
SPACES = re.compile(r"\s*")
NOT_A_NUMBER = re.compile("-?(nan|inf)")
"""Values of counters that are not valid in JSON, as Kineto writes them."""
STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
HINT = "hint: record the trace again: run the configuration with `profiler=torch`"


class TraceError(ValueError):
    """A trace that cannot be analyzed."""


class Category(IntEnum):
    """Kind of an event; `HOST` and `DEVICE` group them."""

    OPERATOR = 0
    ANNOTATION = 1
    RUNTIME = 2
    KERNEL = 3
    COPY = 4
    SET = 5


HOST = (Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME)
DEVICE = (Category.KERNEL, Category.COPY, Category.SET)
CATEGORIES = {
    **dict.fromkeys(("cpu_op", "operator"), Category.OPERATOR),
    "user_annotation": Category.ANNOTATION,
    **dict.fromkeys(("runtime", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), Category.RUNTIME),
    "kernel": Category.KERNEL,
    **dict.fromkeys(("memcpy", "gpu_memcpy"), Category.COPY),
    **dict.fromkeys(("memset", "gpu_memset"), Category.SET),
}
"""Kineto's categories, in lower case; older versions of torch write the shorter names. All others are skipped."""
INTEGERS = {"device": "device", "correlation": "correlation", "sequence": "Sequence number"}
"""Column of integers -> argument of an event."""
NUMBERS = {"blocks_per_sm": "blocks per SM", "occupancy": "est. achieved occupancy %"}
"""Column of numbers -> argument of a kernel."""
COLUMNS = ("start_us", "duration_us", *NUMBERS, "category", "name", "thread", "inputs", *INTEGERS)
FLOATS = 2 + len(NUMBERS)
"""Number of columns of floating-point numbers, which come first."""


@dataclass
class Trace:
    """Events with a duration in order of their start, one array per column; times in ns since the first event.

    An unknown integer is -1, an unknown number is NaN.

    Attributes:
        start_ns: Start of each event.
        duration_ns: Its duration.
        category: Its `Category`.
        name: Index of its name in `names`.
        thread: Index of its process and thread in `threads`; on a device the pair is device and stream.
        device: Number of the device.
        correlation: Number shared by an activity of the device and the call that launched it.
        sequence: Autograd's sequence number, shared by a forward operator and its backward node.
        blocks_per_sm: Thread blocks of the kernel per streaming multiprocessor (SM).
        occupancy: Achieved occupancy as estimated by Kineto, a fraction.
        inputs: Index in `shapes` of the sizes of an operator's inputs.
        shapes: Sizes of an operator's inputs, one list per input.
        left_out: Number of events left out, by reason.
        incomplete: Categories of which events were left out because there are more than `MAX_EVENTS`.
    """

    start_ns: Ints
    duration_ns: Ints
    category: Ints
    name: Ints
    thread: Ints
    device: Ints
    correlation: Ints
    sequence: Ints
    blocks_per_sm: Floats
    occupancy: Floats
    inputs: Ints
    names: list[str]
    threads: list[tuple[str, str]]
    shapes: list[Any]
    left_out: Counter[str] = field(default_factory=Counter)
    incomplete: set[Category] = field(default_factory=set)

    @cached_property
    def end_ns(self) -> Ints:
        """End of each event."""
        return self.start_ns + self.duration_ns

    @cached_property
    def launch(self) -> Ints:
        """Index of the call that launched each event of the device; -1 for others, or if the call is not in the trace.

        One call may launch several kernels, such as the launch of a CUDA graph.
        """
        launch = np.full(len(self.start_ns), NONE)
        calls = np.flatnonzero((self.category == Category.RUNTIME) & (self.correlation != NONE))
        if len(calls):
            device = self.where(*DEVICE)
            calls = calls[np.argsort(self.correlation[calls], kind="stable")]
            place = np.searchsorted(self.correlation[calls], self.correlation[device])
            call = calls[np.minimum(place, len(calls) - 1)]
            launch[device] = np.where(self.correlation[call] == self.correlation[device], call, NONE)
        return launch

    @cached_property
    def steps(self) -> Ints:
        """Number, start and end in ns, and thread of each ProfilerStep, one row per step."""
        numbers = {
            index: int(match[1]) for index, name in enumerate(self.names) if (match := STEP_NAME.fullmatch(name))
        }
        host = self.where(*HOST)
        events = host[np.isin(self.name[host], list(numbers))]
        number = np.array([numbers[name] for name in self.name[events].tolist()], np.int64)
        return np.stack([number, self.start_ns[events], self.end_ns[events], self.thread[events]], axis=1)

    @cached_property
    def step(self) -> Ints:
        """Index in `steps` of the step of each event: by its start, and on a device by its launch; -1 outside."""
        index = np.searchsorted(self.steps[:, 1], self.start_ns, side="right") - 1
        step = np.where(self.start_ns < np.r_[self.steps[:, 2], 0][index], index, NONE)
        launched = np.flatnonzero(self.launch != NONE)
        step[launched] = step[self.launch[launched]]
        return step

    def where(self, *categories: Category) -> Ints:
        """Return the indices of the events of these categories, in order of their start."""
        return np.flatnonzero(np.isin(self.category, categories))

    def in_steps(self, *categories: Category) -> Ints:
        """Return the indices of the events of these categories that belong to a step."""
        return np.flatnonzero(np.isin(self.category, categories) & (self.step != NONE))


def load(path: Path) -> Trace:
    """Read a trace, plain or compressed with gzip.

    Raises:
        TraceError: The file is missing, empty, truncated, or no trace of torch's profiler.
    """
    columns = _Columns()
    for event in Reader(path).events():
        columns.add(event)
    if not columns.count:
        raise TraceError(f"the trace {path} has no events of torch's profiler\n  {HINT}")
    return columns.trace()


def _damaged(path: Path, why: str) -> TraceError:
    return TraceError(f"the trace {path} is truncated or damaged: {why}\n  {HINT}")


class Reader:
    """Decodes the events of a file one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text, self._at = "", 0
        self._decoder = json.JSONDecoder()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield all events.

        Raises:
            TraceError: The file is missing, empty, truncated, or no trace of torch's profiler.
        """
        try:
            yield from self._events()
        except OSError as error:  # includes a file that is not, or not completely, compressed
            raise TraceError(f"cannot read the trace {self.path}: {error.strerror or error}\n  {HINT}") from error
        except (EOFError, UnicodeDecodeError, zlib.error) as error:
            raise _damaged(self.path, str(error)) from error

    def _events(self) -> Iterator[dict[str, Any]]:
        with open(self.path, "rb") as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(self.path, "rt", encoding="utf-8") if is_compressed else open(self.path, encoding="utf-8") as f:
            self._file = f
            self._skip_header()
            while self._next_character() != "]":
                event = self._decode()
                if isinstance(event, dict):
                    yield event
                if self._next_character() == ",":
                    self._at += 1

    def _skip_header(self) -> None:
        """Go to the first event of a list, or of an object's list `traceEvents`."""
        if not self._next_character():
            raise TraceError(f"the trace {self.path} is empty\n  {HINT}")
        if self._text[self._at] == "[":
            self._at += 1
            return
        while not (match := re.search(r'"traceEvents"\s*:\s*\[', self._text)):
            if self._text[self._at] != "{" or len(self._text) > MAX_EVENT_CHARACTERS or not self._read():
                raise TraceError(f"{self.path} is no trace of torch's profiler: it has no `traceEvents`\n  {HINT}")
        self._at = match.end()

    def _next_character(self) -> str:
        """Return the next character that is no space, without consuming it; empty at the end of the file."""
        while True:
            self._at = SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def _read(self) -> bool:
        """Read more of the file; return whether there was more."""
        more = self._file.read(CHUNK_CHARACTERS)
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)

    def _decode(self) -> object:
        """Decode the next event, with as many reads as it needs."""
        while True:
            try:
                event, self._at = self._decoder.raw_decode(self._text, self._at)
                return event
            except json.JSONDecodeError as error:
                if number := NOT_A_NUMBER.match(self._text, error.pos):
                    self._text = f"{self._text[: error.pos]}NaN{self._text[number.end() :]}"
                    continue
                too_long = len(self._text) - self._at > MAX_EVENT_CHARACTERS
                if too_long or not self._read():
                    raise _damaged(self.path, str(error)) from error


class _Columns:
    """Growing columns of a trace."""

    def __init__(self) -> None:
        self._arrays = [array("d" if place < FLOATS else "q") for place in range(len(COLUMNS))]
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._shapes: dict[str, int] = {}
        self._shape_values: list[Any] = []
        self._per_category = [0] * len(Category)
        self._left_out: Counter[str] = Counter()
        self._incomplete: set[Category] = set()

    @property
    def count(self) -> int:
        return len(self._arrays[0])

    def add(self, event: Mapping[str, Any]) -> None:
        """Append an event, or count it as left out; other phases and categories are skipped."""
        category = CATEGORIES.get(str(event.get("cat")).lower()) if event.get("ph") == "X" else None
        if category is None:
            return
        start: Any = event.get("ts")
        duration: Any = event.get("dur", 0)
        if not (is_number(start) and is_number(duration)):
            self._left_out["without a time"] += 1
        elif duration < 0:
            self._left_out["with a negative duration"] += 1
        elif self._per_category[category] >= MAX_EVENTS:
            self._left_out[f"more than {MAX_EVENTS:,} of the category {category.name.lower()}"] += 1
            self._incomplete.add(category)
        else:
            self._per_category[category] += 1
            row = (start, duration, *self._row(event, category))
            for column, value in zip(self._arrays, row, strict=True):
                column.append(value)

    def _row(self, event: Mapping[str, Any], category: Category) -> Iterator[float]:
        """Yield the values of all columns but the times."""
        given = event.get("args")
        arguments: Mapping[str, Any] = given if isinstance(given, dict) else {}
        for key in NUMBERS.values():
            number: Any = arguments.get(key) if category == Category.KERNEL else None
            yield number if is_number(number) else math.nan
        yield category
        yield self._names.setdefault(str(event.get("name")), len(self._names))
        yield self._threads.setdefault((str(event.get("pid")), str(event.get("tid"))), len(self._threads))
        yield self._inputs(arguments["Input Dims"]) if "Input Dims" in arguments else NONE
        for key in INTEGERS.values():
            integer = arguments.get(key)
            yield integer if type(integer) is int and abs(integer) < MAX_NUMBER else NONE

    def _inputs(self, shapes: object) -> int:
        key = repr(shapes)
        if key not in self._shapes:
            self._shapes[key] = len(self._shape_values)
            self._shape_values.append(shapes)
        return self._shapes[key]

    def trace(self) -> Trace:
        """Return the events in order of their start."""
        columns: dict[str, Any] = {
            name: np.frombuffer(values, values.typecode) for name, values in zip(COLUMNS, self._arrays, strict=True)
        }
        start_us = columns.pop("start_us")
        near = np.abs(start_us - np.median(start_us)) <= MAX_DISTANCE_US
        near &= columns["duration_us"] <= MAX_DISTANCE_US
        if not near.all():
            self._left_out["more than an hour from the others"] += int(np.count_nonzero(~near))
        columns["start_ns"] = _nanoseconds(start_us - start_us[near].min())
        columns["duration_ns"] = _nanoseconds(columns.pop("duration_us"))
        columns["occupancy"] = columns["occupancy"] / 100
        # Of events that start at the same time, the longer one is the caller of the other.
        order = np.lexsort((-columns["duration_ns"], columns["start_ns"]))
        order = order[near[order]]
        return Trace(
            **{name: values[order] for name, values in columns.items()},
            names=list(self._names),
            threads=list(self._threads),
            shapes=self._shape_values,
            left_out=self._left_out,
            incomplete=self._incomplete,
        )


def is_number(value: Any) -> bool:
    """Return whether a value is a number that a column can have; true, false, NaN and infinity are not."""
    return type(value) in (int, float) and abs(value) < MAX_NUMBER


def _nanoseconds(microseconds: Floats) -> Ints:
    return np.rint(microseconds * NS_PER_US).astype(np.int64)
