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
"""Most events that are kept per category."""
CHUNK_CHARACTERS = 1 << 22
MAX_EVENT_CHARACTERS = 1 << 24
NS_PER_US = 1000
MAX_DISTANCE_US = 3600e6
"""Events further from the median start have a wrong time, as after a jump of the clock."""
NONE = -1
"""An unknown number, such as the stream of an event on the host."""
SPACES = re.compile(r"\s*")
STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
HINT = "hint: record it again: run the job with `profiler=torch`"


class TraceError(ValueError):
    """A trace that cannot be analyzed."""


class Category(IntEnum):
    """Kind of an event; `DEVICE` and `HOST` group them."""

    OPERATOR = 0
    ANNOTATION = 1
    RUNTIME = 2
    PYTHON = 3
    KERNEL = 4
    COPY = 5
    SET = 6
    SYNC = 7


HOST = (Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME)
DEVICE = (Category.KERNEL, Category.COPY, Category.SET)
CATEGORIES = {
    **dict.fromkeys(("cpu_op", "operator"), Category.OPERATOR),
    "user_annotation": Category.ANNOTATION,
    **dict.fromkeys(("runtime", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), Category.RUNTIME),
    "python_function": Category.PYTHON,
    "kernel": Category.KERNEL,
    **dict.fromkeys(("memcpy", "gpu_memcpy"), Category.COPY),
    **dict.fromkeys(("memset", "gpu_memset"), Category.SET),
    "cuda_sync": Category.SYNC,
}
"""Kineto's categories, in lower case; older versions of torch write the shorter names."""
INTEGERS = {
    "stream": "stream",
    "device": "device",
    "correlation": "correlation",
    "bytes": "bytes",
    "Sequence number": "sequence",
}
"""Argument of an event -> column of integers."""
NUMBERS = {"blocks per SM": "blocks_per_sm", "est. achieved occupancy %": "occupancy_percent"}
"""Argument of an event -> column of numbers."""
MEMORY = {"Addr": "address", "Bytes": "bytes", "Total Allocated": "allocated_bytes", "Device Type": "device_type"}
"""Argument of a memory event -> its column."""


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
        stream: Stream of the device.
        device: Number of the device.
        correlation: Number shared by an activity of the device and the call that launched it.
        sequence: Autograd's sequence number, shared by a forward operator and its backward node.
        bytes: Copied or set bytes.
        blocks_per_sm: Thread blocks of the kernel per streaming multiprocessor (SM).
        occupancy_percent: Achieved occupancy as estimated by Kineto.
        inputs: Index in `arguments` of an operator's inputs.
        step: Index in `steps` of the step an event belongs to: by its start, and on a device by its launch.
        steps: Number, start and end in ns of each ProfilerStep, one row per step.
        arguments: Shapes, types and concrete values of inputs, as in the trace.
        memory: Memory events in order of time: `at_ns`, `thread`, `address`, `bytes` (negative: freed),
            `allocated_bytes` and `device_type` (0: CPU, 1: CUDA or ROCm).
        properties: Properties of the machine's devices, such as name, numSms and computeMajor.
        left_out: Number of events left out, by reason.
        incomplete: Categories of which events were left out because there are more than `MAX_EVENTS`.
    """

    start_ns: Ints
    duration_ns: Ints
    category: NDArray[np.int8]
    name: Ints
    thread: Ints
    stream: Ints
    device: Ints
    correlation: Ints
    sequence: Ints
    bytes: Ints
    blocks_per_sm: Floats
    occupancy_percent: Floats
    inputs: Ints
    step: Ints
    steps: Ints
    names: list[str]
    threads: list[tuple[str, str]]
    arguments: list[dict[str, Any]]
    memory: dict[str, Ints]
    properties: list[dict[str, Any]]
    left_out: Counter[str] = field(default_factory=Counter)
    incomplete: set[Category] = field(default_factory=set)

    @cached_property
    def end_ns(self) -> Ints:
        """End of each event."""
        return self.start_ns + self.duration_ns

    def where(self, *categories: Category) -> Ints:
        """Return the indices of the events of these categories, in order of their start."""
        return np.flatnonzero(np.isin(self.category, categories))


def load(path: Path) -> Trace:
    """Read a trace, plain or compressed with gzip.

    Raises:
        TraceError: The file is missing, empty, truncated, or no trace of torch's profiler.
    """
    reader = _Reader(path)
    columns = _Columns()
    try:
        for event in reader.events():
            columns.add(event)
    except OSError as error:  # includes a file that is not, or not completely, compressed
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}\n  {HINT}") from error
    except (EOFError, UnicodeDecodeError, zlib.error) as error:
        raise _damaged(path, str(error)) from error
    if not columns.count:
        raise TraceError(f"the trace {path} has no events of torch's profiler\n  {HINT}")
    return columns.trace(reader.metadata.get("deviceProperties", []))


def _damaged(path: Path, why: str) -> TraceError:
    return TraceError(f"the trace {path} is truncated or damaged: {why}\n  {HINT}")


class _Reader:
    """Decodes the events of a file one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self._text, self._at = "", 0
        self._decoder = json.JSONDecoder()

    def events(self) -> Iterator[dict[str, Any]]:
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
            self._at += 1
            self._text += self._file.read(CHUNK_CHARACTERS)
        self._note_metadata("{" + self._text[self._at :].lstrip(" \r\n\t,"))

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
        self._note_metadata(self._text[: match.start()].rstrip(" \r\n\t,") + "}")
        self._at = match.end()

    def _note_metadata(self, text: str) -> None:
        try:
            self.metadata.update(json.loads(text))
        except ValueError:
            return  # written by a program that puts other things there; nothing in it is necessary

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
            except ValueError as error:
                too_long = len(self._text) - self._at > MAX_EVENT_CHARACTERS
                if too_long or not self._read():
                    raise _damaged(self.path, str(error)) from error


