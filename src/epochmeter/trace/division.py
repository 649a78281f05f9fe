"""Division of the traced steps among events, and the times of modules, operators and kernels in each step."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from epochmeter.shared.units import NANOSECOND
from epochmeter.trace.kineto import NONE, NS_PER_US, Bools, Category, Floats, Ints, Trace
from epochmeter.trace.owners import Owners, find_owners

PYTHON = "(Python)"  # name of the time outside operators
HOST, DEVICE = "host", "device"


@dataclass(frozen=True)
class Division:
    """Consecutive stretches of time, and the event that each belongs to.

    Attributes:
        basis: `device` if the time of kernels is divided, `host` if that of the steps' thread is.
        owners: Module, phase and operator of each event.
        begin_ns: Starts of the stretches.
        events: Their events; those of kernels are the calls that launched them. -1: none.
        is_busy: Whether they are part of the divided time.
    """

    basis: str
    owners: Owners
    begin_ns: Ints
    events: Ints
    is_busy: Bools

    @cached_property
    def lasts_ns(self) -> Ints:
        return np.diff(self.begin_ns, append=self.begin_ns[-1])

    @property
    def counted(self) -> Ints:
        """The events of the stretches that are divided."""
        return self.events[self.is_busy]

    @property
    def times_ns(self) -> Ints:
        """The lengths of the stretches that are divided."""
        return self.lasts_ns[self.is_busy]


@dataclass(frozen=True)
class StepTimes:
    """Times of the traced steps, in seconds: an array with one value per step, by name.

    Attributes:
        basis: As of the division.
        steps: Wall times of the steps.
        modules: Times of modules, without the modules in them.
        operators: Times of operators, without those that they call.
        kernels: Times of kernels; empty on a CPU.
        resolution_s: Unit of all times: older versions of the profiler write whole microseconds.
    """

    basis: str
    steps: Floats
    modules: dict[str, Floats]
    operators: dict[str, Floats]
    kernels: dict[str, Floats]
    resolution_s: float


def divide(trace: Trace) -> Division:
    """Divide the time of the kernels, or of the steps on a CPU."""
    owners, kernels = find_owners(trace), trace.in_steps(Category.KERNEL)
    if trace.duration_ns[kernels].any():
        # After each kernel, the device is idle: for a negative time if the next kernel runs already.
        begin_ns = np.stack([trace.start_ns[kernels], trace.end_ns[kernels]], axis=1).ravel()
        events, is_busy = np.repeat(trace.launch[kernels], 2), np.tile([True, False], len(kernels))
        return Division(DEVICE, owners, begin_ns, events, is_busy)
    thread = owners.threads[int(trace.thread[trace.steps[0]])]
    begin_ns, events = np.array(thread.begin_ns), np.array(thread.innermost)
    is_busy = (events != NONE) & trace.is_in_step[events]
    return Division(HOST, owners, begin_ns, events, is_busy)


def step_times(trace: Trace, division: Division) -> StepTimes:
    """Return the times of modules, operators and kernels in each step; a kernel belongs to the step of its launch."""
    owners, events, times_ns = division.owners, division.counted, division.times_ns
    kernels = trace.in_steps(Category.KERNEL)
    begun_ns = trace.start_ns[events]
    if division.basis == DEVICE:  # a kernel whose launch is not known belongs to the step in which it begins
        begun_ns = np.where(events == NONE, trace.start_ns[kernels], begun_ns)
    step = np.searchsorted(trace.start_ns[trace.steps], begun_ns, side="right") - 1
    count = len(trace.steps)

    def by_name(labels: Ints, names: list[str], places: Ints, lasts_ns: Ints) -> dict[str, Floats]:
        table_ns = np.zeros((len(names), count))
        np.add.at(table_ns, (labels, places), lasts_ns)
        sums: dict[str, Floats] = {}
        for label in np.unique(labels).tolist():
            sums[names[label]] = sums.get(names[label], np.zeros(count)) + table_ns[label] * NANOSECOND
        return {name: times_s for name, times_s in sums.items() if times_s.any()}

    modules = by_name(owners.module[events], [name for name, _ in owners.modules], step, times_ns)
    operators = np.append(trace.name, len(trace.names))[owners.operator[events]]
    of_kernels = by_name(trace.name[kernels], trace.names, step, times_ns) if division.basis == DEVICE else {}
    return StepTimes(
        basis=division.basis,
        steps=(trace.duration_ns[trace.steps] * NANOSECOND).astype(np.float64),
        modules=modules,
        operators=by_name(operators, [*trace.names, PYTHON], step, times_ns),
        kernels=of_kernels,
        resolution_s=NANOSECOND * (1 if (trace.duration_ns % NS_PER_US).any() else NS_PER_US),
    )
