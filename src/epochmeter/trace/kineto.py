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
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_EVENTS, TOO_MANY = 4_000_000, "after the limit"
"""Largest number of events that are kept, and the reason why the others are left out."""
CHUNK_CHARACTERS = 1 << 22
MAX_EVENT_CHARACTERS = 1 << 24
NS_PER_US = 1000
MAX_DISTANCE_US = 3600e6
"""Events further from the median start, or longer, have a wrong time, as after a jump of the clock."""
MAX_NUMBER = 2**63
"""Larger numbers do not fit into a column, and are unknown."""
NONE = -1
"""An unknown number, such as the device of an event on the host."""
SEPARATORS = re.compile(r"[\s,]*")
HEADER = re.compile(r'\s*(\{.*?"traceEvents"\s*:\s*)?\[', re.DOTALL)
"""Text before the first event, of a list of events or of an object with such a list."""
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
ARGUMENTS = {"device": "device", "correlation": "correlation", "sequence": "Sequence number"}
"""Column of integers -> argument of an event."""
KERNEL_ARGUMENTS = {"blocks_per_sm": "blocks per SM", "occupancy": "est. achieved occupancy %"}
"""Column of numbers -> argument of a kernel."""
FLOATS = ("start_us", "duration_us", *KERNEL_ARGUMENTS)
INTEGERS = ("category", "name", "thread", "inputs", *ARGUMENTS)


