"""Utilization, clock, temperature and throttling of the NVIDIA GPUs used, through NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from epochmeter.machine import nvml
from epochmeter.machine.gauges import POWER_CAPPED, THERMAL, Gauge, ThrottleCauses


def open_nvml_gauges(gpus: Sequence[str]) -> tuple[list[Gauge], Callable[[], None]]:
    """Open the gauges of GPUs and return the function that releases them; OSError without NVML or a GPU."""
    if not gpus:
        return [], lambda: None
    shut_down = nvml.start()
    try:
        return [gauge for uuid in gpus for gauge in _gauges(nvml.open_gpu(uuid))], shut_down
    except OSError:
        shut_down()
        raise


def _gauges(gpu: nvml.NvmlGpu) -> Iterator[Gauge]:
    def throttling() -> ThrottleCauses:
        power, thermal = gpu.throttle_reasons()
        return {
            POWER_CAPPED: [f"{gpu.name} {reason}" for reason in power],
            THERMAL: [f"{gpu.name} {reason}" for reason in thermal],
        }

    source = f"NVML, {gpu.name}"
    yield Gauge("gpu_utilization", source, gpu.utilization)
    yield Gauge("gpu_clock_mean_hz", source, gpu.clock_hz)
    yield Gauge("temperature_max_c", source, gpu.temperature_c)
    yield Gauge("throttling", source, throttling)
