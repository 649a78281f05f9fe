"""Time of the device in the traced steps: busy, idle by cause, overlap, precision and use of the kernels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochmeter.trace.kernels import classify
from epochmeter.trace.kineto import DEVICE, HOST, NONE, Category, Ints, Trace

S_PER_NS = 1e-9
DATA_WAIT = re.compile(r"enumerate\(DataLoader\)#.*__next__")
SYNCHRONIZATION = re.compile(r"(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|(cuda|hip)Memcpy(WithStream)?$")
LAST_NS = np.iinfo(np.int64).max


@dataclass
class Intervals:
    """Disjoint intervals in order of time, in ns."""

    start: Ints
    end: Ints

    @classmethod
    def union(cls, start: Ints, end: Ints) -> Intervals:
        """Return the union of any intervals."""
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        is_apart = start[1:] > end[:-1]
        return cls(start[np.r_[True, is_apart][: len(start)]], end[np.r_[is_apart, True][: len(end)]])

    def gaps(self, start: int, end: int) -> Intervals:
        """Return the intervals between two times that are in none of these."""
        starts, ends = np.r_[start, self.end], np.r_[self.start, end]
        starts, ends = np.maximum(starts, start), np.minimum(ends, end)
        return Intervals(starts[ends > starts], ends[ends > starts])

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


@dataclass(kw_only=True)
class DeviceTime:
    """Activities of the devices in a window of the trace; times in s, sums over devices.

    Attributes:
        devices: Number of devices that ran kernels.
        wall_s: Length of the window.
        busy_s: Union of the kernels' intervals, per device.
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
    busy_s: float
    communication_s: float
    copy_s: float
    copy_overlap_s: float
    communication_overlap_s: float
    idle_s: dict[str, float]
    kernels: int
    kernel_s: float
    by_precision_s: dict[str, float]
    tensor_core_s: float | None
    launch_latency_s: float | None
    sm_efficiency: float | None
    occupancy: float | None


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
    busy_ns: Counter[str] = Counter()
    idle_ns: Counter[str] = Counter()
    devices = np.unique(trace.device[kernels])
    for device in devices:
        own = activities[trace.device[activities] == device]
        busy_ns.update(_busy_ns(trace, own))
        idle_ns.update(_idle_ns(trace, own, window))
    durations_s = trace.duration_ns[kernels] * S_PER_NS
    by_precision_s, tensor_core_s = _by_class(trace, kernels, durations_s)
    return DeviceTime(
        devices=len(devices),
        wall_s=(window[1] - window[0]) * S_PER_NS,
        **{name: length_ns * S_PER_NS for name, length_ns in busy_ns.items()},
        idle_s={cause: length_ns * S_PER_NS for cause, length_ns in idle_ns.items()},
        kernels=len(kernels),
        kernel_s=float(durations_s.sum()),
        by_precision_s=by_precision_s,
        tensor_core_s=tensor_core_s,
        launch_latency_s=_launch_latency_s(trace, activities),
        sm_efficiency=weighted_mean(np.minimum(trace.blocks_per_sm[kernels], 1), durations_s),
        occupancy=weighted_mean(trace.occupancy[kernels], durations_s),
    )


def _union(trace: Trace, events: Ints) -> Intervals:
    return Intervals.union(trace.start_ns[events], trace.end_ns[events])


def _busy_ns(trace: Trace, activities: Ints) -> dict[str, int]:
    """Return the times of a device in ns, by attribute of `DeviceTime`."""
    is_kernel = trace.category[activities] == Category.KERNEL
    kernels, copies = activities[is_kernel], _union(trace, activities[~is_kernel])
    communicates = np.array([classify(name).is_communication for name in trace.names])[trace.name[kernels]]
    compute, communication = _union(trace, kernels[~communicates]), _union(trace, kernels[communicates])
    return {
        "busy_s": (compute | communication).length_ns,
        "communication_s": communication.length_ns,
        "copy_s": copies.length_ns,
        "copy_overlap_s": copies.overlap_ns(compute),
        "communication_overlap_s": communication.overlap_ns(compute),
    }


