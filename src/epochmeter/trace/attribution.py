"""Time of the traced steps by module, operator and kernel.

Every instant of a step's thread belongs to the innermost event: an operator, a module's range, or the step itself. On a
device the time of each kernel belongs to the event that launched it.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from epochmeter.shared.units import NANOSECOND
from epochmeter.trace.device import stretches, weighted_mean
from epochmeter.trace.division import PYTHON, Division, divide
from epochmeter.trace.energy import TracedPower
from epochmeter.trace.flops import PRODUCTS, product_flops
from epochmeter.trace.kernels import classify
from epochmeter.trace.kineto import NONE, Bools, Category, Ints, Trace
from epochmeter.trace.owners import LOOP, PHASES, Owners

IDLE = "(idle)"  # name of the time without a kernel or a step
CONVOLUTIONS = {f"aten::{backend}_convolution" for backend in ("mkldnn", "cudnn", "miopen")}
CONVOLUTION_BACKWARD = re.compile("^aten::convolution_backward$")


@dataclass(kw_only=True)
class Row:
    """Time of a module without the modules in it, or of all operators or kernels of one name, in the traced steps.

    A value is None if it is unknown, or if rows of this table do not have it.
    """

    name: str
    total_s: float
    energy_j: float | None = None
    energy_half_width_j: float | None = None  # of the 95 % confidence interval
    kind: str | None = None  # class of a module
    phases_s: dict[str, float] | None = None  # of a module: forward, backward and so on
    calls: int | None = None  # of an operator or kernel
    inputs: str | None = None  # the most frequent shapes of an operator's inputs, or of the one that launched a kernel
    precision: str | None = None  # of a kernel, as all further values
    tensor_cores: bool | None = None
    utilization: float | None = None  # mean achieved occupancy, weighted by duration
    flops: float | None = None  # of all calls


@dataclass
class Attribution:
    """Where the time of the traced steps went; the longest rows are first."""

    basis: str  # `device` if kernels were divided, `host` if the time of the steps' thread was
    total_s: float  # the divided time: of all kernels, or of all steps
    explained_fraction: float  # part of it that belongs to a module, an operator, the optimizer or data loading
    modules: list[Row]
    operators: list[Row]  # that of `PYTHON` has no calls
    kernels: list[Row]
    threads: dict[str, float]
    """Fraction of the steps' time in which each thread of the host ran operators."""
    energy_reasons: list[str] = field(default_factory=list)  # why modules or operators have no energy


def attribute(trace: Trace, power: TracedPower | None = None, division: Division | None = None) -> Attribution:
    """Divide the time of the kernels, or of the steps on a CPU. With the power, divide the energy as well."""
    division = division or divide(trace)
    owners, kernels = division.owners, trace.in_steps(Category.KERNEL)
    counted, times_ns = division.counted, division.times_ns
    total_ns, explained_ns = float(times_ns.sum()), float(times_ns[owners.phase[counted] != LOOP].sum())
    result = Attribution(
        basis=division.basis,
        total_s=total_ns * NANOSECOND,
        explained_fraction=explained_ns / total_ns if total_ns else 0.0,
        modules=_modules(owners, counted, times_ns),
        operators=_activities(trace, owners.operator[counted], times_ns, owners.operator[counted]),
        kernels=_kernels(trace, kernels, owners.operator[trace.launch[kernels]]),
        threads=_thread_fractions(trace, owners),
    )
    if power and (division.lasts_ns < 0).any():
        result.energy_reasons.append("no energy of modules and operators: several kernels ran at the same time")
    elif power:
        _add_energy(result, trace, owners, division.begin_ns, division.events, division.is_busy, power)
    return result


def _add_energy(
    result: Attribution, trace: Trace, owners: Owners, begin_ns: Ints, events: Ints, is_busy: Bools, power: TracedPower
) -> None:
    """Set the energy of modules and operators, from the starts of consecutive stretches of time and their events."""
    start_ns, end_ns = trace.start_ns[trace.steps[0]], trace.end_ns[trace.steps[-1]]
    begin_ns = np.r_[start_ns, np.clip(begin_ns, start_ns, end_ns), end_ns] - start_ns
    events, is_busy = np.r_[NONE, events], np.r_[False, is_busy]
    operators = np.append(trace.name, len(trace.names))[owners.operator[events]]  # the last index for no operator
    tables = (
        ("modules", result.modules, owners.module[events], [name for name, _ in owners.modules]),
        ("operators", result.operators, operators, [*trace.names, PYTHON]),
    )
    for what, rows, labels, names in tables:
        energy = power.energy_by_name(begin_ns, np.where(is_busy, labels, len(names)), [*names, IDLE])
        for row in rows:
            row.energy_j, row.energy_half_width_j = energy.energy_j.get(row.name), energy.half_width_j.get(row.name)
        if energy.reason:
            some = "some " if energy.energy_j else ""
            result.energy_reasons.append(f"no energy of {some}{what}: {energy.reason.rstrip('.')}")


