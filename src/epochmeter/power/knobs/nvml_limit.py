"""The power limit of NVIDIA GPUs, set through zeus and its privileged service zeusd if there is one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from epochmeter.power.knobs.watt_limit import DeviceLimit, WattLimit

REMEDY = (
    "run as root (in a container also with --cap-add SYS_ADMIN), or run zeusd, a service of zeus, on the host and set "
    "ZEUSD_SOCK_PATH or ZEUSD_HOST_PORT"
)


def open_nvml_limit(gpus: Sequence[str]) -> WattLimit | None:
    """Open the power limit of GPUs.

    NVML stays initialized until this process ends: without persistence mode, a limit is reset as soon as no process
    uses the driver.

    Args:
        gpus: UUIDs of the GPUs.

    Returns:
        The limit; None if a GPU has none, as some laptops.

    Raises:
        RuntimeError: The GPUs cannot be read.
    """
    try:
        import pynvml
        from zeus.device.exception import ZeusBaseGPUError
    except ImportError as error:
        raise RuntimeError(
            f"cannot set power_limit: cannot import zeus ({error})\nhint: pip install 'zeus>=0.16'"
        ) from error
    try:
        pynvml.nvmlInit()
        limits = {uuid: gpu_limit(uuid) for uuid in gpus}
    except pynvml.NVMLError_NotSupported:
        return None
    except (pynvml.NVMLError, ZeusBaseGPUError) as error:
        raise RuntimeError(f"cannot read the power limit of {', '.join(gpus)}: {error}") from error
    return WattLimit("NVML", limits) if limits else None


def gpu_limit(uuid: str) -> DeviceLimit:
    """Open one GPU's limit; NVMLError_NotSupported if it has none."""
    import pynvml
    from zeus.device.gpu.nvidia import NVIDIAGPU, ZeusdNVIDIAGPU
    from zeus.utils.zeusd import ZeusdClient, ZeusdConfig

    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    low_mw, high_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)

    def read() -> float:
        with as_runtime_error(f"cannot read the power limit of GPU {uuid}"):
            return pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000

    def write(watts: float) -> None:
        with as_runtime_error(f"cannot set the power limit of GPU {uuid} to {watts:g} W", REMEDY):
            # Not zeus's own list of GPUs, which does not support UUIDs in CUDA_VISIBLE_DEVICES.
            index, daemon = pynvml.nvmlDeviceGetIndex(handle), ZeusdConfig.from_env()
            gpu = ZeusdNVIDIAGPU(index, ZeusdClient(daemon)) if daemon else NVIDIAGPU(index)
            gpu.set_power_management_limit(round(watts * 1000))

    return DeviceLimit(
        low_mw / 1000, high_mw / 1000, read, write, lambda watts: f"sudo nvidia-smi -i {uuid} -pl {watts:g}"
    )


@contextmanager
def as_runtime_error(what: str, remedy: str = "") -> Iterator[None]:
    """Convert errors of NVML and zeus to RuntimeError; zeus's warning about root is part of the message.

    Args:
        what: The beginning of the message.
        remedy: The hint if permission is denied.
    """
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
        raise RuntimeError(f"{what}: {error}") from error