@dataclass
class Trace:
    """Events with a duration in order of their start, one array per column; times in ns since the first event.

    An unknown integer is -1, an unknown number is NaN.

    Attributes:
        category: `Category` of each event.
        name: Index of its name in `names`.
        thread: Index of its process and thread in `threads`; on a device the pair is device and stream.
        correlation: Number shared by an activity of the device and the call that launched it.
        sequence: Autograd's sequence number, shared by a forward operator and its backward node.
        blocks_per_sm: Thread blocks of the kernel per streaming multiprocessor (SM).
        occupancy: Achieved occupancy as estimated by Kineto, a fraction.
        inputs: Index in `shapes`: the sizes of an operator's inputs, one list per input.
        left_out: Number of events left out, by reason.
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
    left_out: Counter[str]

    @cached_property
    def end_ns(self) -> Ints:
        """End of each event."""
        return self.start_ns + self.duration_ns

    @cached_property
    def launch(self) -> Ints:
        """Index of the call that launched each event of the device; -1 for others, or if the call is not in the trace.

        One call may launch several kernels, such as the launch of a CUDA graph.
        """
        calls, device = self.where(Category.RUNTIME)[::-1], self.where(*DEVICE)
        by_correlation = dict(zip(self.correlation[calls].tolist(), calls.tolist(), strict=True)) | {NONE: NONE}
        launch = np.full(len(self.start_ns), NONE)
        launch[device] = [by_correlation.get(number, NONE) for number in self.correlation[device].tolist()]
        return launch

    @cached_property
    def steps(self) -> Ints:
        """Number, start and end in ns, and thread of each ProfilerStep, one row per step."""
        matches = {index: match for index, name in enumerate(self.names) if (match := STEP_NAME.fullmatch(name))}
        host = self.where(*HOST)
        events = host[np.isin(self.name[host], list(matches))]
        numbers = [int(matches[name][1]) for name in self.name[events].tolist()]
        columns = [np.array(numbers, np.int64), self.start_ns[events], self.end_ns[events], self.thread[events]]
        return np.stack(columns, axis=1)

    @cached_property
    def step(self) -> Ints:
        """Index in `steps` of the step of each event: by its start, and on a device by its launch; -1 outside."""
        index = np.searchsorted(self.steps[:, 1], self.start_ns, side="right") - 1
        step = np.where(self.start_ns < np.r_[self.steps[:, 2], 0][index], index, NONE)
        launched = np.flatnonzero(self.launch != NONE)
        step[launched] = step[self.launch[launched]]
        return step

    def where(self, *categories: Category, name: re.Pattern[str] | None = None) -> Ints:
        """Return the indices of the events of these categories whose name matches, in order of their start."""
        events: Ints = np.flatnonzero(np.isin(self.category, categories))
        if name:
            matches = np.array([bool(name.search(text)) for text in self.names])
            events = events[matches[self.name[events]]]
        return events

    def in_steps(self, *categories: Category) -> Ints:
        """Return the indices of the events of these categories that belong to a step."""
        return np.flatnonzero(np.isin(self.category, categories) & (self.step != NONE))


def load(path: Path) -> Trace:
    """Read a trace, plain or compressed with gzip.

    Raises:
        TraceError: The file is missing, empty, truncated, or no trace of torch's profiler.
    """
    columns = _Columns()
    try:
        with open(path, "rb") as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if is_compressed else open(path, encoding="utf-8") as text:
            for event in _events(text, path):
                columns.add(event)
    except OSError as error:  # includes a file that is not, or not completely, compressed
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}\n  {HINT}") from error
    except (EOFError, UnicodeDecodeError, json.JSONDecodeError, zlib.error) as error:
        raise TraceError(f"the trace {path} is truncated or damaged: {error}\n  {HINT}") from error
    if not columns.arrays["name"]:
        raise TraceError(f"the trace {path} has no events of torch's profiler\n  {HINT}")
    return columns.trace()


def _events(file: IO[str], path: Path) -> Iterator[dict[str, Any]]:
    """Decode the events of a file one by one, with as many reads as each needs."""
    decoder, text, at = json.JSONDecoder(), _without_header(file, path), 0
    while not text.startswith("]", at := SEPARATORS.match(text, at).end()):  # type: ignore[union-attr]
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if number := NOT_A_NUMBER.match(text, error.pos):
                text = f"{text[: error.pos]}NaN{text[number.end() :]}"
                continue
            more = file.read(CHUNK_CHARACTERS) if len(text) - at <= MAX_EVENT_CHARACTERS else ""
            if not more:
                raise
            text, at = text[at:] + more, 0
        else:
            if isinstance(event, dict):
                yield event


def _without_header(file: IO[str], path: Path) -> str:
    """Read until the first event, and return the text from there on."""
    text = file.read(CHUNK_CHARACTERS)
    if not text.strip():
        raise TraceError(f"the trace {path} is empty\n  {HINT}")
    while not (match := HEADER.match(text)):
        more = file.read(CHUNK_CHARACTERS) if text.lstrip().startswith("{") else ""
        if not more or len(text) > MAX_EVENT_CHARACTERS:
            raise TraceError(f"{path} is no trace of torch's profiler: it has no `traceEvents`\n  {HINT}")
        text += more
    return text[match.end() :]


class _Columns:
    """Growing columns of a trace."""

    def __init__(self) -> None:
        self.arrays = {name: array("d") for name in FLOATS} | {name: array("q") for name in INTEGERS}
        self.names: defaultdict[str, int] = defaultdict()
        self.threads: defaultdict[tuple[str, str], int] = defaultdict()
        self.names.default_factory, self.threads.default_factory = self.names.__len__, self.threads.__len__
        self.shapes: dict[str, tuple[int, Any]] = {}
        self.left_out: Counter[str] = Counter()

    def add(self, event: Mapping[str, Any]) -> None:
        """Append an event, or count it as left out; other phases and categories are skipped."""
        category = CATEGORIES.get(str(event.get("cat")).lower()) if event.get("ph") == "X" else None
        if category is None:
            return
        start_us, duration_us = event.get("ts"), event.get("dur", 0)
        if not (_is_number(start_us) and _is_number(duration_us)):
            self.left_out["without a time"] += 1
        elif duration_us < 0:
            self.left_out["with a negative duration"] += 1
        elif len(self.arrays["name"]) >= MAX_EVENTS:
            self.left_out[TOO_MANY] += 1
        else:
            row = (start_us, duration_us, *self._row(event, category))
            for column, value in zip(self.arrays.values(), row, strict=True):
                column.append(value)

    def _row(self, event: Mapping[str, Any], category: Category) -> Iterator[Any]:
        """Yield the values of all columns but the times."""
        arguments = event["args"] if isinstance(event.get("args"), dict) else {}
        for key in KERNEL_ARGUMENTS.values():
            number = arguments.get(key)
            yield number if _is_number(number) else math.nan
        yield category
        yield self.names[str(event.get("name"))]
        yield self.threads[str(event.get("pid")), str(event.get("tid"))]
        shapes = arguments.get("Input Dims")
        yield NONE if shapes is None else self.shapes.setdefault(repr(shapes), (len(self.shapes), shapes))[0]
        for key in ARGUMENTS.values():
            integer = arguments.get(key)
            yield integer if type(integer) is int and abs(integer) < MAX_NUMBER else NONE

    def trace(self) -> Trace:
        """Return the events in order of their start."""
        columns: dict[str, Any] = {name: np.frombuffer(values, values.typecode) for name, values in self.arrays.items()}
        start_us, duration_us = columns.pop("start_us"), columns.pop("duration_us")
        near = (np.abs(start_us - np.median(start_us)) <= MAX_DISTANCE_US) & (duration_us <= MAX_DISTANCE_US)
        start_us = start_us - start_us.min(where=near, initial=start_us.max())
        columns["start_ns"], columns["duration_ns"] = (
            np.rint(times_us * NS_PER_US).astype(np.int64) for times_us in (start_us, duration_us)
        )
        columns["occupancy"] = columns["occupancy"] / 100
        # Of events that start at the same time, the longer one is the caller of the other.
        order = np.lexsort((-columns["duration_ns"], columns["start_ns"]))
        order = order[near[order]]
        self.left_out += Counter({"more than an hour from the others": int((~near).sum())})
        return Trace(
            **{name: values[order] for name, values in columns.items()},
            names=list(self.names),
            threads=list(self.threads),
            shapes=[shapes for _, shapes in self.shapes.values()],
            left_out=self.left_out,
        )


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that a column can have; true, false, NaN and infinity are not."""
    return type(value) in (int, float) and abs(value) < MAX_NUMBER
