"""The quantities that HolisticTraceAnalysis (HTA) defines as well, from this project's analysis, in percent."""

import numpy as np

from epochmeter.trace.device import IDLE_CAUSES, device_times_s, stretches
from epochmeter.trace.kernels import classify
from epochmeter.trace.kineto import DEVICE, Category


def figures(trace):
    """Return HTA's temporal breakdown, kernel types, overlap, and the gaps per stream that the host causes.

    Percentages are of the time from the first activity of the device to the last, as in HTA.
    """
    device = trace.where(*DEVICE)
    kernels = device[trace.category[device] == Category.KERNEL]
    communicates = np.array([classify(name).is_communication for name in trace.names])[trace.name[kernels]]
    groups = kernels[~communicates], kernels[communicates], trace.where(Category.COPY)
    _, lasts_ns, (compute, communication, memory) = stretches(trace, groups)
    active = compute | communication | memory

    def fraction(part, of=slice(None)):
        return lasts_ns[part].sum() / lasts_ns[of].sum()

    parts = {"computation": compute & ~(communication | memory), "communication": communication & ~(compute | memory),
             "memory": memory & ~(compute | communication)}  # fmt: skip
    values = {"idle": fraction(~active), "compute": fraction(compute), "non-compute": fraction(active & ~compute)}
    values |= {f"only {name}": fraction(part, active) for name, part in parts.items()}
    if communication.any():
        values["communication overlap"] = fraction(communication & compute, communication)
    for stream in np.unique(trace.thread[device]):
        events = device[trace.thread[device] == stream]
        times_s = device_times_s(trace, events, (trace.start_ns[events[0]], trace.end_ns[events].max()))
        gaps_s = {cause: times_s[f"idle_{cause}_s"] for cause in IDLE_CAUSES if cause != "copy"}
        if sum(gaps_s.values()):
            number = trace.threads[stream][1].split()[-1]  # older versions of torch write `stream 7`
            values[f"host wait, stream {number}"] = 1 - gaps_s["other"] / sum(gaps_s.values())
    return {name: 100 * float(value) for name, value in values.items()}
