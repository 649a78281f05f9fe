"""The module, phase and operator that each event of the host belongs to, and the innermost event at every instant."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from epochmeter.trace.device import DATA_WAIT
from epochmeter.trace.kineto import HOST, NONE, STEP_NAME, Bools, Category, Ints, Trace

PHASES = ("forward", "backward", "optimizer", "data", "loop")
FORWARD, BACKWARD, OPTIMIZER, DATA, LOOP = range(len(PHASES))
FURTHER_ROWS = [("(outside modules)", ""), ("(optimizer)", ""), ("(data)", "")]
"""Operators that no module calls, such as the loss; the optimizer; the wait for data."""
OUTSIDE, OPTIMIZER_STEP, DATA_LOADING = range(len(FURTHER_ROWS))
MODEL = "(model)"
MODULE = re.compile(r"(?:module: |nn\.Module: )(.*?)(?: \((\w+)\))?")
NODE = "autograd::engine::evaluate_function"
RANGES = (
    (re.compile(rf"{STEP_NAME.pattern}$"), (NONE, LOOP)),
    (re.compile(r"Tensor\.backward$"), (OUTSIDE, BACKWARD)),
    (re.compile(r"Optimizer\.(step|zero_grad)#"), (OPTIMIZER_STEP, OPTIMIZER)),
    (DATA_WAIT, (DATA_LOADING, DATA)),
)
"""Beginning of a range's name, and the module and phase of the events in it."""


@dataclass
class Owners:
    """Owners of each event of a trace; the last row, index -1, means no event."""

    module: Ints  # index in `modules`; -1 outside of forward, backward, optimizer and data
    phase: Ints  # index in `PHASES`
    operator: Ints  # the innermost operator: the event itself, or the nearest that called it; -1 if there is none
    modules: list[tuple[str, str]]  # name and class of each module, after `FURTHER_ROWS`
    stretches: dict[int, tuple[Ints, Ints]]
    """By thread, consecutive stretches of time: the start of each in ns, and the innermost event, or -1. The last has
    no end, and no event."""


def find_owners(trace: Trace) -> Owners:
    """Find the owners of all events of the host."""
    is_node = np.array([name.startswith(NODE) for name in trace.names])[trace.name]
    host, callers = trace.where(*HOST), np.full(len(trace.start_ns), NONE)
    stretches = {
        thread: _nest(trace, host[trace.thread[host] == thread], is_node, callers)
        for thread in np.unique(trace.thread[host]).tolist()
    }
    modules, ranges = _name_ranges(trace.names)
    return Owners(*_propagate(trace, host, is_node, callers, ranges), modules, stretches)


def _name_ranges(names: list[str]) -> tuple[list[tuple[str, str]], dict[int, tuple[int, int]]]:
    """Return the modules, and by index of a range's name the module and phase of the events in it."""
    modules = {row: index for index, row in enumerate(FURTHER_ROWS)}
    ranges: dict[int, tuple[int, int]] = {}
    for index, name in enumerate(names):
        if match := MODULE.fullmatch(name):
            module = match[1] or MODEL, match[2] or ""
            ranges[index] = modules.setdefault(module, len(modules)), FORWARD
        elif owner := next((owner for pattern, owner in RANGES if pattern.match(name)), None):
            ranges[index] = owner
    return list(modules), ranges


def _nest(trace: Trace, events: Ints, is_node: Bools, callers: Ints) -> tuple[Ints, Ints]:
    """Set the callers of a thread's events, and return its stretches; an event ends with its caller at the latest.

    The time of the autograd engine, before each of its nodes, belongs to that node.
    """
    begin_ns: list[int] = []
    innermost: list[int] = []
    running = [(sys.maxsize, NONE)]  # end and event of those that run, the innermost last

    def end_until(at_ns: int) -> None:
        while running[-1][0] <= at_ns:
            begin_ns.append(running.pop()[0])
            innermost.append(running[-1][1])

    columns = (events, trace.start_ns[events], trace.end_ns[events], is_node[events])
    for event, start_ns, end_ns, node in zip(*(column.tolist() for column in columns), strict=True):
        end_until(start_ns)
        caller_end_ns, callers[event] = running[-1]
        if node and callers[event] != NONE:
            innermost[-1] = event
        begin_ns.append(start_ns)
        innermost.append(event)
        running.append((min(end_ns, caller_end_ns), event))
    end_until(sys.maxsize - 1)
    return np.array(begin_ns), np.array(innermost)


def _propagate(
    trace: Trace, host: Ints, is_node: Bools, callers: Ints, ranges: dict[int, tuple[int, int]]
) -> tuple[Ints, Ints, Ints]:
    """Return module, phase and operator of each event: its own, or those of its caller, which starts before it."""
    rows = len(trace.start_ns) + 1
    module, phase, operator = [NONE] * rows, [LOOP] * rows, [NONE] * rows
    forward_module: dict[int, int] = {}  # by sequence number
    node_module: defaultdict[int, int] = defaultdict(int)  # of the last node in a thread, for nodes without a sequence
    columns = (host, callers[host], trace.name[host], trace.thread[host], trace.sequence[host], is_node[host])
    is_operator = (trace.category == Category.OPERATOR).tolist()
    for event, caller, name, thread, sequence, node in zip(*(column.tolist() for column in columns), strict=True):
        module[event], phase[event], operator[event] = module[caller], phase[caller], operator[caller]
        if node:  # of the backward pass: as the forward operator with the same sequence number
            module[event], phase[event] = forward_module.get(sequence, node_module[thread]), BACKWARD
            node_module[thread] = module[event]
        elif name in ranges:
            module[event], phase[event] = ranges[name]
        elif phase[event] == LOOP and is_operator[event]:
            module[event], phase[event] = OUTSIDE, FORWARD
        if is_operator[event] and name not in ranges:
            operator[event] = event
            if sequence != NONE:
                forward_module[sequence] = module[event]
    return np.array(module), np.array(phase), np.array(operator)
