"""The module, phase and operator that each event of the host belongs to, and the innermost event at every instant.

A backward node belongs to the module of the forward operator with the same sequence number.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epochmeter.trace.device import DATA_WAIT
from epochmeter.trace.kineto import HOST, NONE, STEP_NAME, Category, Ints, Trace

PHASES = ("forward", "backward", "optimizer", "data", "loop")
FORWARD, BACKWARD, OPTIMIZER, DATA, LOOP = range(len(PHASES))
OUTSIDE, OPTIMIZER_STEP, DATA_LOADING = ("(outside modules)", ""), ("(optimizer)", ""), ("(data)", "")
"""Further rows: operators that no module calls, such as the loss; the optimizer; the wait for data."""
MODEL = "(model)"
MODULE = re.compile(r"(?:module: |nn\.Module: )(.*?)(?: \((\w+)\))?")
NODE = "autograd::engine::evaluate_function"
BACKWARD_RANGE = "Tensor.backward"
OPTIMIZER_RANGE = re.compile(r"Optimizer\.(step|zero_grad)#")


@dataclass
class Owners:
    """What each event of a trace belongs to; the last row, index -1, means no event.

    Attributes:
        module: Index in `modules`; -1 outside of forward, backward, optimizer and data.
        phase: Index in `PHASES`.
        operator: The innermost operator: the event itself, or the nearest that called it; -1 if there is none.
        modules: Name and class of each module, and of the further rows.
        stretches: By thread, consecutive stretches of time: the begin of each in ns, and the innermost event, or -1.
            The last has no end, and no event.
    """

    module: Ints
    phase: Ints
    operator: Ints
    modules: list[tuple[str, str]]
    stretches: dict[int, tuple[Ints, Ints]]


def find_owners(trace: Trace) -> Owners:
    """Find the owners of all events of the host, in one pass in order of time."""
    events = trace.where(*HOST)
    search = _Search(trace)
    is_operator = trace.category == Category.OPERATOR
    columns = (trace.start_ns, trace.end_ns, trace.thread, trace.name, trace.sequence, is_operator)
    for row in zip(events.tolist(), *(column[events].tolist() for column in columns), strict=True):
        search.add(*row)
    for thread in search.threads.values():
        thread.end_until(int(trace.end_ns.max()))
    module, phase, operator = (np.array(column, np.int64) for column in (search.module, search.phase, search.operator))
    stretches = {
        number: (np.array(thread.begin_ns, np.int64), np.array(thread.event, np.int64))
        for number, thread in search.threads.items()
    }
    return Owners(module, phase, operator, list(search.ranges.modules), stretches)


class _Ranges:
    """Meaning of the names of a trace's events, by index.

    Attributes:
        modules: Index of each module.
        steps: Names of the profiler's steps.
        nodes: Names of backward nodes.
        owners: Module and phase of what runs within a range.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.modules = {row: index for index, row in enumerate((OUTSIDE, OPTIMIZER_STEP, DATA_LOADING))}
        self.steps: set[int] = set()
        self.nodes: set[int] = set()
        self.owners: dict[int, tuple[int, int]] = {}
        for index, name in enumerate(names):
            if STEP_NAME.fullmatch(name):
                self.steps.add(index)
            elif name.startswith(NODE):
                self.nodes.add(index)
            elif owner := self._owner(name):
                self.owners[index] = owner

    def _owner(self, name: str) -> tuple[int, int] | None:
        if match := MODULE.fullmatch(name):
            module = (match[1] or MODEL, match[2] or "")
            return self.modules.setdefault(module, len(self.modules)), FORWARD
        if OPTIMIZER_RANGE.match(name):
            return self.modules[OPTIMIZER_STEP], OPTIMIZER
        if DATA_WAIT.match(name):
            return self.modules[DATA_LOADING], DATA
        return (self.modules[OUTSIDE], BACKWARD) if name == BACKWARD_RANGE else None


class _Thread:
    """Events of a thread, added in order of their start, and stretches of time by the innermost event."""

    def __init__(self) -> None:
        self.begin_ns: list[int] = []
        self.event: list[int] = []
        self.node_module = 0
        """Module of the last backward node; nodes without a forward operator, such as AccumulateGrad, belong to it."""
        self._open = [(sys.maxsize, NONE)]  # end and event, the innermost last

    def begin(self, event: int, start_ns: int, end_ns: int, is_node: bool) -> int:
        """Begin an event, which ends with its caller at the latest; return the caller, or -1.

        The time of the autograd engine, before each of its nodes, belongs to that node.
        """
        self.end_until(start_ns)
        caller_end_ns, caller = self._open[-1]
        if is_node and caller != NONE:
            self.event[-1] = event
        self._begin_stretch(start_ns, event)
        self._open.append((min(end_ns, caller_end_ns), event))
        return caller

    def end_until(self, at_ns: int) -> None:
        """End the events that end at a time or before."""
        while self._open[-1][0] <= at_ns:
            end_ns, _ = self._open.pop()
            self._begin_stretch(end_ns, self._open[-1][1])

    def _begin_stretch(self, at_ns: int, event: int) -> None:
        self.begin_ns.append(at_ns)
        self.event.append(event)


class _Search:
    """Owners of events that are added in order of their start, callers before what they call."""

    def __init__(self, trace: Trace) -> None:
        rows = len(trace.start_ns) + 1
        self.ranges = _Ranges(trace.names)
        self.module, self.phase, self.operator = [NONE] * rows, [LOOP] * rows, [NONE] * rows
        self.threads: defaultdict[int, _Thread] = defaultdict(_Thread)
        self._forward_module: dict[int, int] = {}  # by sequence number

    def add(
        self, event: int, start_ns: int, end_ns: int, thread: int, name: int, sequence: int, is_operator: bool
    ) -> None:
        """Add an event."""
        ranges, own_thread, is_node = self.ranges, self.threads[thread], name in self.ranges.nodes
        caller = own_thread.begin(event, start_ns, end_ns, is_node)
        if name in ranges.steps:  # belongs to nothing, as the row of no event
            return
        module, phase, operator = self.module[caller], self.phase[caller], self.operator[caller]
        if is_node:
            module, phase = self._forward_module.get(sequence, own_thread.node_module), BACKWARD
            own_thread.node_module = module
        elif name in ranges.owners:
            module, phase = ranges.owners[name]
        elif phase == LOOP and is_operator:
            module, phase = ranges.modules[OUTSIDE], FORWARD
        if is_operator and name not in ranges.owners:
            operator = event
            if sequence != NONE:
                self._forward_module[sequence] = module
        self.module[event], self.phase[event], self.operator[event] = module, phase, operator
