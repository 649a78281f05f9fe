"""Time of the device in the traced steps: busy, idle by cause, overlap, precision and use of the kernels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochmeter.shared.units import NANOSECOND
from epochmeter.trace.kernels import classify
from epochmeter.trace.kineto import DEVICE, HOST, NONE, Bools, Category, Floats, Ints, Trace

DATA_WAIT = re.compile(r"enumerate\(DataLoader\)#.*__next__")
SYNCHRONIZATION = re.compile(r"(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|(cuda|hip)Memcpy(WithStream)?$")
IDLE_CAUSES = ("copy", "data", "sync", "launch", "other")
LAST_NS = np.iinfo(np.int64).max


@dataclass
class Intervals:
    """Disjoint intervals in order of time, in ns."""

    start: Ints
    end: Ints

    @classmethod
    def union(cls, start: Ints, end: Ints) -> Intervals:
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        ends_before = start[1:] > end[:-1]
        return cls(start[np.r_[True, ends_before][: len(start)]], end[np.r_[ends_before, True][: len(end)]])

    def gaps(self, start: int, end: int) -> Intervals:
        """Return the intervals between two times that are in none of these."""
        starts, ends = np.r_[start, self.end], np.r_[self.start, end]
        starts, ends = np.maximum(starts, start), np.minimum(ends, end)
        return Intervals(starts[ends > starts], ends[ends > starts])

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.union(np.r_[self.start, other.start], np.r_[self.end, other.end])

    @property
    def length_ns(self) -> int:
        return int((self.end - self.start).sum())

    def overlap_ns(self, other: Intervals) -> int:
        return self.length_ns + other.length_ns - (self | other).length_ns

    def contains(self, at_ns: Ints) -> Bools:
        """Return which times are in an interval, which includes its start and excludes its end."""
        index = np.searchsorted(self.start, at_ns, side="right") - 1
        inside: Bools = (index >= 0) & (at_ns < np.r_[self.end, 0][index])
        return inside


def measure_device(trace: Trace) -> dict[str, float]:
    """Measure the activities that the traced steps launched until the last has ended; without steps, all activities.

    Returns:
        Times as sums over devices; empty if no kernel took any time. Unknown ones are absent. docs/traces.md defines
        the causes of idle time, and the means over kernels.

        - `devices`: number of devices that ran kernels; `wall_s`: length of the window on each of them
        - `busy_s`, `communication_s`, `copy_s`: unions of kernels, of communication, and of copies and settings of
          memory; `copy_overlap_s`, `communication_overlap_s`: parts in which computation ran as well
        - `kernels`: number of kernels; `kernel_s`: sum of their durations; `computing_s`: the same without
          communication, with its parts `precision_<precision>_s` and `tensor_core_s`
    """
    activities = trace.in_steps(*DEVICE) if len(trace.steps) else trace.where(*DEVICE)
    kernels = activities[trace.category[activities] == Category.KERNEL]
    if not trace.duration_ns[kernels].any():
        return {}
    starts_ns = trace.steps[:, 1] if len(trace.steps) else trace.start_ns[activities]
    window = int(starts_ns.min()), int(np.r_[trace.steps[:, 2], trace.end_ns[activities]].max())
    devices = np.unique(trace.device[kernels])
    sums_ns: Counter[str] = Counter()
    for device in devices:
        sums_ns.update(_times_ns(trace, activities[trace.device[activities] == device], window))
    durations_s = trace.duration_ns[kernels] * NANOSECOND
    means = {
        "sm_efficiency": weighted_mean(np.minimum(trace.blocks_per_sm[kernels], 1), durations_s),
        "achieved_occupancy": weighted_mean(trace.occupancy[kernels], durations_s),
        "launch_latency_s": _launch_latency_s(trace, activities),
    }
    return {
        "devices": len(devices),
        **{name: sum_ns * NANOSECOND for name, sum_ns in sums_ns.items()},
        "kernels": len(kernels),
        "kernel_s": float(durations_s.sum()),
        **_times_by_class(trace, kernels, durations_s),
        **{name: mean for name, mean in means.items() if mean is not None},
    }


def _union(trace: Trace, events: Ints) -> Intervals:
    return Intervals.union(trace.start_ns[events], trace.end_ns[events])


def _times_ns(trace: Trace, activities: Ints, window: tuple[int, int]) -> dict[str, int]:
    """Return the busy and idle times of a device in a window, in ns."""
    is_kernel = trace.category[activities] == Category.KERNEL
    kernels, copies = activities[is_kernel], _union(trace, activities[~is_kernel])
    communicates = np.array([classify(name).is_communication for name in trace.names])[trace.name[kernels]]
    compute, communication = _union(trace, kernels[~communicates]), _union(trace, kernels[communicates])
    busy = compute | communication
    active = busy | copies
    causes = idle_by_cause(trace, activities, active.gaps(*window))
    times_ns = {
        "wall_s": window[1] - window[0],
        "busy_s": busy.length_ns,
        "copy_s": copies.length_ns,
        "copy_overlap_s": copies.overlap_ns(compute),
        "idle_copy_s": active.length_ns - busy.length_ns,
        **{f"idle_{cause}_s": idle_ns for cause, idle_ns in causes.items()},
    }
    if communication.length_ns:
        times_ns["communication_s"] = communication.length_ns
        times_ns["communication_overlap_s"] = communication.overlap_ns(compute)
    return times_ns


def idle_by_cause(trace: Trace, activities: Ints, gaps: Intervals) -> dict[str, int]:
    """Return the length of a device's idle gaps by cause.

    The host causes a gap if it launched the next activity after the device had become idle, or if there is no next one.
    """
    launch = trace.launch[activities]
    following = np.searchsorted(trace.start_ns[activities], gaps.end, side="left")
    launched_ns = np.append(np.where(launch == NONE, -1, trace.start_ns[launch]), LAST_NS)[following]
    by_host = launched_ns > gaps.start
    host_gaps = Intervals(gaps.start[by_host], gaps.end[by_host])
    data = _union(trace, trace.where(*HOST, name=DATA_WAIT))
    calls = _union(trace, trace.where(Category.RUNTIME, name=SYNCHRONIZATION))
    is_synchronizing = calls.contains(host_gaps.start)
    synchronized = Intervals(host_gaps.start[is_synchronizing], host_gaps.end[is_synchronizing])
    data_ns, sync_ns = host_gaps.overlap_ns(data), synchronized.length_ns - synchronized.overlap_ns(data)
    launch_ns, other_ns = host_gaps.length_ns - data_ns - sync_ns, gaps.length_ns - host_gaps.length_ns
    return {"data": data_ns, "sync": sync_ns, "launch": launch_ns, "other": other_ns}


def _times_by_class(trace: Trace, kernels: Ints, durations_s: Floats) -> dict[str, float]:
    """Return the time of computation, and its parts by precision and with tensor cores."""
    times_s: defaultdict[str, float] = defaultdict(float)
    sums_s = np.bincount(trace.name[kernels], durations_s, len(trace.names)).tolist()
    for name, sum_s in zip(trace.names, sums_s, strict=True):
        kernel = classify(name)
        if sum_s and not kernel.is_communication:
            times_s["computing_s"] += sum_s
            times_s[f"precision_{kernel.precision}_s"] += sum_s
            if kernel.tensor_cores is not None:
                times_s["tensor_core_s"] += kernel.tensor_cores * sum_s
    return dict(times_s)


def weighted_mean(values: Floats, weights: NDArray[Any]) -> float | None:
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
    return float(np.median(plausible_ns)) * NANOSECOND if plausible_ns else None