class _Columns:
    """Growing columns of a trace."""

    def __init__(self) -> None:
        self.count = 0
        self._start_us, self._duration_us = array("d"), array("d")
        self._category, self._name, self._thread = array("b"), array("q"), array("q")
        self._integers = {column: array("q") for column in INTEGERS.values()}
        self._numbers = {column: array("d") for column in NUMBERS.values()}
        self._inputs = array("q")
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._arguments: dict[str, int] = {}
        self._argument_values: list[dict[str, Any]] = []
        self._memory = {column: array("d" if column == "at_us" else "q") for column in MEMORY_COLUMNS}
        self._per_category = [0] * len(Category)
        self._left_out: Counter[str] = Counter()
        self._incomplete: set[Category] = set()

    def add(self, event: Mapping[str, Any]) -> None:
        """Append an event, or count it as left out; flows and metadata are skipped."""
        phase, name = event.get("ph"), event.get("name")
        if phase == "i" and name == "[memory]":
            self._add_memory(event)
            return
        if phase != "X":
            return
        category = CATEGORIES.get(str(event.get("cat")).lower())
        if category is None:
            return
        start: Any = event.get("ts")
        duration: Any = event.get("dur", 0)
        if not (_is_number(start) and _is_number(duration)):
            self._left_out["without a time"] += 1
        elif duration < 0:
            self._left_out["with a negative duration"] += 1
        elif self._per_category[category] >= MAX_EVENTS:
            self._left_out[f"more than {MAX_EVENTS:,} of the category {category.name.lower()}"] += 1
            self._incomplete.add(category)
        else:
            self._append(event, category, str(name), start, duration)

    def _append(self, event: Mapping[str, Any], category: Category, name: str, start: float, duration: float) -> None:
        self.count += 1
        self._per_category[category] += 1
        self._start_us.append(start)
        self._duration_us.append(duration)
        self._category.append(category)
        self._name.append(self._names.setdefault(name, len(self._names)))
        self._thread.append(self._thread_of(event))
        arguments = event.get("args") or {}
        for key, column in INTEGERS.items():
            value = arguments.get(key, NONE)
            self._integers[column].append(value if type(value) is int and abs(value) < 2**63 else NONE)
        is_kernel = category == Category.KERNEL
        for key, column in NUMBERS.items():
            number: Any = arguments.get(key) if is_kernel else None
            self._numbers[column].append(number if _is_number(number) else math.nan)
        self._inputs.append(self._inputs_of(arguments) if category == Category.OPERATOR else NONE)

    def _thread_of(self, event: Mapping[str, Any]) -> int:
        key = str(event.get("pid")), str(event.get("tid"))
        return self._threads.setdefault(key, len(self._threads))

    def _inputs_of(self, arguments: Mapping[str, Any]) -> int:
        if "Input Dims" not in arguments:
            return NONE
        inputs = {key: arguments.get(key) for key in ("Input Dims", "Input type", "Concrete Inputs")}
        key = repr(inputs)
        if key not in self._arguments:
            self._arguments[key] = len(self._argument_values)
            self._argument_values.append(inputs)
        return self._arguments[key]

    def _add_memory(self, event: Mapping[str, Any]) -> None:
        columns, arguments = self._memory, event.get("args") or {}
        if len(columns["at_us"]) >= MAX_EVENTS or not _is_number(event.get("ts")):
            self._left_out["memory events"] += 1
            return
        columns["at_us"].append(event["ts"])
        columns["thread"].append(self._thread_of(event))
        for key, column in MEMORY.items():
            value = arguments.get(key, NONE)
            columns[column].append(value if type(value) is int and abs(value) < 2**63 else NONE)

    def trace(self, properties: object) -> Trace:
        """Return the events in order of their start, with their steps."""
        start_us = np.frombuffer(self._start_us)
        near = np.abs(start_us - np.median(start_us)) <= MAX_DISTANCE_US
        if not near.all():
            self._left_out["more than an hour from the others"] += int(np.count_nonzero(~near))
        origin_us = start_us[near].min()
        start_ns = _nanoseconds(start_us - origin_us)
        duration_ns = _nanoseconds(np.frombuffer(self._duration_us))
        # Of events that start at the same time, the longer one is the caller of the other.
        order = np.lexsort((-duration_ns, start_ns))
        order = order[near[order]]
        arrays: dict[str, array[Any]] = {**self._integers, **self._numbers}
        columns: dict[str, Any] = {
            column: np.frombuffer(values, values.typecode)[order] for column, values in arrays.items()
        }
        memory = {column: np.frombuffer(values, values.typecode) for column, values in self._memory.items()}
        memory["at_ns"] = _nanoseconds(memory.pop("at_us") - origin_us)
        memory_order = np.argsort(memory["at_ns"], kind="stable")
        trace = Trace(
            start_ns=start_ns[order],
            duration_ns=duration_ns[order],
            category=np.frombuffer(self._category, np.int8)[order],
            name=np.frombuffer(self._name, np.int64)[order],
            thread=np.frombuffer(self._thread, np.int64)[order],
            **columns,
            inputs=np.frombuffer(self._inputs, np.int64)[order],
            step=np.full(len(order), NONE),
            steps=np.empty((0, 3), np.int64),
            names=list(self._names),
            threads=list(self._threads),
            arguments=self._argument_values,
            memory={column: values[memory_order] for column, values in memory.items()},
            properties=[device for device in properties if isinstance(device, dict)]
            if isinstance(properties, list)
            else [],
            left_out=self._left_out,
            incomplete=self._incomplete,
        )
        _find_steps(trace)
        return trace


