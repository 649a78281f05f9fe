"""Time of the device in the traced steps: busy, idle by cause, overlap, precision and use of the kernels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochmeter.trace.kernels import classify
from epochmeter.trace.kineto import DEVICE, HOST, NONE, Category, Ints, Trace

S_PER_NS = 1e-9
DATA_WAIT = re.compile(r"enumerate\(DataLoader\)#.*__next__")
SYNCHRONIZATION = re.compile(r"(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|(cuda|hip)Memcpy(WithStream)?$")
IDLE_CAUSES = ("copy", "data", "sync", "launch", "other")


@dataclass
class Intervals:
    """Disjoint intervals in order of time, in ns."""

    start: Ints
    end: Ints

    @classmethod
    def union(cls, start: Ints, end: Ints) -> Intervals:
        """Return the union of any intervals."""
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        begins = np.r_[True, start[1:] > end[:-1]] if len(start) else np.empty(0, bool)
        return cls(start[begins], end[np.r_[np.flatnonzero(begins)[1:] - 1, len(end) - 1]] if len(end) else end)

    def clipped(self, start: int, end: int) -> Intervals:
        """Return the parts between two times."""
        inside = (self.end > start) & (self.start < end)
        return Intervals(np.maximum(self.start[inside], start), np.minimum(self.end[inside], end))

    def gaps(self, start: int, end: int) -> Intervals:
        """Return the intervals between two times that are in none of these."""
        inner = self.clipped(start, end)
        starts, ends = np.r_[start, inner.end], np.r_[inner.start, end]
        nonempty = ends > starts
        return Intervals(starts[nonempty], ends[nonempty])

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.union(np.r_[self.start, other.start], np.r_[self.end, other.end])

    @property
    def length_ns(self) -> int:
        """Sum of the lengths."""
        return int((self.end - self.start).sum())

    def overlap_ns(self, other: Intervals) -> int:
        """Return the length of the intersection."""
        return self.length_ns + other.length_ns - (self | other).length_ns

    def contains(self, at_ns: Ints) -> NDArray[np.bool_]:
        """Return which times are in an interval, which includes its start and excludes its end."""
        index = np.searchsorted(self.start, at_ns, side="right") - 1
        inside: NDArray[np.bool_] = (index >= 0) & (at_ns < np.r_[self.end, 0][index])
        return inside


@dataclass
class DeviceTime:
    """What the devices did in a window of the trace; times in s, sums over devices.

    Attributes:
        devices: Number of devices that ran kernels.
        wall_s: Length of the window.
        busy_s: Union of the kernels' intervals, per device.
        compute_s: The same for all kernels except communication.
        communication_s: The same for communication.
        copy_s: The same for copies and settings of memory.
        copy_overlap_s: Part of `copy_s` in which computation ran as well.
        communication_overlap_s: Part of `communication_s` in which computation ran as well.
        idle_s: Time without a kernel, by cause. `copy`: data was copied. `data`, `sync` and `launch`: the host launched
            the next activity after the device had become idle, because it waited for data, had synchronized, or was
            slow to launch. `other`: the rest, such as the time between kernels in a queue.
        kernels: Number of kernels.
        kernel_s: Sum of their durations; on several streams it may exceed `busy_s`.
        by_precision_s: `kernel_s` by precision, except communication.
        tensor_core_s: Part of `kernel_s` with tensor cores; None if the name of no kernel shows whether it uses them.
        launch_latency_s: Median time from a call to the start of its kernel, for kernels that found their stream idle;
            None if there are none.
        sm_efficiency: Mean of min(thread blocks per SM, 1), weighted by duration; None if it is not in the trace.
        occupancy: Mean of the achieved occupancy that Kineto estimates, weighted by duration; None as above.
    """

    devices: int
    wall_s: float
    busy_s: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    copy_s: float = 0.0
    copy_overlap_s: float = 0.0
    communication_overlap_s: float = 0.0
    idle_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(IDLE_CAUSES, 0.0))
    kernels: int = 0
    kernel_s: float = 0.0
    by_precision_s: dict[str, float] = field(default_factory=dict)
    tensor_core_s: float | None = None
    launch_latency_s: float | None = None
    sm_efficiency: float | None = None
    occupancy: float | None = None


def busy_fraction(kernel_s: float, untraced_wall_s: float) -> float:
    """Return the GPU compute utilization: time in kernels / wall time of the same steps without the profiler.

    As in H. Zhu et al., Benchmarking and Analyzing Deep Neural Network Training, IISWC 2018, and the TBD suite: the
    overhead of the profiler lengthens the traced wall time, but hardly the kernels.
    """
    return kernel_s / untraced_wall_s


def measure_device(trace: Trace) -> DeviceTime | None:
    """Measure the activities that the traced steps launched, or all without steps; None if no kernel took any time.

    The window lasts until all activities that the steps launched have ended. Without steps, it lasts from the first
    activity to the last.
    """
    activities = trace.in_steps(*DEVICE) if len(trace.steps) else trace.where(*DEVICE)
    kernels = activities[trace.category[activities] == Category.KERNEL]
    if not trace.duration_ns[kernels].any():
        return None
    starts_ns = trace.steps[:, 1] if len(trace.steps) else trace.start_ns[activities]
    window = int(starts_ns.min()), int(np.r_[trace.steps[:, 2], trace.end_ns[activities]].max())
    devices = np.unique(trace.device[kernels])
    time = DeviceTime(len(devices), (window[1] - window[0]) * S_PER_NS)
    for device in devices:
        _add_device(time, trace, activities[trace.device[activities] == device], window)
    _add_kernels(time, trace, kernels)
    time.launch_latency_s = _launch_latency_s(trace, activities)
    return time


def _union(trace: Trace, events: Ints) -> Intervals:
    return Intervals.union(trace.start_ns[events], trace.end_ns[events])


def _add_device(time: DeviceTime, trace: Trace, activities: Ints, window: tuple[int, int]) -> None:
    """Add the busy and idle times of a device."""
    is_kernel = trace.category[activities] == Category.KERNEL
    kernels = activities[is_kernel]
    communicates = np.array([classify(name).is_communication for name in trace.names])[trace.name[kernels]]
    compute, communication = _union(trace, kernels[~communicates]), _union(trace, kernels[communicates])
    copies, busy = _union(trace, activities[~is_kernel]), compute | communication
    time.busy_s += busy.length_ns * S_PER_NS
    time.compute_s += compute.length_ns * S_PER_NS
    time.communication_s += communication.length_ns * S_PER_NS
    time.copy_s += copies.length_ns * S_PER_NS
    time.copy_overlap_s += copies.overlap_ns(compute) * S_PER_NS
    time.communication_overlap_s += communication.overlap_ns(compute) * S_PER_NS
    active = busy | copies
    time.idle_s["copy"] += (active.length_ns - busy.length_ns) * S_PER_NS
    for cause, idle_ns in idle_by_cause(trace, activities, active.gaps(*window)).items():
        time.idle_s[cause] += idle_ns * S_PER_NS


def idle_by_cause(trace: Trace, activities: Ints, gaps: Intervals) -> dict[str, int]:
    """Return the length in ns of a device's idle gaps by cause, see `DeviceTime.idle_s`.

    The host causes a gap if the activity after it was launched after the device had become idle, or if there is none.
    """
    launch = trace.launch[activities]
    following = np.searchsorted(trace.start_ns[activities], gaps.end, side="left")
    launched_ns = np.append(np.where(launch == NONE, -1, trace.start_ns[launch]), np.iinfo(np.int64).max)[following]
    by_host = launched_ns > gaps.start
    host_gaps = Intervals(gaps.start[by_host], gaps.end[by_host])
    data = _union(trace, _named(trace, HOST, DATA_WAIT))
    synchronizing = _union(trace, _named(trace, (Category.RUNTIME,), SYNCHRONIZATION)).contains(host_gaps.start)
    synchronized = Intervals(host_gaps.start[synchronizing], host_gaps.end[synchronizing])
    data_ns, synchronized_data_ns = host_gaps.overlap_ns(data), synchronized.overlap_ns(data)
    sync_ns = synchronized.length_ns - synchronized_data_ns
    return {
        "data": data_ns,
        "sync": sync_ns,
        "launch": host_gaps.length_ns - data_ns - sync_ns,
        "other": gaps.length_ns - host_gaps.length_ns,
    }


def _named(trace: Trace, categories: Sequence[Category], pattern: re.Pattern[str]) -> Ints:
    """Return the events of these categories whose name matches."""
    events = trace.where(*categories)
    matches = np.array([bool(pattern.search(name)) for name in trace.names])
    selected: Ints = events[matches[trace.name[events]]]
    return selected


def _add_kernels(time: DeviceTime, trace: Trace, kernels: Ints) -> None:
    """Add sums and means over kernels."""
    durations_s = trace.duration_ns[kernels].astype(np.float64) * S_PER_NS
    time.kernels, time.kernel_s = len(kernels), float(durations_s.sum())
    by_precision: dict[str, float] = defaultdict(float)
    sums_s = np.bincount(trace.name[kernels], durations_s, len(trace.names))
    for index in np.flatnonzero(sums_s):
        kernel = classify(trace.names[index])
        if not kernel.is_communication:
            by_precision[kernel.precision] += float(sums_s[index])
            if kernel.tensor_cores is not None:
                time.tensor_core_s = (time.tensor_core_s or 0.0) + kernel.tensor_cores * float(sums_s[index])
    time.by_precision_s = dict(by_precision)
    time.sm_efficiency = weighted_mean(np.minimum(trace.blocks_per_sm[kernels], 1), durations_s)
    time.occupancy = weighted_mean(trace.occupancy[kernels], durations_s)


def weighted_mean(values: NDArray[Any], weights: NDArray[Any]) -> float | None:
    """Return the weighted mean of the known values; None if none is known."""
    has_value = ~np.isnan(values)
    total = weights[has_value].sum()
    return float((values[has_value] * weights[has_value]).sum() / total) if total else None


def _launch_latency_s(trace: Trace, activities: Ints) -> float | None:
    latencies = []
    for stream in np.unique(trace.thread[activities]):
        events = activities[trace.thread[activities] == stream]
        calls = trace.launch[events]
        idle_since = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(trace.end_ns[events])[:-1]]
        is_kernel = trace.category[events] == Category.KERNEL
        found_idle = is_kernel & (calls != NONE) & (trace.start_ns[calls] > idle_since)
        latencies.append((trace.start_ns[events] - trace.start_ns[calls])[found_idle])
    all_ns = np.concatenate(latencies)
    plausible = all_ns[all_ns >= 0]  # below zero the clocks of host and device disagree
    return float(np.median(plausible)) * S_PER_NS if len(plausible) else None
