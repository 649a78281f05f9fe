"""Performance counters of GPUs: NVML's GPU performance monitoring (GPM) on NVIDIA from Hopper on, and amdsmi on AMD.

They are read at the borders of windows only, and the mean between the two readings is exact. Neither needs root, replay
or a daemon. DCGM and GPM share the hardware, so GPM fails while DCGM profiles the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import fmean

from epochmeter.machine import nvml
from epochmeter.machine.amd import AmdCounters
from epochmeter.machine.gpus import Gpu

PERCENT, MEBIBYTE = 0.01, float(1 << 20)
GPM = {
    "gpu_sm_active_fraction": ("SM_UTIL", PERCENT),
    "gpu_sm_occupancy_fraction": ("SM_OCCUPANCY", PERCENT),
    "gpu_tensor_active_fraction": ("ANY_TENSOR_UTIL", PERCENT),
    "gpu_fp64_active_fraction": ("FP64_UTIL", PERCENT),
    "gpu_fp32_active_fraction": ("FP32_UTIL", PERCENT),
    "gpu_fp16_active_fraction": ("FP16_UTIL", PERCENT),
    "gpu_dram_active_fraction": ("DRAM_BW_UTIL", PERCENT),
    "gpu_pcie_sent_bytes_per_s": ("PCIE_TX_PER_SEC", MEBIBYTE),
    "gpu_pcie_received_bytes_per_s": ("PCIE_RX_PER_SEC", MEBIBYTE),
    "gpu_nvlink_sent_bytes_per_s": ("NVLINK_TOTAL_TX_PER_SEC", MEBIBYTE),
    "gpu_nvlink_received_bytes_per_s": ("NVLINK_TOTAL_RX_PER_SEC", MEBIBYTE),
}
"""Metric -> name of the counter in NVML, and its unit."""
PROFILING_OPTION = "NVreg_RestrictProfilingToAdminUsers=0"
"""Option of the driver's kernel module with which every user may read performance counters."""
REMEDIES = {
    nvml.NotSupportedError: "for GPUs before Hopper: `profiler=ncu`; in MIG mode: CUDA_VISIBLE_DEVICES=MIG-...",
    nvml.InUseError: "DCGM uses the counters; pause it: dcgmi profile --pause",
    PermissionError: f"an administrator can set the option {PROFILING_OPTION} of the kernel module nvidia",
}
"""Kind of error -> its remedy."""
RESTRICTED = f"the driver may restrict performance counters to administrators; {REMEDIES[PermissionError]}"


class GpmCounters:
    """Counters of an NVIDIA GPU."""

    def __init__(self, gpu: nvml.NvmlGpu) -> None:
        self._gpu = gpu

    def start(self) -> None:
        """Read the counters before a window."""
        self._gpu.read_gpm(0)

    def end(self) -> dict[str, float]:
        """Read the counters after a window, and return its metrics."""
        self._gpu.read_gpm(1)
        values = self._gpu.gpm_values([name for name, _ in GPM.values()])
        return {metric: unit * values[name] for metric, (name, unit) in GPM.items() if name in values}


class GpuCounters:
    """The counters of the GPUs used, between `start` and `end`.

    Attributes:
        metrics: Of the last window: fractions are means over the GPUs, rates are sums. A counter that a GPU lacks is
            absent.
        reason: Why there are no counters; empty if there are.
        remedy: A fix for the reason; None if there is none.
    """

    def __init__(self, gpus: Sequence[GpmCounters | AmdCounters] = ()) -> None:
        self._gpus = gpus
        self.metrics: dict[str, float] = {}
        self.reason = ""
        self.remedy: str | None = None

    @property
    def are_open(self) -> bool:
        """Whether any counters are read."""
        return bool(self._gpus)

    def set_failed(self, error: OSError) -> None:
        """Record the reason and the remedy of an error, and read no counters from now on."""
        self._gpus, self.metrics, self.reason = (), {}, str(error)
        self.remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), None)

    def start(self) -> None:
        """Read the counters before a window."""
        try:
            for gpu in self._gpus:
                gpu.start()
        except OSError as error:
            self.set_failed(error)

    def end(self) -> None:
        """Read the counters after a window, and compute its metrics."""
        try:
            values = [gpu.end() for gpu in self._gpus]
        except OSError as error:
            self.set_failed(error)
            return
        names = [name for name in (values[0] if values else ()) if all(name in value for value in values)]
        self.metrics = {
            name: (sum if name.endswith("_per_s") else fmean)([value[name] for value in values]) for name in names
        }


NO_COUNTERS = GpuCounters()


@contextmanager
def open_counters(names: Sequence[str]) -> Iterator[GpuCounters]:
    """Open the counters of GPUs, by the names of `counter_ids`; without GPUs there are none and no reason."""
    with ExitStack() as opened:
        counters = GpuCounters()
        try:
            counters = GpuCounters(list(_open_gpus(names, opened.callback)))
        except OSError as error:
            counters.set_failed(error)
        yield counters


def counter_ids(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[str]:
    """Return the UUIDs of the NVIDIA GPUs that a run uses, or of its MIG slices, and the PCI addresses of AMD GPUs."""
    listed = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    slices = [name for name in listed[:1] if name.startswith("MIG-")]  # CUDA uses one slice at most
    keys = {"nvidia": "uuid", "amd": "bus"}
    return slices or [gpu[key] for gpu in gpus if (key := keys.get(gpu["vendor"])) and gpu.get(key)]


def is_amd(name: str) -> bool:
    """Return whether a name of `counter_ids` is a PCI address."""
    return ":" in name


def _open_gpus(
    names: Sequence[str], at_end: Callable[[Callable[[], None]], object]
) -> Iterator[GpmCounters | AmdCounters]:
    if not all(map(is_amd, names)):
        at_end(nvml.start())
    for name in names:
        if is_amd(name):
            yield AmdCounters(name)
        else:
            gpu = nvml.open_gpu(name)
            at_end(gpu.open_gpm())
            yield GpmCounters(gpu)
