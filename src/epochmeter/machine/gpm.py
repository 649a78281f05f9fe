"""Counters of NVIDIA GPUs from Hopper on, by NVML's GPU performance monitoring (GPM): no root, no replay, no daemon.

They are read at the borders of windows only, and the mean between the two readings is exact. DCGM and GPM share the
hardware, so GPM fails while DCGM profiles the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import fmean
from typing import TypeVar

from epochmeter.machine import nvml

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


class GpuCounters:
    """The counters of the GPUs used, between `start` and `end`.

    Attributes:
        metrics: Of the last window: fractions are means over the GPUs, rates are sums. A counter that a GPU lacks is
            absent.
        reason: Why there are no counters; empty if there are.
    """

    def __init__(self, gpus: Sequence[nvml.NvmlGpu] = (), reason: str = "") -> None:
        self._gpus = gpus
        self.metrics: dict[str, float] = {}
        self.reason = reason

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
            self._gpus, self.reason = (), str(error)
            return []


NO_COUNTERS = GpuCounters()


@contextmanager
def open_counters(uuids: Sequence[str]) -> Iterator[GpuCounters]:
    """Open the counters of NVIDIA GPUs; without GPUs there are none and no reason."""
    with ExitStack() as opened:
        try:
            counters = GpuCounters(list(_open_gpus(uuids, opened.callback)))
        except OSError as error:
            counters = GpuCounters(reason=str(error))
        yield counters


def _open_gpus(uuids: Sequence[str], at_end: Callable[[Callable[[], None]], object]) -> Iterator[nvml.NvmlGpu]:
    if uuids:
        at_end(nvml.start())
    for uuid in uuids:
        gpu = nvml.open_gpu(uuid)
        at_end(gpu.open_gpm())
        yield gpu
