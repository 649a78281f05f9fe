"""Energy of NVIDIA GPUs through NVML: the GPU's energy counter (Volta and newer) and sampled power.

Sampled power checks the counter, and replaces it on GPUs without one. This module only reads.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from epochmeter.machine import nvml
from epochmeter.power.meter import Domain, Instrument, Meter, NullMeter
from epochmeter.power.meters.gpu import BOARD_SCOPE, MODULE_SCOPE, GpuInstruments, gpu_meter, open_gpu
from epochmeter.power.uncertainty import UNKNOWN, Response, Sensors, response_of

COUNTER_PERIOD_S = 0.1  # approximate update period of the counter: it measures windows of seconds, not single steps
GA100 = (8, 0)
"""Up to this compute capability `nvmlDeviceGetPowerUsage` returns instantaneous power; on newer GPUs a mean."""
MEAN_RESPONSE = Response(averaging_s=1.0, renewal_s=0.1)
"""Response of the mean (NVML's documentation); it is renewed like the instantaneous reading."""
SLICE_REASON = "a MIG slice has no energy counter, and the GPU's counter covers all slices"
STEP = 0.001  # resolution: NVML reports millijoules and milliwatts


def open_nvml(
    *, gpus: Sequence[str], root: Path, period_s: float = 0.05, cross_check: bool = True, sensors: Sensors | None = None
) -> Meter:
    """Open the meter of the GPUs used, by UUID: a `NullMeter` unless each one has a counter or a power sensor.

    The table `sensors` has responses by compute capability, and `... counter` for the energy counter.
    """
    if not gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible and visible.startswith("MIG-"):
            return NullMeter(f"The run uses a MIG slice: {SLICE_REASON}.")
        selection = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        return NullMeter(f"meter=nvml: the run uses no GPU with a known UUID{selection}.")
    try:
        shut_down = nvml.start()
    except OSError as error:
        return NullMeter(f"{error}.")
    try:
        opened = [open_instruments(uuid, period_s, sensors) for uuid in gpus]
    except OSError as error:
        shut_down()
        return NullMeter(f"{error}.")
    return gpu_meter(opened, period_s=period_s, cross_check=cross_check, close=shut_down)


def open_instruments(uuid: str, period_s: float, sensors: Sensors | None) -> GpuInstruments:
    """Open the instruments of a GPU; OSError if it has none, or if they cover more than the slice that is used."""
    if uuid.startswith("MIG-"):
        raise OSError(f"{uuid}: {SLICE_REASON}")
    gpu = nvml.open_gpu(uuid)
    if gpu.is_in_mig_mode():
        raise OSError(f"{gpu.name} is in MIG mode: {SLICE_REASON}")
    capability: tuple[int, ...] = ()
    with suppress(OSError):
        capability = gpu.call("nvmlDeviceGetCudaComputeCapability")
    name = ".".join(map(str, capability))
    response = response_of(sensors, name, UNKNOWN)
    counted = response_of(sensors, f"{name} counter", response)
    scope = MODULE_SCOPE if gpu.is_superchip() else BOARD_SCOPE

    def open_counter() -> Instrument:
        # Unless listed, it is assumed to add up the power sensor's readings, which may miss a part of the time.
        domain = Domain("counter", COUNTER_PERIOD_S, scope, STEP, counted._replace(renewal_s=COUNTER_PERIOD_S))
        return Instrument(domain, checked(gpu.energy_j, f"the energy counter of {gpu.name} is 0"))

    def open_power() -> Instrument:
        sampled = partial(Domain, "sampled", period_s)
        zero = f"the power of {gpu.name} is 0"
        try:
            return Instrument(sampled(scope, STEP, response), checked(gpu.instant_power_w, zero))
        except OSError:
            usual = sampled(BOARD_SCOPE, STEP, MEAN_RESPONSE if capability > GA100 else response)
            return Instrument(usual, checked(gpu.power_w, zero))

    return open_gpu(gpu.name, open_counter, open_power)


def checked(read: Callable[[], float], zero: str) -> Callable[[], float]:
    """Return the reader of an instrument that works; OSError if reading fails now, or with `zero` if it returns 0."""
    if not read() > 0:
        raise OSError(zero)
    return read
