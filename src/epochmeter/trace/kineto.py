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
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_EVENTS, TOO_MANY = 4_000_000, "after the limit"
"""Largest number of events that are kept, and the reason why the others are left out."""
CHUNK_CHARACTERS = 1 << 22
MAX_EVENT_CHARACTERS = 1 << 24  # also of the text before the first event
NS_PER_US = 1000
MAX_DISTANCE_US = 3600e6
"""Events further from the median start, or longer, have a wrong time, as after a jump of the clock."""
MAX_NUMBER = 2**63  # larger numbers do not fit into a column, and are unknown
NONE = -1  # an unknown integer, such as the device of an event on the host
SEPARATORS = re.compile(r"[\s,]*")
HEADER = re.compile(r'\s*(\{.*?"traceEvents"\s*:\s*)?\[', re.DOTALL)
"""Text before the first event, of a list of events or of an object with such a list."""
NOT_A_NUMBER = re.compile("-?(nan|inf)")  # values of counters that are not valid in JSON, as Kineto writes them
STEP_NAME = re.compile(r"ProfilerStep#(\d+)")


class TraceError(ValueError):
    """A trace that cannot be analyzed."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}\n  hint: record the trace again: run the configuration with `profiler=torch`")


class Category(IntEnum):
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
KERNEL_ARGUMENTS = ("blocks per SM", "est. achieved occupancy %")
INTEGER_ARGUMENTS = ("device", "correlation", "Sequence number")
INTEGERS = ("category", "name", "thread", "inputs", "device", "correlation", "sequence")
"""Columns of integers; the last three are arguments."""


@dataclass
class Trace:
    """Events in order of their start, one array per column; an unknown integer is -1, an unknown number is NaN."""

    start_ns: Ints  # since the first event
    duration_ns: Ints
    category: Ints
    name: Ints  # index in `names`
    thread: Ints  # index in `threads`: process and thread, on a device device and stream
    device: Ints
    correlation: Ints  # shared by an activity of the device and the call that launched it
    sequence: Ints  # autograd's, shared by a forward operator and its backward node
    blocks_per_sm: Floats  # thread blocks of the kernel per streaming multiprocessor (SM)
    occupancy: Floats  # achieved occupancy as estimated by Kineto, a fraction
    inputs: Ints  # index in `shapes`: the sizes of an operator's inputs, one list per input
    names: list[str]
    threads: list[tuple[str, str]]
    shapes: list[Any]
    left_out: Counter[str]  # number of events by reason

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
    """Read a trace, plain or compressed with gzip; TraceError if it is missing, damaged, or no trace of torch."""
    columns = _Columns()
    try:
        with open(path, "rb") as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if is_compressed else open(path, encoding="utf-8") as text:
            for event in _events(text, path):
                columns.add(event)
    except OSError as error:  # includes a file that is not, or not completely, compressed
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}") from error
    except (EOFError, UnicodeDecodeError, json.JSONDecodeError, zlib.error) as error:
        raise TraceError(f"the trace {path} is truncated or damaged: {error}") from error
    if not columns.integers:
        raise TraceError(f"the trace {path} has no events of torch's profiler")
    return columns.trace()


def _events(file: IO[str], path: Path) -> Iterator[dict[str, Any]]:
    """Decode the events of a file one by one, with as many reads as each needs."""
    decoder, text = json.JSONDecoder(), file.read(MAX_EVENT_CHARACTERS)
    if not text.strip():
        raise TraceError(f"the trace {path} is empty")
    if not (header := HEADER.match(text)):
        raise TraceError(f"{path} is no trace of torch's profiler: it has no `traceEvents`")
    at = header.end()
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


class _Columns:
    """Growing columns of a trace: rows of numbers, one after the other."""

    def __init__(self) -> None:
        self.numbers, self.integers = array("d"), array("q")
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[str, str], int] = {}
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
        elif len(self.integers) >= MAX_EVENTS * len(INTEGERS):
            self.left_out[TOO_MANY] += 1
        else:
            self.numbers.extend((start_us, duration_us))
            self._append(event, category)

    def _append(self, event: Mapping[str, Any], category: Category) -> None:
        """Append everything but the times of an event."""
        arguments = event["args"] if isinstance(event.get("args"), dict) else {}
        name = self.names.setdefault(str(event.get("name")), len(self.names))
        thread = self.threads.setdefault((str(event.get("pid")), str(event.get("tid"))), len(self.threads))
        shapes, inputs = arguments.get("Input Dims"), NONE
        if shapes is not None:
            inputs, _ = self.shapes.setdefault(repr(shapes), (len(self.shapes), shapes))
        for key in KERNEL_ARGUMENTS:
            number = arguments.get(key)
            self.numbers.append(number if _is_number(number) else math.nan)
        self.integers.extend((category, name, thread, inputs))
        for key in INTEGER_ARGUMENTS:
            integer = arguments.get(key)
            self.integers.append(integer if type(integer) is int and abs(integer) < MAX_NUMBER else NONE)

    def trace(self) -> Trace:
        """Return the events in order of their start."""
        start_us, duration_us, blocks_per_sm, occupancy = np.frombuffer(self.numbers).reshape(-1, 4).T
        near = (np.abs(start_us - np.median(start_us)) <= MAX_DISTANCE_US) & (duration_us <= MAX_DISTANCE_US)
        start_us = start_us - start_us.min(where=near, initial=start_us.max())
        start_ns, duration_ns = (np.rint(times_us * NS_PER_US).astype(np.int64) for times_us in (start_us, duration_us))
        # Of events that start at the same time, the longer one is the caller of the other.
        order = np.lexsort((-duration_ns, start_ns))
        order = order[near[order]]
        self.left_out += Counter({"more than an hour from the others": int((~near).sum())})
        integers = np.frombuffer(self.integers, np.int64).reshape(-1, len(INTEGERS))[order].T
        return Trace(
            start_ns=start_ns[order],
            duration_ns=duration_ns[order],
            blocks_per_sm=blocks_per_sm[order],
            occupancy=occupancy[order] / 100,
            **dict(zip(INTEGERS, np.ascontiguousarray(integers), strict=True)),
            names=list(self.names),
            threads=list(self.threads),
            shapes=[shapes for _, shapes in self.shapes.values()],
            left_out=self.left_out,
        )


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a column can have; true, false, NaN and infinity are not."""
    return type(value) in (int, float) and abs(value) < MAX_NUMBER