def _modules(owners: Owners, events: Ints, times_ns: Ints) -> list[Row]:
    """Sum times by the module and phase of events."""
    table_ns = np.zeros((len(owners.modules), len(PHASES)))
    np.add.at(table_ns, (owners.module[events], owners.phase[events]), times_ns)
    rows = []
    for (name, kind), times_s in zip(owners.modules, (table_ns * NANOSECOND).tolist(), strict=True):
        if phases_s := {phase: time_s for phase, time_s in zip(PHASES, times_s, strict=True) if time_s}:
            rows.append(Row(name=name, kind=kind, total_s=sum(times_s), phases_s=phases_s))
    return sorted(rows, key=lambda row: -row.total_s)


def _kernels(trace: Trace, kernels: Ints, operators: Ints) -> list[Row]:
    """Sum the times of kernels by name, with their FLOPs."""
    rows = _activities(trace, kernels, trace.duration_ns[kernels], operators)
    sums = np.bincount(trace.name[kernels], _kernel_flops(trace, operators), len(trace.names)).tolist()
    flops = dict(zip(trace.names, sums, strict=True))
    for row in rows:
        _, row.precision, row.tensor_cores = classify(row.name)
        row.flops = flops[row.name] if flops[row.name] > 0 else None  # NaN: unknown for any of the kernels
    return rows


def _activities(trace: Trace, events: Ints, times_ns: Ints, operators: Ints) -> list[Row]:
    """Sum times by the name of operators or kernels, with the shapes of the operators that launched them."""
    names, inputs = np.append(trace.name, NONE)[events], np.append(trace.inputs, NONE)
    rows = []
    for name in np.unique(names).tolist():
        group = names == name
        group_events, row = events[group], Row(name=PYTHON, total_s=float(times_ns[group].sum()) * NANOSECOND)
        if name != NONE:
            row.name, row.calls = trace.names[name], len(np.unique(group_events))
            row.inputs = _shapes(trace, inputs[operators[group]])
            row.utilization = weighted_mean(trace.occupancy[group_events], times_ns[group])
        rows.append(row)
    return sorted(rows, key=lambda row: -row.total_s)


def _shapes(trace: Trace, inputs: Ints) -> str | None:
    """Return the most frequent shapes of inputs, as `16x3x224x224, 64x3x7x7`; of a list, the number of tensors."""
    common = Counter(inputs[inputs != NONE].tolist()).most_common(1)
    shapes = [
        f"[{len(shape)} tensors]" if isinstance(shape[0], list) else "x".join(map(str, shape))
        for shape in (trace.shapes[common[0][0]] if common else ())
        if isinstance(shape, list) and shape
    ]
    return ", ".join(shapes) or None


def _thread_fractions(trace: Trace, owners: Owners) -> dict[str, float]:
    operators, wall_ns = trace.in_steps(Category.OPERATOR), int(trace.duration_ns[trace.steps].sum())
    operators = operators[owners.operator[operators] == operators]  # without ranges, which old versions of torch list
    threads = np.unique(trace.thread[operators])
    groups = [operators[trace.thread[operators] == thread] for thread in threads]
    _, lasts_ns, (is_step, *running) = stretches(trace, [trace.steps, *groups])
    return {
        trace.threads[thread][1]: int(lasts_ns[runs & is_step].sum()) / wall_ns
        for thread, runs in zip(threads, running, strict=True)
    }


def _kernel_flops(trace: Trace, operators: Ints) -> list[float]:
    """Return the FLOPs of each kernel, from the shapes of the operator that launched only it; NaN if unknown."""
    output_sizes = defaultdict[str, set[int]](set)  # of convolutions, by the shapes of input and weights
    backward = trace.where(Category.OPERATOR, name=CONVOLUTION_BACKWARD)
    for inputs in {*trace.inputs[backward].tolist()} - {NONE}:
        with suppress(TypeError, ValueError):  # unexpected shapes
            gradient, *convolved = trace.shapes[inputs][:3]
            output_sizes[str(convolved)].add(math.prod(gradient))
    flops: dict[int, float] = {}
    for operator, kernels in Counter(operators.tolist()).items():
        if operator != NONE and kernels == 1 and trace.inputs[operator] != NONE:
            shapes = trace.shapes[trace.inputs[operator]]
            flops[operator] = _flops(trace.names[trace.name[operator]], shapes, output_sizes)
    return [flops.get(operator, math.nan) for operator in operators.tolist()]


def _flops(name: str, shapes: Any, output_sizes: Mapping[str, set[int]]) -> float:
    """Return the FLOPs of an operator; NaN if its shapes do not determine them."""
    with suppress(LookupError, TypeError, ValueError):  # unexpected shapes, no backward pass, or several sizes
        if name in PRODUCTS:
            first, second = (shapes[place] for place in PRODUCTS[name])
            return float(product_flops(first, second))
        if name in CONVOLUTIONS:
            (size,) = output_sizes[str(shapes[:2])]
            return float(2 * size * math.prod(shapes[1][1:]))
    return math.nan
