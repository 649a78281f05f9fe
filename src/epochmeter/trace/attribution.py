"""Time of the traced steps by module, operator and kernel.

A step's time is divided completely: every instant of the step's thread belongs to the innermost event at that time
(an operator, a module's range, the step itself). On a device the time of each kernel belongs to the event that launched
it. A backward node belongs to the module of the forward operator with the same sequence number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epochmeter.trace.device import DATA_WAIT, S_PER_NS, Intervals, weighted_mean
from epochmeter.trace.energy import TracedPower
from epochmeter.trace.flops import kernel_flops
from epochmeter.trace.kernels import classify
from epochmeter.trace.kineto import HOST, NONE, STEP_NAME, Category, Ints, Trace, match_launches

PHASES = ("forward", "backward", "optimizer", "data", "loop")
FORWARD, BACKWARD, OPTIMIZER, DATA, LOOP = range(len(PHASES))
MODULE = re.compile(r"(?:module: |nn\.Module: )(.*?)(?: \((\w+)\))?")
NODE = "autograd::engine::evaluate_function"
BACKWARD_RANGE = "Tensor.backward"
OPTIMIZER_RANGE = re.compile(r"Optimizer\.(step|zero_grad)#")
OUTSIDE = 0
"""Index of the operators outside all modules, such as the loss, in the modules of a trace."""
TRAINING_LOOP = "(training loop)"
MODEL = "(model)"
PYTHON = "(Python)"
IDLE_NAME = "(idle)"
"""Name of the time without a kernel."""
AROUND_MEAN = 5


@dataclass
class ModuleTime:
    """Time of a module without the modules in it; `phases_s` has forward, backward and so on.

    `energy_j` and the half-width of its 95 % confidence interval are of all traced steps; None if they are unknown.
    """

    name: str
    kind: str
    phases_s: dict[str, float]
    energy_j: float | None = None
    energy_half_width_j: float | None = None

    @property
    def total_s(self) -> float:
        """Time of all phases."""
        return sum(self.phases_s.values())


@dataclass
class Activity:
    """Time of all operators, or kernels, of one name; `inputs` are the most frequent shapes.

    Time of Python code outside operators has no calls.
    For kernels, `utilization` is the mean achieved occupancy, weighted by duration; `flops` are those of all calls, or
    None. Energy is as in `ModuleTime`.
    """

    name: str
    calls: int
    total_s: float
    inputs: str | None = None
    precision: str | None = None
    tensor_cores: bool | None = None
    utilization: float | None = None
    flops: float | None = None
    energy_j: float | None = None
    energy_half_width_j: float | None = None


@dataclass
class Attribution:
    """Where the time of the traced steps went.

    Attributes:
        basis: `device` if kernels were divided, `host` if the time of the steps' thread was.
        total_s: The divided time: of all kernels, or of all steps.
        explained_fraction: Fraction of it that belongs to a module, an operator, the optimizer or data loading.
        modules: Time by module, the longest first.
        operators: Time by operator, the longest first.
        kernels: Time by kernel, the longest first.
        above: The longest kernels with at least the mean utilization.
        below: The longest kernels with less than the mean utilization.
        mean_utilization: Mean of the kernels' utilization, weighted by duration.
        threads: Fraction of the steps' time in which each thread of the host ran operators.
        energy_reasons: Why modules or operators have no energy.
    """

    basis: str
    total_s: float
    explained_fraction: float
    modules: list[ModuleTime]
    operators: list[Activity]
    kernels: list[Activity] = field(default_factory=list)
    above: list[Activity] = field(default_factory=list)
    below: list[Activity] = field(default_factory=list)
    mean_utilization: float | None = None
    threads: dict[str, float] = field(default_factory=dict)
    energy_reasons: list[str] = field(default_factory=list)


@dataclass
class _Owners:
    """For each event of the host: the module, phase and operator it belongs to, and when it is the innermost event.

    The last row, -1, has no event.
    """

    events: Ints
    module: Ints
    phase: Ints
    operator: Ints
    modules: list[tuple[str, str]]
    stretches: _Stretches


class _Stretches(NamedTuple):
    """Consecutive stretches of the time of threads: begin, length, and the row of the owner, or -1."""

    thread: Ints
    begin_ns: Ints
    length_ns: Ints
    row: Ints

    @classmethod
    def of(cls, thread: Ints, start: Ints, end: Ints, following: Ints) -> _Stretches:
        """Divide the time of threads among the innermost of nested intervals.

        Args:
            thread: Thread of each interval.
            start: Start of each interval in ns; an interval begins after those that contain it.
            end: End of each interval.
            following: Row of the owner after each interval, or -1.
        """
        rows = np.arange(len(start))
        # At one time, first inner and then outer intervals end; then outer ones start before inner ones.
        place = np.r_[np.where(end > start, -1 - rows, 2 * rows + 1), 2 * rows]
        columns = np.r_[thread, thread], np.r_[end, start], np.r_[following, rows]
        order = np.lexsort((place, columns[1], columns[0]))
        thread, begin_ns, row = (column[order] for column in columns)
        return cls(thread, begin_ns, np.diff(begin_ns, append=begin_ns[-1:]), row)

    def where(self, selected: NDArray[np.bool_]) -> _Stretches:
        """Return some of the stretches."""
        return _Stretches(*(column[selected] for column in self))


def attribute(trace: Trace, power: TracedPower | None = None) -> Attribution:
    """Divide the time of the kernels, or on a CPU that of the steps, see the module's docstring.

    Args:
        trace: The trace.
        power: The power while it was recorded, to divide the energy as well.

    Raises:
        ValueError: The trace has no steps.
    """
    if not len(trace.steps):
        raise ValueError("the trace has no steps (ProfilerStep)")
    owners = _find_owners(trace)
    kernels = trace.where(Category.KERNEL)
    kernels = kernels[trace.step[kernels] != NONE]
    if not len(kernels):
        return _attribute_host(trace, owners, power)
    return _attribute_kernels(trace, owners, kernels, power)


def _attribute_host(trace: Trace, owners: _Owners, power: TracedPower | None) -> Attribution:
    is_step = np.isin(trace.name, [index for index, name in enumerate(trace.names) if STEP_NAME.fullmatch(name)])
    threads = np.unique(trace.thread[owners.events[is_step[owners.events]]])
    own = owners.stretches.where(np.isin(owners.stretches.thread, threads))
    counted = own.where(np.append(trace.step[owners.events] != NONE, False)[own.row])
    result = _divide(trace, owners, counted.row, counted.length_ns, "host")
    if power and len(threads) == 1:
        _add_energy(result, trace, owners, own, np.zeros(len(own.row), bool), power)
    return result


def _attribute_kernels(trace: Trace, owners: _Owners, kernels: Ints, power: TracedPower | None) -> Attribution:
    runtime = trace.where(Category.RUNTIME)
    launch = match_launches(trace, kernels, runtime)
    position = np.full(len(trace.start_ns) + 1, NONE)  # the last is that of a kernel without a launch
    position[owners.events] = np.arange(len(owners.events))
    result = _divide(trace, owners, position[launch], trace.duration_ns[kernels], "device")
    operator = owners.operator[position[launch]]
    inputs = np.where(operator == NONE, NONE, trace.inputs[operator])
    result.kernels = _activities(trace, trace.name[kernels], trace.duration_ns[kernels], inputs, kernels)
    flops = np.bincount(trace.name[kernels], kernel_flops(trace, operator), len(trace.names)).tolist()
    by_name = dict(zip(trace.names, flops, strict=True))
    for row in result.kernels:
        row.flops = by_name[row.name] if by_name[row.name] > 0 else None  # NaN if those of any call are unknown
    utilization = trace.occupancy_percent[kernels] / 100
    result.mean_utilization = weighted_mean(utilization, trace.duration_ns[kernels])
    result.above, result.below = around_mean(result.kernels, result.mean_utilization)
    if power:
        _add_kernel_energy(result, trace, owners, position[launch], kernels, power)
    return result


def _add_kernel_energy(
    result: Attribution, trace: Trace, owners: _Owners, rows: Ints, kernels: Ints, power: TracedPower
) -> None:
    start_ns, end_ns = trace.start_ns[kernels], trace.end_ns[kernels]
    if (end_ns[:-1] > start_ns[1:]).any():
        result.energy_reasons.append("no energy of modules and operators: several kernels ran at the same time")
        return
    nothing = np.full(len(kernels), NONE)
    runs = _Stretches.of(nothing, start_ns, end_ns, nothing)
    owned = runs._replace(row=np.append(rows, NONE)[runs.row])
    _add_energy(result, trace, owners, owned, runs.row == NONE, power)


def _add_energy(
    result: Attribution,
    trace: Trace,
    owners: _Owners,
    stretches: _Stretches,
    idle: NDArray[np.bool_],
    power: TracedPower,
) -> None:
    """Set the energy of modules and operators; the device does nothing in the `idle` stretches."""
    start_ns, end_ns = trace.steps[0, 1], trace.steps[-1, 2]
    begin_ns = np.r_[start_ns, np.clip(stretches.begin_ns, start_ns, end_ns), end_ns] - start_ns
    rows = np.r_[NONE, stretches.row]
    operator, idle = owners.operator[rows], np.r_[True, idle]
    modules = [TRAINING_LOOP, *(name for name, _ in owners.modules), IDLE_NAME]
    operators = [*trace.names, PYTHON, IDLE_NAME]
    by_operator = np.where(operator == NONE, len(trace.names), trace.name[operator])
    tables: tuple[tuple[str, Sequence[ModuleTime | Activity], Ints, list[str]], ...] = (
        ("modules", result.modules, owners.module[rows] + 1, modules),
        ("operators", result.operators, by_operator, operators),
    )
    for what, table, labels, names in tables:
        energy = power.energy_by_name(begin_ns, np.where(idle, len(names) - 1, labels), names)
        for row in table:
            row.energy_j, row.energy_half_width_j = energy.energy_j.get(row.name), energy.half_width_j.get(row.name)
        if energy.reason:
            some = "some " if energy.energy_j else ""
            result.energy_reasons.append(f"no energy of {some}{what}: {energy.reason.rstrip('.')}")


def around_mean(kernels: Sequence[Activity], mean: float | None) -> tuple[list[Activity], list[Activity]]:
    """Return the five longest kernels at or above the mean utilization, and the five below, as in the TBD suite."""
    with_value = [] if mean is None else [kernel for kernel in kernels if kernel.utilization is not None]
    above = [kernel for kernel in with_value if kernel.utilization >= mean]  # type: ignore[operator]
    return above[:AROUND_MEAN], [kernel for kernel in with_value if kernel not in above][:AROUND_MEAN]


def _divide(trace: Trace, owners: _Owners, rows: Ints, times_ns: Ints, basis: str) -> Attribution:
    """Sum times by the module and the operator of rows of the owners."""
    module, phase, operator = owners.module[rows], owners.phase[rows], owners.operator[rows]
    cells = np.bincount((module + 1) * len(PHASES) + phase, times_ns, (len(owners.modules) + 1) * len(PHASES))
    by_module = [
        ModuleTime(name, kind, {PHASES[at]: float(row[at]) * S_PER_NS for at in np.flatnonzero(row)})
        for (name, kind), row in zip(
            [(TRAINING_LOOP, ""), *owners.modules], cells.reshape(-1, len(PHASES)), strict=True
        )
        if row.any()
    ]
    total_ns = int(times_ns.sum())
    loop_ns = int(times_ns[phase == LOOP].sum())
    names = np.where(operator == NONE, len(trace.names), trace.name[operator])
    inputs = np.where(operator == NONE, NONE, trace.inputs[operator])
    return Attribution(
        basis=basis,
        total_s=total_ns * S_PER_NS,
        explained_fraction=1 - loop_ns / total_ns if total_ns else 0.0,
        modules=sorted(by_module, key=lambda row: -row.total_s),
        operators=_activities(trace, names, times_ns, inputs, operator),
        threads=_thread_fractions(trace),
    )


def _activities(trace: Trace, names: Ints, times_ns: Ints, inputs: Ints, events: Ints) -> list[Activity]:
    """Sum times by name, the longest first; the index after the last name is time outside operators.

    `events` are the operators, which may occur several times, or the kernels.
    """
    rows = []
    order = np.argsort(names, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(names[order])) + 1):
        if not len(group):
            continue
        calls = np.unique(events[group])
        calls = calls[calls != NONE]
        name = trace.names[names[group[0]]] if len(calls) else PYTHON
        row = Activity(name, len(calls), float(times_ns[group].sum()) * S_PER_NS, _shapes(trace, inputs[group]))
        if len(calls) and trace.category[calls[0]] == Category.KERNEL:
            kernel = classify(name)
            row.precision, row.tensor_cores = kernel.precision, kernel.tensor_cores
            row.utilization = weighted_mean(trace.occupancy_percent[events[group]] / 100, times_ns[group])
        rows.append(row)
    return sorted(rows, key=lambda row: -row.total_s)


def _shapes(trace: Trace, inputs: Ints) -> str | None:
    """Return the most frequent shapes of inputs, as `16x3x224x224, 64x3x7x7`."""
    given = inputs[inputs != NONE]
    if not len(given):
        return None
    (common, _), *_ = Counter(given.tolist()).most_common(1)
    dims = trace.shapes[common] or []
    shapes = ["x".join(str(size) for size in shape) for shape in dims if isinstance(shape, list) and shape]
    return ", ".join(shapes) or None


def _thread_fractions(trace: Trace) -> dict[str, float]:
    operators = trace.where(Category.OPERATOR)
    operators = operators[trace.step[operators] != NONE]
    wall_ns = int((trace.steps[:, 2] - trace.steps[:, 1]).sum())
    fractions = {}
    for thread in np.unique(trace.thread[operators]):
        own = operators[trace.thread[operators] == thread]
        busy = Intervals.union(trace.start_ns[own], trace.end_ns[own])
        fractions[trace.threads[thread][1]] = busy.length_ns / wall_ns
    return fractions


class _Names:
    """Meaning of the names of a trace's events, by index."""

    def __init__(self, trace: Trace) -> None:
        self.modules: list[tuple[str, str]] = [("(outside modules)", ""), ("(optimizer)", ""), ("(data)", "")]
        self.module_of: dict[int, int] = {}
        self.phase_of: dict[int, int] = {}
        self.nodes: set[int] = set()
        self.steps = {index for index, name in enumerate(trace.names) if STEP_NAME.fullmatch(name)}
        numbers: dict[tuple[str, str], int] = {}
        for index, name in enumerate(trace.names):
            if match := MODULE.fullmatch(name):
                module = (match[1] or MODEL, match[2] or "")
                if module not in numbers:
                    numbers[module] = len(self.modules)
                    self.modules.append(module)
                self.module_of[index] = numbers[module]
            elif OPTIMIZER_RANGE.match(name):
                self.phase_of[index], self.module_of[index] = OPTIMIZER, 1
            elif DATA_WAIT.match(name):
                self.phase_of[index], self.module_of[index] = DATA, 2
            elif name == BACKWARD_RANGE:
                self.phase_of[index], self.module_of[index] = BACKWARD, OUTSIDE
            elif name.startswith(NODE):
                self.nodes.add(index)


