"""The power limit of NVIDIA GPUs, set through zeus, which goes by way of zeusd where there is one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from epochmeter.power.knobs.watt_limit import Dial, WattLimit

REMEDY = (
    "run as root (in a container also with --cap-add SYS_ADMIN), or run zeusd, a service of zeus, on the host and set "
    "ZEUSD_SOCK_PATH or ZEUSD_HOST_PORT"
)


def open_nvml_limit(gpus: Sequence[str]) -> WattLimit | None:
    """The knob of the GPUs, by UUID; None where one of them has no limit to set, as in some laptops.

    RuntimeError where the GPUs cannot be asked. NVML stays open until this process ends: without persistence mode, a
    limit is lost as soon as nobody has the driver open.
    """
    try:
        import pynvml
        from zeus.device.exception import ZeusBaseGPUError
    except ImportError as error:
        raise RuntimeError(
            f"power_limit is set through zeus, which does not import ({error}): pip install 'zeus>=0.16'"
        ) from error
    try:
        pynvml.nvmlInit()
        dials = {uuid: dial(uuid) for uuid in gpus}
    except pynvml.NVMLError_NotSupported:
        return None
    except (pynvml.NVMLError, ZeusBaseGPUError) as error:
        raise RuntimeError(f"NVML does not tell the power limit of {', '.join(gpus)}: {error}.") from error
    return WattLimit("NVML", dials) if dials else None


def dial(uuid: str) -> Dial:
    """One GPU's limit; NVMLError_NotSupported where it has none."""
    import pynvml
    from zeus.device.gpu.nvidia import NVIDIAGPU, ZeusdNVIDIAGPU
    from zeus.utils.zeusd import ZeusdClient, ZeusdConfig

    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    low_mw, high_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)

    def read() -> float:
        with told(f"the power limit of GPU {uuid} cannot be read"):
            return pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000

    def write(watts: float) -> None:
        with told(f"the power limit of GPU {uuid} was not set to {watts:g} W", REMEDY):
            # Not zeus's own list of GPUs, which reads CUDA_VISIBLE_DEVICES and knows no UUID in it.
            index, daemon = pynvml.nvmlDeviceGetIndex(handle), ZeusdConfig.from_env()
            gpu = ZeusdNVIDIAGPU(index, ZeusdClient(daemon)) if daemon else NVIDIAGPU(index)
            gpu.set_power_management_limit(round(watts * 1000))

    return Dial(low_mw / 1000, high_mw / 1000, read, write, lambda watts: f"sudo nvidia-smi -i {uuid} -pl {watts:g}")


@contextmanager
def told(what: str, remedy: str = "") -> Iterator[None]:
    """NVML's and zeus's errors within, as RuntimeError; zeus's warning that it needs root is part of ours."""
    import pynvml
    from zeus.device.gpu.common import ZeusGPUNoPermissionError
    from zeus.exception import ZeusBaseError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (pynvml.NVMLError_NoPermission, ZeusGPUNoPermissionError) as error:
        raise RuntimeError(f"{what}: {error}\nhint: {remedy}") from error
    except (pynvml.NVMLError, ZeusBaseError) as error:
        raise RuntimeError(f"{what}: {error}.") from error
