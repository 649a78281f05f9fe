"""Performance counters of GPUs: NVML's GPU performance monitoring (GPM) on NVIDIA from Hopper on, and amdsmi on AMD.

They are read at the borders of windows only, and the mean between the two readings is exact.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import fmean

from epochmeter.machine import nvml
from epochmeter.machine.amd import AmdCounters
from epochmeter.machine.gpus import Gpu
from epochmeter.machine.marks import Marks

PROFILING_OPTION = "NVreg_RestrictProfilingToAdminUsers=0"  # with it, every user may read performance counters
REMEDIES = {
    nvml.NotSupportedError: "for GPUs before Hopper: `profiler=ncu`; in MIG mode: CUDA_VISIBLE_DEVICES=MIG-...",
    nvml.InUseError: "DCGM uses the counters; pause it: dcgmi profile --pause",
    PermissionError: f"an administrator can set the option {PROFILING_OPTION} of the kernel module nvidia",
}
"""Kind of error -> its remedy."""
RESTRICTED = f"the driver may restrict performance counters to administrators; {REMEDIES[PermissionError]}"


class GpuCounters:
    """Performance counters of GPUs, named as by `counter_ids`: read at the borders of windows, open until `close`."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.gpus: Sequence[nvml.GpmCounters | AmdCounters] = ()  # empty after an error
        self.reason = ""  # why there are no counters
        self.remedy: str | None = None
        self._marks: Marks[Mapping[str, float]] = Marks()  # metrics of all GPUs since the mark before
        opened = ExitStack()
        self.close = opened.close
        with self.disabled_on_error():
            self.gpus = [AmdCounters(name) if is_amd(name) else nvml.GpmCounters(name, opened) for name in names]

    @contextmanager
    def disabled_on_error(self) -> Iterator[None]:
        """At an OSError, record its reason and remedy, and read no counters from then on."""
        try:
            yield
        except OSError as error:
            self.gpus, self._marks, self.reason = (), Marks(), str(error)
            self.remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), None)

    def mark(self) -> None:
        """Read the counters, at a border of a window."""
        with self.disabled_on_error():
            values = [gpu.read() for gpu in self.gpus]
            if values:
                self._marks.add(time.monotonic_ns(), of_all(values))

    def window(self, opened_ns: int, closed_ns: int) -> dict[str, float]:
        """Return the metrics of a window, if all GPUs have the counter: means over GPUs and time, sums of rates."""
        if self._marks.at_borders(opened_ns, closed_ns) is None:
            return {}
        shares = [
            (min(ended_ns, closed_ns) - max(begun_ns, opened_ns), metrics)
            for (begun_ns, _), (ended_ns, metrics) in pairwise(self._marks)
        ]
        shares = [(share_ns, metrics) for share_ns, metrics in shares if share_ns > 0]
        total_ns = sum(share_ns for share_ns, _ in shares)
        names = [name for name in shares[0][1] if all(name in metrics for _, metrics in shares)]
        return {name: sum(share_ns * metrics[name] for share_ns, metrics in shares) / total_ns for name in names}

    def discard_before(self, before_ns: int) -> None:
        """Discard the readings before a moment except the last of them."""
        self._marks.discard_before(before_ns)


def of_all(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the counters that all GPUs have: means of fractions, and sums of rates."""
    names = [name for name in values[0] if all(name in value for value in values)]
    return {name: (sum if name.endswith("_per_s") else fmean)([value[name] for value in values]) for name in names}


NO_COUNTERS = GpuCounters()


def counter_ids(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[str]:
    """Return the UUIDs of the NVIDIA GPUs that a run uses, or of its MIG slices, and the PCI addresses of AMD GPUs."""
    listed = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    slices = [name for name in listed[:1] if name.startswith("MIG-")]  # CUDA uses one slice at most
    keys = {"nvidia": "uuid", "amd": "bus"}
    return slices or [gpu[key] for gpu in gpus if (key := keys.get(gpu["vendor"])) and gpu.get(key)]


def is_amd(name: str) -> bool:
    """Return whether a name of `counter_ids` is a PCI address."""
    return ":" in name
