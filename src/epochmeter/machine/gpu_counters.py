"""Performance counters of GPUs: NVML's GPU performance monitoring (GPM) on NVIDIA from Hopper on, and amdsmi on AMD.

They are read at the borders of windows only, and the mean between the two readings is exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import fmean

from epochmeter.machine import nvml
from epochmeter.machine.amd import AmdCounters
from epochmeter.machine.gpus import Gpu

PROFILING_OPTION = "NVreg_RestrictProfilingToAdminUsers=0"  # with it, every user may read performance counters
REMEDIES = {
    nvml.NotSupportedError: "for GPUs before Hopper: `profiler=ncu`; in MIG mode: CUDA_VISIBLE_DEVICES=MIG-...",
    nvml.InUseError: "DCGM uses the counters; pause it: dcgmi profile --pause",
    PermissionError: f"an administrator can set the option {PROFILING_OPTION} of the kernel module nvidia",
}
"""Kind of error -> its remedy."""
RESTRICTED = f"the driver may restrict performance counters to administrators; {REMEDIES[PermissionError]}"


class GpuCounters:
    """Performance counters of GPUs, named as by `counter_ids`: read between `start` and `end`, open until `close`."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.gpus: Sequence[nvml.GpmCounters | AmdCounters] = ()  # empty after an error
        self.metrics: dict[str, float] = {}  # of the last window, if all GPUs have the counter: means, sums of rates
        self.reason = ""  # why there are no counters
        self.remedy: str | None = None
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
            self.gpus, self.metrics, self.reason = (), {}, str(error)
            self.remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), None)

    def start(self) -> None:
        with self.disabled_on_error():
            for gpu in self.gpus:
                gpu.start()

    def end(self) -> None:
        """Read the counters after a window, and compute its metrics."""
        with self.disabled_on_error():
            values = [gpu.end() for gpu in self.gpus]
            names = [name for name in (values[0] if values else ()) if all(name in value for value in values)]
            self.metrics = {
                name: (sum if name.endswith("_per_s") else fmean)([value[name] for value in values]) for name in names
            }


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