def _find_owners(trace: Trace) -> _Owners:
    """Find the innermost module, phase and operator of every event of the host, in one pass in order of time."""
    events = trace.where(*HOST)
    search = _OwnerSearch(len(events), _Names(trace))
    times = (
        trace.start_ns,
        trace.end_ns,
        trace.thread,
        trace.name,
        trace.sequence,
        trace.category == Category.OPERATOR,
    )
    for row, event in enumerate(zip(*(values[events].tolist() for values in times), strict=True)):
        search.add(row, *event)
    columns = (search.module, search.phase, search.operator, search.end_ns, search.following)
    module, phase, operator, end_ns, following = (np.array(values, np.int64) for values in columns)
    operator = np.where(operator == NONE, NONE, events[operator])
    stretches = _Stretches.of(trace.thread[events], trace.start_ns[events], end_ns, following)
    module, phase, operator = np.r_[module, NONE], np.r_[phase, LOOP], np.r_[operator, NONE]
    return _Owners(events, module, phase, operator, search.names.modules, stretches)


class _OwnerSearch:
    """Owners of events that are added in order of their start, callers before what they call."""

    def __init__(self, count: int, names: _Names) -> None:
        self.names = names
        self.module, self.phase, self.operator = [NONE] * count, [LOOP] * count, [NONE] * count
        self.end_ns, self.following = [0] * count, [NONE] * count
        self._stacks: dict[int, list[int]] = {}
        self._last_node: dict[int, int] = {}  # by thread
        self._last_child: dict[int, int] = {}
        self._forward_module: dict[int, int] = {}  # by sequence number

    def add(self, row: int, start: int, end: int, thread: int, name: int, sequence: int, is_operator: bool) -> None:
        """Add an event; it ends with its caller at the latest."""
        parent = self._caller(thread, start)
        before = self._last_child.get(parent) if parent != NONE else None
        if parent != NONE:
            end = min(end, self.end_ns[parent])
            self._last_child[parent] = row
            if name not in self.names.steps:
                self.module[row], self.phase[row] = self.module[parent], self.phase[parent]
                self.operator[row] = self.operator[parent]
        self.end_ns[row], self.following[row] = end, parent
        self._stacks[thread].append(row)
        if name in self.names.nodes:
            if before is not None:  # the time of the autograd engine belongs to the next node
                self.following[before] = row
            self._set_backward(row, thread, sequence)
        elif name in self.names.module_of:
            self.module[row], self.phase[row] = self.names.module_of[name], self.names.phase_of.get(name, FORWARD)
        elif self.phase[row] == LOOP and is_operator and name not in self.names.steps:
            self.module[row], self.phase[row] = OUTSIDE, FORWARD
        if is_operator and name not in self.names.steps and name not in self.names.module_of:
            self.operator[row] = row
            if sequence != NONE and self.phase[row] != BACKWARD:
                self._forward_module[sequence] = self.module[row]

    def _caller(self, thread: int, start: int) -> int:
        stack = self._stacks.setdefault(thread, [])
        while stack and self.end_ns[stack[-1]] <= start:
            stack.pop()
        return stack[-1] if stack else NONE

    def _set_backward(self, row: int, thread: int, sequence: int) -> None:
        """Set the module of a node; one without a forward operator, such as AccumulateGrad, follows the one before."""
        before = self._last_node.get(thread)
        default = OUTSIDE if before is None else self.module[before]
        self.module[row], self.phase[row] = self._forward_module.get(sequence, default), BACKWARD
        self._last_node[thread] = row
