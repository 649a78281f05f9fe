"""Energy of NVIDIA GPUs through NVML: the GPU's energy counter (Volta and newer) and sampled power.

Sampled power checks the counter, and replaces it on GPUs without one. This module only reads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from typing import Any

from epochmeter.power.meter import Counter, Domain, Meter, NullMeter, Power
from epochmeter.power.meters.gpu import BOARD_SCOPE, GpuInstruments, gpu_meter, open_gpu
from epochmeter.power.uncertainty import UNKNOWN, Response, response_of

COUNTER_PERIOD_S = 0.1
"""Approximate update period of the counter: it measures windows of seconds, not single steps."""
GA100 = (8, 0)
"""Up to this compute capability `nvmlDeviceGetPowerUsage` returns instantaneous power; on newer GPUs a mean."""
MEAN_RESPONSE = Response(averaging_s=1.0, renewal_s=0.1)
"""Response of the mean (NVML's documentation); it is renewed like the instantaneous reading."""
MODULE = "module (GPU and CPU of a superchip)"
SUPERCHIPS = ("GH200", "Grace Hopper")
COVERS = {BOARD_SCOPE: "GPUs used (whole boards)", MODULE: "modules of the GPUs used (GPU and CPU of a superchip)"}
"""Scope of the energy of several GPUs, by the scope of each one."""
SLICE_REASON = "a MIG slice has no energy counter, and the GPU's counter covers all slices"
STEP = 0.001
"""Resolution: NVML reports millijoules and milliwatts."""


def open_nvml(
    *,
    gpus: Sequence[str],
    root: str | PathLike[str],
    period_s: float = 0.05,
    cross_check: bool = True,
    sensors: Mapping[str, Any] | None = None,
) -> Meter:
    """Open the meter of the GPUs used.

    Args:
        gpus: UUIDs of the GPUs.
        root: Not used.
        period_s: Sampling period of power in seconds. Domain `gpu0` is sampled if the GPU has no counter.
        cross_check: Also sample the power of a GPU with a counter, as domain `gpu0_sampled`.
        sensors: The device's table of sensor responses, by compute capability.

    Returns:
        The meter; an `Absent` one, with the reason, unless each GPU has a counter or a power sensor.
    """
    if not gpus and os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return NullMeter(f"The run uses a MIG slice: {SLICE_REASON}.")
    if not gpus:
        return NullMeter("meter=nvml: the run uses no GPU with a known UUID.")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # first, since it is fast if there is no driver
    except OSError:
        return NullMeter("No NVIDIA driver: cannot load libnvidia-ml.so.1.")
    try:
        return nvml_meter(gpus, period_s, cross_check, sensors)
    except ImportError as error:
        return NullMeter(f"Cannot import zeus, which reads NVML ({error}): pip install 'zeus>=0.16'")
    except (OSError, ValueError) as error:
        return NullMeter(str(error))


def nvml_meter(
    uuids: Sequence[str], period_s: float, cross_check: bool, sensors: Mapping[str, Any] | None = None
) -> Meter:
    """Open the meter of GPUs, as `open_nvml`; OSError if one of them has neither counter nor power sensor."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"Cannot initialize NVML: {error}.") from error
    try:
        gpus = [open_instruments(uuid, period_s, sensors) for uuid in uuids]
    except (OSError, ValueError):
        pynvml.nvmlShutdown()
        raise
    covers = " + ".join(dict.fromkeys(COVERS[gpu.covers] for gpu in gpus))
    return gpu_meter(gpus, covers=covers, period_s=period_s, cross_check=cross_check, close=pynvml.nvmlShutdown)


def open_instruments(uuid: str, period_s: float, sensors: Mapping[str, Any] | None = None) -> GpuInstruments:
    """Open the instruments of a GPU.

    Raises:
        OSError: It has none, or they cover more than the slice that is used.
    """
    device = device_of(uuid)
    name, response = f"gpu{device.gpu_index}", response_of(sensors, capability_of(device.handle), UNKNOWN)
    counter, power = partial(counter_of, uuid, device, response), partial(power_of, uuid, device, period_s, response)
    return open_gpu(name, counter, power)


def device_of(uuid: str) -> Any:
    """Return zeus's object of a GPU; OSError if NVML does not know the GPU, or if it is in MIG mode."""
    import pynvml
    from zeus.device.exception import ZeusBaseGPUError
    from zeus.device.gpu.nvidia import NVIDIAGPU

    if uuid.startswith("MIG-"):
        raise OSError(f"{uuid}: {SLICE_REASON}.")
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        device = NVIDIAGPU(pynvml.nvmlDeviceGetIndex(handle))
    except (pynvml.NVMLError, ZeusBaseGPUError) as error:
        raise OSError(f"GPU {uuid}: not known to NVML: {error}.") from error
    if is_sliced(handle):
        raise OSError(f"GPU {uuid} is in MIG mode: {SLICE_REASON}.")
    return device


def is_sliced(handle: Any) -> bool:
    """Whether a GPU is in MIG mode; False if the GPU or its driver does not support it."""
    import pynvml

    try:
        mode, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False
    return mode == pynvml.NVML_DEVICE_MIG_ENABLE


def counter_of(uuid: str, device: Any, response: Response = UNKNOWN) -> Counter:
    """Open the GPU's energy counter by reading it; zeus decides by architecture, which is wrong for Jetsons.

    It adds up the readings of the GPU's power sensor, so it misses power that this sensor does not measure.

    Raises:
        OSError: The counter cannot be read.
    """
    read = checked_reader(device.get_total_energy_consumption, f"GPU {uuid}: cannot read the energy counter")
    covers = scope_of(device.handle)
    return Counter(Domain("counter", COUNTER_PERIOD_S, covers, STEP, response.averaging_s, response.lag_s), read)


def power_of(uuid: str, device: Any, period_s: float, response: Response = UNKNOWN) -> Power:
    """Open the GPU's power sensor: instantaneous power if the driver reports it, else `nvmlDeviceGetPowerUsage`.

    Raises:
        OSError: The power cannot be read.
    """
    import pynvml

    failure = f"GPU {uuid}: cannot read the power"
    covers = scope_of(device.handle)
    try:
        read = checked_reader(device.get_instant_power_usage, failure)
    except OSError:
        covers = BOARD_SCOPE
        read = checked_reader(partial(pynvml.nvmlDeviceGetPowerUsage, device.handle), failure)
        response = MEAN_RESPONSE if is_newer_than_ga100(device.handle) else response
    return Power(Domain("sampled", period_s, covers, STEP, *response), read)


def scope_of(handle: Any) -> str:
    """The scope of a GPU's counter and instantaneous power: the whole module on superchips such as Grace Hopper.

    A superchip is recognized by NVLink-C2C between CPU and GPU, or by its name.
    """
    import pynvml

    with suppress(pynvml.NVMLError):
        if pynvml.nvmlDeviceGetC2cModeInfoV(handle).isC2cEnabled:
            return MODULE
    with suppress(pynvml.NVMLError):
        if any(name in pynvml.nvmlDeviceGetName(handle) for name in SUPERCHIPS):
            return MODULE
    return BOARD_SCOPE


def is_newer_than_ga100(handle: Any) -> bool:
    """Whether `nvmlDeviceGetPowerUsage` is a mean; False if the driver does not report the compute capability."""
    import pynvml

    try:
        return pynvml.nvmlDeviceGetCudaComputeCapability(handle) > GA100
    except pynvml.NVMLError:
        return False


def capability_of(handle: Any) -> str:
    """The GPU's compute capability, such as 8.0; empty if the driver does not report it."""
    import pynvml

    try:
        return ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle)))
    except pynvml.NVMLError:
        return ""


def checked_reader(ask: Callable[[], int], complaint: str) -> Callable[[], float]:
    """Wrap an NVML query so that it returns base units and raises OSError.

    Args:
        ask: Returns thousandths, such as millijoules.
        complaint: The beginning of error messages.

    Raises:
        OSError: The query fails now, or returns 0.
    """
    import pynvml
    from zeus.device.exception import ZeusBaseGPUError

    def read() -> float:
        try:
            return ask() / 1000
        except (pynvml.NVMLError, ZeusBaseGPUError) as error:
            raise OSError(f"{complaint}: {error}.") from error

    if not read() > 0:
        raise OSError(f"{complaint}: it is 0.")
    return read
