"""Counters of NVIDIA GPUs from Hopper on, by NVML's GPU performance monitoring (GPM): no root, no replay, no daemon.

They are read at the borders of windows only, and the mean between the two readings is exact. DCGM and GPM share the
hardware, so GPM fails while DCGM profiles the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import fmean
from typing import TypeVar

from epochmeter.machine import nvml
from epochmeter.machine.gpus import Gpu

T = TypeVar("T")
PERCENT, MEBIBYTE = 0.01, float(1 << 20)
COUNTERS = {
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
"""Kind of error -> what helps."""


class GpuCounters:
    """The counters of the GPUs used, between `start` and `end`.

    Attributes:
        metrics: Of the last window: fractions are means over the GPUs, rates are sums. A counter that a GPU lacks is
            absent.
        reason: Why there are no counters; empty if there are.
        remedy: What helps; None if nothing does.
    """

    def __init__(self, gpus: Sequence[nvml.NvmlGpu] = ()) -> None:
        self._gpus = gpus
        self.metrics: dict[str, float] = {}
        self.reason = ""
        self.remedy: str | None = None

    def set_failed(self, error: OSError) -> None:
        """There are no counters from now on."""
        self._gpus, self.reason = (), str(error)
        self.remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), None)

    def start(self) -> None:
        """Read the counters before a window."""
        self._of_each(lambda gpu: gpu.read_gpm(0))

    def end(self) -> None:
        """Read the counters after a window, and compute its metrics."""
        self.metrics = {}
        names = [name for name, _ in COUNTERS.values()]
        self._of_each(lambda gpu: gpu.read_gpm(1))
        values = self._of_each(lambda gpu: gpu.gpm_values(names))
        if not values:
            return
        for metric, (name, unit) in COUNTERS.items():
            if all(name in value for value in values):
                mean_or_sum = sum if metric.endswith("_per_s") else fmean
                self.metrics[metric] = unit * mean_or_sum([value[name] for value in values])

    def _of_each(self, read: Callable[[nvml.NvmlGpu], T]) -> list[T]:
        """Return a reading of each GPU; after a failed reading there are no counters."""
        try:
            return [read(gpu) for gpu in self._gpus]
        except OSError as error:
            self.set_failed(error)
            return []


NO_COUNTERS = GpuCounters()


@contextmanager
def open_counters(uuids: Sequence[str]) -> Iterator[GpuCounters]:
    """Open the counters of NVIDIA GPUs; without GPUs there are none and no reason."""
    with ExitStack() as opened:
        counters = GpuCounters()
        try:
            counters = GpuCounters(list(_open_gpus(uuids, opened.callback)))
        except OSError as error:
            counters.set_failed(error)
        yield counters


def counter_ids(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[str]:
    """Return the UUIDs of the NVIDIA GPUs that a run uses, or of the MIG slices that its environment selects."""
    listed = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    slices = [name for name in listed[:1] if name.startswith("MIG-")]  # CUDA uses one slice at most
    return slices or [gpu["uuid"] for gpu in gpus if gpu["vendor"] == "nvidia" and "uuid" in gpu]


def _open_gpus(uuids: Sequence[str], at_end: Callable[[Callable[[], None]], object]) -> Iterator[nvml.NvmlGpu]:
    if uuids:
        at_end(nvml.start())
    for uuid in uuids:
        gpu = nvml.open_gpu(uuid)
        at_end(gpu.open_gpm())
        yield gpu
