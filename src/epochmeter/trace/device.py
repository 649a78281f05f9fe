"""Time of the device in the traced steps: busy, idle by cause, overlap, precision and use of the kernels."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
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


def stretches(trace: Trace, groups: Sequence[Ints], times_ns: Sequence[int] = ()) -> tuple[Ints, Ints, list[Bools]]:
    """Divide the time at the starts and ends of all events in groups of events, and at further times.

    Returns:
        Starts and lengths of the stretches of time, in ns; the length of the last stretch is 0. For each group, a mask
        of the stretches in which an event of the group runs.
    """
    borders_ns = [edges_ns[group] for group in groups for edges_ns in (trace.start_ns, trace.end_ns)]
    start_ns = np.unique(np.concatenate([*borders_ns, np.array(times_ns, np.int64)]))

    def counts(edges_ns: Ints) -> Ints:
        return np.bincount(np.searchsorted(start_ns, edges_ns), minlength=len(start_ns))

    changes = (counts(trace.start_ns[group]) - counts(trace.end_ns[group]) for group in groups)
    return start_ns, np.diff(start_ns, append=start_ns[-1:]), [np.cumsum(change) > 0 for change in changes]


def measure_device(trace: Trace) -> dict[str, float]:
    """Measure the activities that the traced steps launched, until the last one ends; without steps, all activities.

    Returns:
        Times as sums over devices; empty if no kernel took any time. Unknown values are absent. docs/traces.md defines
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
    opening = trace.steps if len(trace.steps) else activities
    window = int(trace.start_ns[opening].min()), int(trace.end_ns[np.r_[trace.steps, activities]].max())
    devices = np.unique(trace.device[kernels])
    times_s: Counter[str] = Counter()
    for device in devices:
        times_s.update(device_times_s(trace, activities[trace.device[activities] == device], window))
    durations_s = trace.duration_ns[kernels] * NANOSECOND
    means = {
        "sm_efficiency": weighted_mean(np.minimum(trace.blocks_per_sm[kernels], 1), durations_s),
        "achieved_occupancy": weighted_mean(trace.occupancy[kernels], durations_s),
        "launch_latency_s": _launch_latency_s(trace, activities),
    }
    return {
        "devices": len(devices),
        **times_s,
        "kernels": len(kernels),
        "kernel_s": float(durations_s.sum()),
        **_times_by_class(trace, kernels, durations_s),
        **{name: mean for name, mean in means.items() if mean is not None},
    }


def device_times_s(trace: Trace, activities: Ints, window: tuple[int, int]) -> dict[str, float]:
    """Return the busy and idle times of a device in a window, by their names in `measure_device`.

    The host causes a gap if it launched the next activity after the device had become idle, or launched none.
    """
    is_kernel = trace.category[activities] == Category.KERNEL
    kernels = activities[is_kernel]
    communicates = np.array([classify(name).is_communication for name in trace.names])[trace.name[kernels]]
    waits, calls = trace.where(*HOST, name=DATA_WAIT), trace.where(Category.RUNTIME, name=SYNCHRONIZATION)
    groups = kernels[~communicates], kernels[communicates], activities[~is_kernel], waits, calls
    start_ns, lasts_ns, running = stretches(trace, groups, window)
    is_inside = (start_ns >= window[0]) & (start_ns < window[1])  # clocks of host and device may differ a little
    compute, communication, copy, data, synchronizing = (runs & is_inside for runs in running)
    busy = compute | communication
    gap = ~(busy | copy) & is_inside
    at_next = np.searchsorted(trace.start_ns[activities], start_ns, side="right")
    idle_since_ns, launched_ns = (times_ns[at_next] for times_ns in _queue_times_ns(trace, activities, window[0]))
    host = gap & (launched_ns > idle_since_ns)
    sync = host & ~data & synchronizing[np.searchsorted(start_ns, idle_since_ns)]
    parts = {
        "busy_s": busy,
        "copy_s": copy,
        "copy_overlap_s": copy & compute,
        "idle_copy_s": copy & ~busy,
        "idle_data_s": host & data,
        "idle_sync_s": sync,
        "idle_launch_s": host & ~data & ~sync,
        "idle_other_s": gap & ~host,
    }
    if communication.any():
        parts |= {"communication_s": communication, "communication_overlap_s": communication & compute}
    times_ns = {"wall_s": window[1] - window[0], **{name: lasts_ns[chosen].sum() for name, chosen in parts.items()}}
    return {name: int(time_ns) * NANOSECOND for name, time_ns in times_ns.items()}


def _queue_times_ns(trace: Trace, activities: Ints, opened_ns: int = NONE) -> tuple[Ints, Ints]:
    """Return the end of all activities before each one, and its launch, -1 if unknown; the last row is after them."""
    launch = trace.launch[activities]
    launched_ns = np.append(np.where(launch == NONE, NONE, trace.start_ns[launch]), LAST_NS)
    return np.maximum.accumulate(np.r_[opened_ns, trace.end_ns[activities]]), launched_ns


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
    """Return the weighted mean of all values except NaN; None without such values."""
    has_value = ~np.isnan(values)
    total = weights[has_value].sum()
    return float((values[has_value] * weights[has_value]).sum() / total) if total else None


def _launch_latency_s(trace: Trace, activities: Ints) -> float | None:
    """Return the median latency of kernels whose stream was idle; None without such kernels."""
    latencies_ns: list[Ints] = []
    for stream in np.unique(trace.thread[activities]):
        events = activities[trace.thread[activities] == stream]
        idle_since_ns, launched_ns = (times_ns[:-1] for times_ns in _queue_times_ns(trace, events))
        started_ns, is_kernel = trace.start_ns[events], trace.category[events] == Category.KERNEL
        is_plausible = is_kernel & (idle_since_ns < launched_ns) & (launched_ns <= started_ns)  # else clocks disagree
        latencies_ns.append((started_ns - launched_ns)[is_plausible])
    latency_ns = np.concatenate(latencies_ns)
    return float(np.median(latency_ns)) * NANOSECOND if len(latency_ns) else None
