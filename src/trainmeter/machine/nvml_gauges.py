"""Load, clock and temperature of the NVIDIA GPUs used, and what holds their clocks down, by NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from trainmeter.machine.gauges import AT_LIMIT, Gauge


def start(gpus: Sequence[str]) -> tuple[list[Gauge], Callable[[], None]]:
    """The gauges of each GPU, by UUID, and what lets go of them; OSError says why there are none."""
    if not gpus:
        return [], lambda: None
    try:
        import pynvml
    except ImportError as error:
        raise OSError(
            f"NVML is read through nvidia-ml-py, which does not import ({error}): pip install zeus"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"NVML does not start: {error}. It comes with NVIDIA's driver.") from error
    try:
        return [gauge for uuid in gpus for gauge in find_gauges(uuid)], pynvml.nvmlShutdown
    except OSError:
        pynvml.nvmlShutdown()
        raise


def find_gauges(uuid: str) -> Iterator[Gauge]:
    """A GPU's gauges, named by its number in PCI order; OSError where NVML does not know it."""
    import pynvml

    handle = told(uuid, pynvml.nvmlDeviceGetHandleByUUID, uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    name = f"gpu{told(uuid, pynvml.nvmlDeviceGetIndex, handle)}"
    calls = {
        "gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
        "gpu_clock_mean_hz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 1e6,
        "temperature_max_c": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    }
    for quantity, call in calls.items():
        yield Gauge(quantity, f"NVML, {name}", partial(told, name, call, handle))
    yield Gauge("throttling", f"NVML, {name}", partial(held_down, name, handle))


def held_down(name: str, handle: Any) -> list[str]:
    """What holds a GPU's clocks down."""
    import pynvml

    reasons = {
        pynvml.nvmlClocksThrottleReasonSwPowerCap: AT_LIMIT,
        pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "slowed for heat",
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "slowed for heat, by its hardware",
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "slowed by its power brake",
    }
    in_force = told(name, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return [f"{name} {said}" for bit, said in reasons.items() if in_force & bit]


def told(gpu: str, call: Callable[[Any], Any], asked: Any) -> Any:
    """What NVML answers of a GPU; OSError where it does not."""
    import pynvml

    try:
        return call(asked)
    except pynvml.NVMLError as error:
        raise OSError(f"NVML does not tell it of {gpu}: {error}.") from error
