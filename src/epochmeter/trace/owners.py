"""Module, phase and operator of each host event, and the innermost event at every instant."""

import re
import sys
from array import array
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from epochmeter.trace.device import DATA_WAIT
from epochmeter.trace.kineto import HOST, NONE, STEP_NAME, Category, Ints, Trace

PHASES = ("forward", "backward", "optimizer", "data", "loop")
FORWARD, BACKWARD, OPTIMIZER, DATA, LOOP = range(len(PHASES))
FURTHER_MODULES = [("(training loop)", ""), ("(outside modules)", ""), ("(optimizer)", ""), ("(data)", "")]
"""Python code outside operators; operators that no module calls, such as the loss; the optimizer; the wait for data."""
TRAINING_LOOP, OUTSIDE, OPTIMIZER_STEP, DATA_LOADING = range(len(FURTHER_MODULES))
MODEL = "(model)"
CHUNK_EVENTS = 100_000
MODULE = re.compile(r"module: (.*) \((.*)\)")  # name and class
NODE = "autograd::engine::evaluate_function"
RANGES = (
    (STEP_NAME, (TRAINING_LOOP, LOOP)),
    (re.compile(r"Tensor\.backward$"), (OUTSIDE, BACKWARD)),
    (re.compile(r"Optimizer\.(step|zero_grad)#"), (OPTIMIZER_STEP, OPTIMIZER)),
    (DATA_WAIT, (DATA_LOADING, DATA)),
)
"""Beginning of a range's name, and the module and phase of the events in it."""


class ThreadEvents:
    """The running events of a host thread, and consecutive stretches of time, each with its innermost event.

    An event ends with its caller at the latest. The autograd engine's time before a node belongs to that node.
    """

    def __init__(self) -> None:
        self.begin_ns = array("q")  # of stretches; the last one has no end and no event
        self.innermost = array("q")  # event of each stretch, or -1
        self.node_module = OUTSIDE  # of the last node of the backward pass, for nodes without a sequence number
        self._running = [(sys.maxsize, NONE)]  # end and event, the innermost last

    def begin(self, event: int, start_ns: int, end_ns: int, is_node: bool) -> int:
        """Begin an event and return its caller, or -1."""
        self.end_until(start_ns)
        caller_end_ns, caller = self._running[-1]
        if is_node and caller != NONE:
            self.innermost[-1] = event
        self.begin_ns.append(start_ns)
        self.innermost.append(event)
        self._running.append((min(end_ns, caller_end_ns), event))
        return caller

    def end_until(self, at_ns: int) -> None:
        while self._running[-1][0] <= at_ns:
            self.begin_ns.append(self._running.pop()[0])
            self.innermost.append(self._running[-1][1])


@dataclass
class Owners:
    """Owners of each event of a trace; the last row, index -1, means no event."""

    module: Ints  # index in `modules`
    phase: Ints  # index in `PHASES`
    operator: Ints  # the innermost operator: the event itself or its nearest caller; -1 without one
    modules: list[tuple[str, str]]  # name and class of each module, after `FURTHER_MODULES`
    threads: dict[int, ThreadEvents]


def find_owners(trace: Trace) -> Owners:
    """Return the owners of all host events. An event without owners of its own has those of its caller."""
    count = len(trace.start_ns) + 1
    module, phase, operator = (array("q", [owner]) * count for owner in (TRAINING_LOOP, LOOP, NONE))
    modules, ranges = _name_ranges(trace.names)
    threads: defaultdict[int, ThreadEvents] = defaultdict(ThreadEvents)
    forward_module: dict[tuple[int, int], int] = {}  # by thread and sequence number
    forward_threads = _forward_threads(trace)
    nodes = {index for index, name in enumerate(trace.names) if name.startswith(NODE)}
    host, autograd = trace.where(*HOST), (trace.sequence, trace.forward_thread)
    columns = (trace.start_ns, trace.end_ns, trace.category, trace.name, trace.thread, *autograd)
    parts = np.array_split(host, len(host) // CHUNK_EVENTS + 1)  # lists of Python integers need much memory
    rows = (row for chunk in parts for row in zip(chunk.tolist(), *(c[chunk].tolist() for c in columns), strict=True))
    for event, start_ns, end_ns, category, name, thread, sequence, forward_thread in rows:
        is_node, is_operator = name in nodes, category == Category.OPERATOR
        caller = threads[thread].begin(event, start_ns, end_ns, is_node)
        owner = module[caller], phase[caller]
        if is_node:  # of the backward pass: as the forward operator with the same sequence number in its thread
            if sequence != NONE:
                forward = forward_threads[forward_thread], sequence
                threads[thread].node_module = forward_module.get(forward, OUTSIDE)
            owner = threads[thread].node_module, BACKWARD
        elif name in ranges:
            owner = ranges[name]
        elif is_operator and phase[caller] == LOOP:
            owner = OUTSIDE, FORWARD
        module[event], phase[event] = owner
        if is_operator and name not in ranges:
            operator[event], forward_module[thread, sequence] = event, owner[0]
        else:
            operator[event] = operator[caller]
    for events in threads.values():
        events.end_until(sys.maxsize - 1)
    return Owners(np.array(module), np.array(phase), np.array(operator), modules, threads)


def _forward_threads(trace: Trace) -> defaultdict[int, int]:
    """Return the thread of forward operators by its number in backward nodes, from the links between both.

    Traces of older versions of torch have no links: all forward operators are taken to be those of the steps' thread.
    """
    starts = trace.where(Category.LINK_START)
    origins = dict(zip(trace.correlation[starts].tolist(), trace.thread[starts].tolist(), strict=True))
    by_thread = np.argsort(trace.thread, kind="stable")  # a link's end follows its node, which starts at the same time
    place = np.flatnonzero(trace.category[by_thread] == Category.LINK_END)
    links, numbers = trace.correlation[by_thread[place]], trace.forward_thread[by_thread[place - 1]]
    pairs = zip(links.tolist(), numbers.tolist(), strict=True)
    threads = {number: origins[link] for link, number in pairs if link in origins}
    return defaultdict(lambda: NONE if origins else int(trace.thread[trace.steps[0]]), threads)


def _name_ranges(names: list[str]) -> tuple[list[tuple[str, str]], dict[int, tuple[int, int]]]:
    """Return the modules, and by index of a range's name the module and phase of the events in it."""
    modules = {row: index for index, row in enumerate(FURTHER_MODULES)}
    ranges: dict[int, tuple[int, int]] = {}
    for index, name in enumerate(names):
        if match := MODULE.fullmatch(name):
            module = match[1] or MODEL, match[2]
            ranges[index] = modules.setdefault(module, len(modules)), FORWARD
        elif owner := next((owner for pattern, owner in RANGES if pattern.match(name)), None):
            ranges[index] = owner
    return list(modules), ranges
