"""Utilization, clock, temperature and throttling of the NVIDIA GPUs used, through NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from epochmeter.machine import nvml
from epochmeter.machine.gauges import POWER_CAPPED, POWER_LIMIT_CAUSE, THERMAL, Gauge, ThrottleCauses


def open_nvml_gauges(gpus: Sequence[str]) -> tuple[list[Gauge], Callable[[], None]]:
    """Open the gauges of GPUs.

    Args:
        gpus: UUIDs of the GPUs.

    Returns:
        The gauges, and the function that releases them.

    Raises:
        OSError: NVML is not available, or does not know a GPU.
    """
    if not gpus:
        return [], lambda: None
    shut_down = nvml.start()
    try:
        return [gauge for uuid in gpus for gauge in find_gauges(uuid)], shut_down
    except OSError:
        shut_down()
        raise


def find_gauges(uuid: str) -> Iterator[Gauge]:
    """List a GPU's gauges, named by its index in PCI order; OSError if NVML does not know the GPU."""
    import pynvml

    name, handle = nvml.name_and_handle(uuid)
    calls = {
        "gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
        "gpu_clock_mean_hz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 1e6,
        "temperature_max_c": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    }
    for quantity, call in calls.items():
        yield Gauge(quantity, f"NVML, {name}", partial(nvml.call_nvml, name, call, handle))
    yield Gauge("throttling", f"NVML, {name}", partial(throttle_causes, name, handle))


def throttle_causes(name: str, handle: Any) -> ThrottleCauses:
    """Return the causes that lower a GPU's clocks now, by NVML's clocks-event reasons."""
    import pynvml

    reasons = {
        POWER_CAPPED: {
            pynvml.nvmlClocksThrottleReasonSwPowerCap: POWER_LIMIT_CAUSE,
            pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "HW power brake",
        },
        THERMAL: {
            pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "thermal throttling",
            pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "HW thermal throttling",
        },
    }
    active = nvml.call_nvml(name, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return {
        cause: [f"{name} {label}" for bit, label in by_bit.items() if active & bit] for cause, by_bit in reasons.items()
    }
