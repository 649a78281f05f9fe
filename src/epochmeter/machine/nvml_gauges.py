"""Load, clock and temperature of the NVIDIA GPUs used, and what holds their clocks down, by NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from epochmeter.machine import nvml
from epochmeter.machine.gauges import AT_LIMIT, POWER_CAPPED, THERMAL, Gauge, Slowed


def start(gpus: Sequence[str]) -> tuple[list[Gauge], Callable[[], None]]:
    """The gauges of each GPU, by UUID, and what lets go of them; OSError says why there are none."""
    if not gpus:
        return [], lambda: None
    shut_down = nvml.start()
    try:
        return [gauge for uuid in gpus for gauge in find_gauges(uuid)], shut_down
    except OSError:
        shut_down()
        raise


def find_gauges(uuid: str) -> Iterator[Gauge]:
    """A GPU's gauges, named by its number in PCI order; OSError where NVML does not know it."""
    import pynvml

    name, handle = nvml.named(uuid)
    calls = {
        "gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
        "gpu_clock_mean_hz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 1e6,
        "temperature_max_c": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    }
    for quantity, call in calls.items():
        yield Gauge(quantity, f"NVML, {name}", partial(nvml.ask, name, call, handle))
    yield Gauge("throttling", f"NVML, {name}", partial(held_down, name, handle))


def held_down(name: str, handle: Any) -> Slowed:
    """Return the causes that lower a GPU's clocks now, by NVML's clocks-event reasons."""
    import pynvml

    reasons = {
        POWER_CAPPED: {
            pynvml.nvmlClocksThrottleReasonSwPowerCap: AT_LIMIT,
            pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "slowed by its power brake",
        },
        THERMAL: {
            pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "slowed for heat",
            pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "slowed for heat, by its hardware",
        },
    }
    in_force = nvml.ask(name, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return {
        cause: [f"{name} {said}" for bit, said in by_bit.items() if in_force & bit] for cause, by_bit in reasons.items()
    }
