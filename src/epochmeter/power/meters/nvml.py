"""NVML: what each NVIDIA GPU used, by its own counter (Volta and newer), and its power, sampled beside it.

Sampled power checks the counter, and stands in for it where a GPU has none. Nothing of a GPU is ever set here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from typing import Any

from epochmeter.power.meter import Absent, Counter, Domain, Meter, Power
from epochmeter.power.meters.gpu import BOARD, Gpu, meter_of, open_gpu
from epochmeter.power.uncertainty import UNKNOWN, Response, response_of

COUNTER_PERIOD_S = 0.1
"""The counter ticks about this often: windows of seconds are good, single steps are noise."""
GA100 = (8, 0)
"""Up to this compute capability the usual reading of power is that of the moment; of any newer GPU, a mean."""
MEAN = Response(averaging_s=1.0, renewal_s=0.1)
"""Response of the mean (NVML's documentation); it is renewed like the instantaneous reading."""
MODULE = "module (GPU and CPU of a superchip)"
SUPERCHIPS = ("GH200", "Grace Hopper")
COVERS = {BOARD: "GPUs used (whole boards)", MODULE: "modules of the GPUs used (GPU and CPU of a superchip)"}
"""Scope of the energy of several GPUs, by the scope of each one."""
NO_SLICE = "a slice has no energy counter of its own: the GPU's covers all slices together"
STEP = 0.001
"""NVML tells millijoules and milliwatts."""


def open_nvml(
    *,
    gpus: Sequence[str],
    root: str | PathLike[str],
    period_s: float = 0.05,
    cross_check: bool = True,
    sensors: Mapping[str, Any] | None = None,
) -> Meter:
    """The energy of the GPUs used, by UUID; absent, with the reason, unless each tells its energy or its power.

    Power is sampled every `period_s`: as `gpu0_sampled` beside a counter, unless `cross_check` is off, or else as
    `gpu0` itself. `sensors` is the device's table of sensor responses, by compute capability.
    """
    if not gpus and os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return Absent(f"A MIG slice is used, and {NO_SLICE}.")
    if not gpus:
        return Absent("meter=nvml counts the GPUs that a run uses, by UUID, and no GPU with a known UUID is used.")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # asked first: it costs nothing where there is no driver
    except OSError:
        return Absent("There is no NVIDIA driver here: libnvidia-ml.so.1 cannot be loaded.")
    try:
        return metered(gpus, period_s, cross_check, sensors)
    except ImportError as error:
        return Absent(f"NVML is read through zeus, which does not import ({error}): pip install 'zeus>=0.16'")
    except (OSError, ValueError) as error:
        return Absent(str(error))


def metered(
    uuids: Sequence[str], period_s: float, cross_check: bool, sensors: Mapping[str, Any] | None = None
) -> Meter:
    """The meter of the GPUs; OSError says which of them tells nothing, and why."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"The NVIDIA driver is here, but NVML does not start: {error}.") from error
    try:
        gpus = [gpu_of(uuid, period_s, sensors) for uuid in uuids]
    except (OSError, ValueError):
        pynvml.nvmlShutdown()
        raise
    covers = " + ".join(dict.fromkeys(COVERS[gpu.covers] for gpu in gpus))
    return meter_of(gpus, covers=covers, period_s=period_s, cross_check=cross_check, close=pynvml.nvmlShutdown)


def gpu_of(uuid: str, period_s: float, sensors: Mapping[str, Any] | None = None) -> Gpu:
    """What a GPU tells of its energy; OSError where that is nothing, or not of what is used of it alone."""
    device = device_of(uuid)
    name, response = f"gpu{device.gpu_index}", response_of(sensors, capability_of(device.handle), UNKNOWN)
    counter, power = partial(counter_of, uuid, device, response), partial(power_of, uuid, device, period_s, response)
    return open_gpu(name, counter, power)


def device_of(uuid: str) -> Any:
    """The GPU as zeus has it; OSError where NVML knows none, or where it is divided (MIG)."""
    import pynvml
    from zeus.device.exception import ZeusBaseGPUError
    from zeus.device.gpu.nvidia import NVIDIAGPU

    if uuid.startswith("MIG-"):
        raise OSError(f"{uuid} is a MIG slice, and {NO_SLICE}.")
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        device = NVIDIAGPU(pynvml.nvmlDeviceGetIndex(handle))
    except (pynvml.NVMLError, ZeusBaseGPUError) as error:
        raise OSError(f"NVML finds no GPU {uuid}: {error}.") from error
    if is_sliced(handle):
        raise OSError(f"GPU {uuid} is divided by MIG, and {NO_SLICE}.")
    return device


def is_sliced(handle: Any) -> bool:
    """Whether a GPU is in MIG mode now; False for those, and for drivers, that know no such mode."""
    import pynvml

    try:
        mode, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False
    return mode == pynvml.NVML_DEVICE_MIG_ENABLE


def counter_of(uuid: str, device: Any, response: Response = UNKNOWN) -> Counter:
    """The GPU's energy counter, if it can be read; zeus decides by architecture, which is wrong for Jetsons.

    It adds up the readings of the GPU's power sensor, so it misses power that this sensor does not measure.
    """
    read = working(device.get_total_energy_consumption, f"GPU {uuid} does not say what energy it used")
    covers = scope_of(device.handle)
    return Counter(Domain("counter", COUNTER_PERIOD_S, covers, STEP, response.averaging_s, response.lag_s), read)


def power_of(uuid: str, device: Any, period_s: float, response: Response = UNKNOWN) -> Power:
    """The GPU's power: that of the moment where the driver tells it, or else the usual reading."""
    import pynvml

    complaint = f"GPU {uuid} does not say its power"
    covers = scope_of(device.handle)
    try:
        read = working(device.get_instant_power_usage, complaint)
    except OSError:
        covers = BOARD
        read = working(partial(pynvml.nvmlDeviceGetPowerUsage, device.handle), complaint)
        response = MEAN if is_newer_than_ga100(device.handle) else response
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
    return BOARD


def is_newer_than_ga100(handle: Any) -> bool:
    """Whether the GPU's usual reading of power is a mean; False where the driver does not say what GPU it is."""
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


def working(ask: Callable[[], int], complaint: str) -> Callable[[], float]:
    """How an instrument is read that answers in thousandths: in whole units, or OSError, which says why not.

    It is read once now, and OSError is raised unless it tells more than 0.
    """
    import pynvml
    from zeus.device.exception import ZeusBaseGPUError

    def read() -> float:
        try:
            return ask() / 1000
        except (pynvml.NVMLError, ZeusBaseGPUError) as error:
            raise OSError(f"{complaint}: {error}.") from error

    if not read() > 0:
        raise OSError(f"{complaint}: it stands at 0.")
    return read
