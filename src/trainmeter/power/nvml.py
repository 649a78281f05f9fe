"""NVML: what each NVIDIA GPU used since its driver was loaded, by the GPU's own counter (Volta and newer)."""

import ctypes
from collections.abc import Sequence
from os import PathLike
from typing import Any

from trainmeter.power.meter import Absent, Counter, Counters, Domain, Meter

PERIOD_S = 0.1  # the counter ticks about this often: windows of seconds are good, single steps are noise


def open_nvml(*, gpus: Sequence[str], root: str | PathLike[str]) -> Meter:
    """The counters of the GPUs used, by UUID; absent, with the reason, unless each of them has one."""
    if not gpus:
        return Absent("meter=nvml counts the GPUs that a run uses, by UUID, and no GPU with a known UUID is used.")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # asked first: it costs nothing where there is no driver
    except OSError:
        return Absent("There is no NVIDIA driver here: libnvidia-ml.so.1 cannot be loaded.")
    try:
        return count(gpus)
    except ImportError as error:
        return Absent(f"NVML is read through zeus, which does not import ({error}): pip install 'zeus>=0.16'")
    except OSError as error:
        return Absent(str(error))


def count(gpus: Sequence[str]) -> Meter:
    """The counters of the GPUs; OSError says which of them has none, and why."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"The NVIDIA driver is here, but NVML does not start: {error}.") from error
    try:
        counters = dict(counter(uuid) for uuid in gpus)
    except OSError:
        pynvml.nvmlShutdown()
        raise
    return Counters(counters, covers="GPUs used (whole boards)", close=pynvml.nvmlShutdown)


def counter(uuid: str) -> tuple[str, Counter]:
    """A GPU's domain, by its number in PCI order, and its counter, which was read once and works."""
    import pynvml
    from zeus.device.exception import ZeusBaseGPUError
    from zeus.device.gpu.nvidia import NVIDIAGPU

    if uuid.startswith("MIG-"):
        raise OSError(f"{uuid} is a slice of a GPU (MIG), and only whole GPUs count their energy.")
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        index = pynvml.nvmlDeviceGetIndex(handle)
        gpu = NVIDIAGPU(index)
    except (pynvml.NVMLError, ZeusBaseGPUError) as error:
        raise OSError(f"NVML finds no GPU {uuid}: {error}.") from error
    if is_sliced(handle):
        raise OSError(f"GPU {uuid} is in slices (MIG): its counter covers all of them, not the one used.")

    def read() -> float:
        try:
            return gpu.get_total_energy_consumption() / 1000
        except ZeusBaseGPUError as error:
            raise OSError(f"GPU {uuid} does not say what energy it used: {error}.") from error

    # Asked by reading it: the architecture, which zeus goes by, promises a counter to Jetsons too.
    if not read() > 0:
        raise OSError(f"GPU {uuid} has an energy counter that stands at 0.")
    return f"gpu{index}", Counter(Domain("counter", PERIOD_S, "GPU board"), read)


def is_sliced(handle: Any) -> bool:
    """Whether a GPU is in MIG mode now; False for those, and for drivers, that know no such mode."""
    import pynvml

    try:
        mode, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False
    return mode == pynvml.NVML_DEVICE_MIG_ENABLE
