"""The quantities that HolisticTraceAnalysis (HTA) defines as well, from this project's analysis, in percent."""

import numpy as np

from epochmeter.trace.device import Intervals, idle_by_cause
from epochmeter.trace.kernels import classify
from epochmeter.trace.kineto import DEVICE, Category


def figures(trace):
    """Return HTA's temporal breakdown, kernel types, overlap, and the gaps per stream that the host causes.

    Percentages are of the time from the first activity of the device to the last, as in HTA.
    """
    device = trace.where(*DEVICE)
    kernels = device[trace.category[device] == Category.KERNEL]
    communicates = np.array([classify(name).is_communication for name in trace.names])[trace.name[kernels]]
    compute, communication, memory, active = (
        Intervals.union(trace.start_ns[events], trace.end_ns[events])
        for events in (kernels[~communicates], kernels[communicates], trace.where(Category.COPY, Category.SET), device)
    )
    start, end = active.start[0], active.end[-1]
    values = {
        "idle": (end - start - active.length_ns) / (end - start),
        "compute": compute.length_ns / (end - start),
        "non-compute": (active.length_ns - compute.length_ns) / (end - start),
        "only computation": 1 - (communication | memory).length_ns / active.length_ns,
        "only communication": 1 - (compute | memory).length_ns / active.length_ns,
        "only memory": 1 - (compute | communication).length_ns / active.length_ns,
    }
    if communication.length_ns:
        values["communication overlap"] = communication.overlap_ns(compute) / communication.length_ns
    for stream in np.unique(trace.thread[device]):
        events = device[trace.thread[device] == stream]
        own = Intervals.union(trace.start_ns[events], trace.end_ns[events])
        gaps = own.gaps(own.start[0], own.end[-1])
        if gaps.length_ns:
            causes = idle_by_cause(trace, events, gaps)
            number = trace.threads[stream][1].split()[-1]  # older versions of torch write `stream 7`
            values[f"host wait, stream {number}"] = 1 - causes["other"] / gaps.length_ns
    return {name: 100 * float(value) for name, value in values.items()}
