"""Performance counters of GPUs: NVML's GPU performance monitoring (GPM) on NVIDIA from Hopper on, and amdsmi on AMD.

They are read at the borders of windows only, and the mean between the two readings is exact. Neither needs root, replay
or a daemon. DCGM and GPM share the hardware, so GPM fails while DCGM profiles the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        gpus: The counters of each GPU; empty if there are none, or after an error.
        metrics: Of the last window: fractions are means over the GPUs, rates are sums. A counter that a GPU lacks is
            absent.
        reason: Why there are no counters; empty if there are.
        remedy: A fix for the reason; None if there is none.
    """

    def __init__(self) -> None:
        self.gpus: Sequence[GpmCounters | AmdCounters] = ()
        self.metrics: dict[str, float] = {}
        self.reason = ""
        self.remedy: str | None = None

    @contextmanager
    def disabled_on_error(self) -> Iterator[None]:
        """At an OSError, record its reason and remedy, and read no counters from then on."""
        try:
            yield
        except OSError as error:
            self.gpus, self.metrics, self.reason = (), {}, str(error)
            self.remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), None)

    def start(self) -> None:
        """Read the counters before a window."""
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


@contextmanager
def open_counters(names: Sequence[str]) -> Iterator[GpuCounters]:
    """Open the counters of GPUs, by the names of `counter_ids`; without GPUs there are none and no reason."""
    counters = GpuCounters()
    with ExitStack() as opened:
        with counters.disabled_on_error():
            counters.gpus = [_open_gpu(name, opened) for name in names]
        yield counters


def _open_gpu(name: str, opened: ExitStack) -> GpmCounters | AmdCounters:
    if is_amd(name):
        return AmdCounters(name)
    opened.callback(nvml.start())  # calls are nested
    gpu = nvml.open_gpu(name)
    opened.callback(gpu.open_gpm())
    return GpmCounters(gpu)


def counter_ids(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[str]:
    """Return the UUIDs of the NVIDIA GPUs that a run uses, or of its MIG slices, and the PCI addresses of AMD GPUs."""
    listed = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    slices = [name for name in listed[:1] if name.startswith("MIG-")]  # CUDA uses one slice at most
    keys = {"nvidia": "uuid", "amd": "bus"}
    return slices or [gpu[key] for gpu in gpus if (key := keys.get(gpu["vendor"])) and gpu.get(key)]


def is_amd(name: str) -> bool:
    """Return whether a name of `counter_ids` is a PCI address."""
    return ":" in name