def _idle_ns(trace: Trace, activities: Ints, window: tuple[int, int]) -> dict[str, int]:
    """Return the idle times of a device in a window in ns, by cause."""
    kernels, active = activities[trace.category[activities] == Category.KERNEL], _union(trace, activities)
    copy_ns = active.length_ns - _union(trace, kernels).length_ns
    return {"copy": copy_ns, **idle_by_cause(trace, activities, active.gaps(*window))}


def idle_by_cause(trace: Trace, activities: Ints, gaps: Intervals) -> dict[str, int]:
    """Return the length in ns of a device's idle gaps by cause, see `DeviceTime.idle_s`.

    The host causes a gap if the activity after it was launched after the device had become idle, or if there is none.
    """
    launch = trace.launch[activities]
    following = np.searchsorted(trace.start_ns[activities], gaps.end, side="left")
    launched_ns = np.append(np.where(launch == NONE, -1, trace.start_ns[launch]), LAST_NS)[following]
    by_host = launched_ns > gaps.start
    host_gaps = Intervals(gaps.start[by_host], gaps.end[by_host])
    data = _union(trace, _named(trace, HOST, DATA_WAIT))
    is_synchronizing = _union(trace, _named(trace, (Category.RUNTIME,), SYNCHRONIZATION)).contains(host_gaps.start)
    synchronized = Intervals(host_gaps.start[is_synchronizing], host_gaps.end[is_synchronizing])
    data_ns, sync_ns = host_gaps.overlap_ns(data), synchronized.length_ns - synchronized.overlap_ns(data)
    return {
        "data": data_ns,
        "sync": sync_ns,
        "launch": host_gaps.length_ns - data_ns - sync_ns,
        "other": gaps.length_ns - host_gaps.length_ns,
    }


def _named(trace: Trace, categories: tuple[Category, ...], pattern: re.Pattern[str]) -> Ints:
    """Return the events of these categories whose name matches."""
    events = trace.where(*categories)
    matches = np.array([bool(pattern.search(name)) for name in trace.names])
    selected: Ints = events[matches[trace.name[events]]]
    return selected


def _by_class(trace: Trace, kernels: Ints, durations_s: NDArray[Any]) -> tuple[dict[str, float], float | None]:
    """Return the time of computation by precision, and its part with tensor cores."""
    by_precision: dict[str, float] = defaultdict(float)
    tensor_core_s = None
    sums_s = np.bincount(trace.name[kernels], durations_s, len(trace.names))
    for index in np.flatnonzero(sums_s):
        kernel = classify(trace.names[index])
        if not kernel.is_communication:
            by_precision[kernel.precision] += float(sums_s[index])
            if kernel.tensor_cores is not None:
                tensor_core_s = (tensor_core_s or 0.0) + kernel.tensor_cores * float(sums_s[index])
    return dict(by_precision), tensor_core_s


def weighted_mean(values: NDArray[Any], weights: NDArray[Any]) -> float | None:
    """Return the weighted mean of the known values; None if none is known."""
    has_value = ~np.isnan(values)
    total = weights[has_value].sum()
    return float((values[has_value] * weights[has_value]).sum() / total) if total else None


def _launch_latency_s(trace: Trace, activities: Ints) -> float | None:
    latencies_ns: list[int] = []
    for stream in np.unique(trace.thread[activities]):
        events = activities[trace.thread[activities] == stream]
        calls = trace.launch[events]
        idle_since_ns = np.r_[-LAST_NS, np.maximum.accumulate(trace.end_ns[events])[:-1]]
        is_kernel = trace.category[events] == Category.KERNEL
        found_idle = is_kernel & (calls != NONE) & (trace.start_ns[calls] > idle_since_ns)
        latencies_ns += (trace.start_ns[events] - trace.start_ns[calls])[found_idle].tolist()
    plausible_ns = [latency_ns for latency_ns in latencies_ns if latency_ns >= 0]  # else the clocks disagree
    return float(np.median(plausible_ns)) * S_PER_NS if plausible_ns else None