MEMORY_COLUMNS = ("at_us", "thread", *MEMORY.values())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _nanoseconds(microseconds: Floats) -> Ints:
    return np.rint(microseconds * NS_PER_US).astype(np.int64)


def _find_steps(trace: Trace) -> None:
    """Set the steps, and the step of each event."""
    matches = {index: match for index, name in enumerate(trace.names) if (match := STEP_NAME.fullmatch(name))}
    host = np.isin(trace.category, HOST)
    rows = [
        (int(matches[trace.name[index]][1]), trace.start_ns[index], trace.end_ns[index])
        for index in np.flatnonzero(host & np.isin(trace.name, list(matches)))
    ]
    trace.steps = np.array(rows, np.int64).reshape(-1, 3)
    if not rows:
        return
    trace.step = _step_at(trace.steps, trace.start_ns)
    launches = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.correlation != NONE))
    device = np.flatnonzero(np.isin(trace.category, DEVICE))
    launch = match_launches(trace, device, launches)
    launched = launch != NONE
    trace.step[device[launched]] = trace.step[launch[launched]]


def _step_at(steps: Ints, at_ns: Ints) -> Ints:
    """Return the step that contains each time; -1 outside all steps."""
    index = np.searchsorted(steps[:, 1], at_ns, side="right") - 1
    return np.where((index >= 0) & (at_ns < steps[index, 2]), index, NONE)


def match_launches(trace: Trace, device: Ints, launches: Ints) -> Ints:
    """Return for each activity of the device the index of the call that launched it; -1 if it is not in the trace."""
    if not len(launches):
        return np.full(len(device), NONE)
    order = launches[np.argsort(trace.correlation[launches], kind="stable")]
    numbers = trace.correlation[order]
    match = np.minimum(np.searchsorted(numbers, trace.correlation[device]), len(order) - 1)
    return np.where(numbers[match] == trace.correlation[device], order[match], NONE)
